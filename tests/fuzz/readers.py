"""The ways into the product that are fuzzed, each with honest inputs to begin with."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.header import read_header
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.manifest import MANIFEST_FILE
from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.formats.overrides import parse_overrides, settable_fields
from dspark_convert.hub.answers import listed, parse_answer
from dspark_convert.hub.errors import hub_refusals
from dspark_convert.hub.front_matter import with_front_matter
from dspark_convert.reports.gate import open_gate
from dspark_convert.reports.junit import render_junit
from dspark_convert.reports.markdown import render_markdown
from dspark_convert.reports.read import read_diagnosis, read_report
from dspark_convert.traces.prompts import read_prompts
from dspark_convert.traces.trace import open_trace
from tests.conftest import ROOT
from tests.reports.documents import report as make_report
from tests.traces.helpers import make_header, write_trace

from .harness import Case, Reader
from .mutate import ODD_TEXTS, ODD_VALUES, damaged, mutated, with_header

GOLDEN, TINY = ROOT / "fixtures" / "golden", ROOT / "fixtures" / "tiny"
DRAFTS = tuple(sorted(folder / "checkpoint" for folder in GOLDEN.glob("[sd]*_*/")))
WHOLE = tuple(draft for draft in DRAFTS if (draft / "model.safetensors").exists())
CARD = "---\nlicense: mit\ntags:\n- a\n- b\nbase_model: owner/name\n---\n# A draft\n"
YAML_LINES = (
    *("license: mit", "tags: dspark", "tags: [x]", "tags:\n  - !!int ''", "tags: {a: b}"),
    *(
        "tags: [[x]]",
        "tags:\n- null",
        "a: !!timestamp x",
        "a: !!python/object/apply:os.system [id]",
    ),
    *("a: &a [1, *a]", "a: *b", "<<: {a: 1}", "? [1]\n: 2", "a: 2001-99-99", "a: 1:99:99"),
    *("a: .nan", "a: 0x", "a: |\n  x", "%YAML 9.9", "--- b", "...", "a: " + "[" * 2000, "'"),
    *("1: 2", "null: 3", "2001-01-01: 3", 'a: "\\ud800"', 'a: "\\x00"', "\tb: 1", "=: 1", "a: ="),
)


def _copy_of(source: Path, folder: Path) -> Path:
    place = folder / "draft"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place


@lru_cache
def _split(path: Path) -> tuple[Any, bytes]:
    """Header, as a document, and data of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@lru_cache
def _document(path: Path) -> Any:
    return json.loads(path.read_text())


def _read_draft(folder: Path) -> None:
    """Everything that ``inspect``, ``check`` and the plans make of a folder, as JSON too."""
    for document in (inspect_draft(folder), check_draft(folder)):
        json.dumps(document.model_dump(mode="json"), allow_nan=False)
    back = plan_to_speculators(folder, verifier="owner/name", keep_verifier_weights=True)
    for plan in (plan_to_dense(folder).plan, back.plan):
        json.dumps(plan.model_dump(mode="json"), allow_nan=False)


def _header(random_: random.Random, folder: Path) -> Case:
    document, data = _split(random_.choice(WHOLE) / "model.safetensors")
    text = mutated(random_, document) if random_.random() < 0.8 else b'{"a":' + b"[" * 100
    content = with_header(text, data)
    if random_.random() < 0.2:
        content = damaged(random_, content[:4096]) + content[4096:]
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return Case(content[:100_000], partial(read_header, path))


def _config(random_: random.Random, folder: Path) -> Case:
    draft = _copy_of(random_.choice(DRAFTS), folder)
    data = mutated(random_, _document(draft / "config.json"))
    (draft / "config.json").write_bytes(data)
    return Case(data, partial(_read_draft, draft))


def _tensors(random_: random.Random, folder: Path) -> Case:
    """Names, shapes and dtypes that do not fit the config; sizes that fit the file."""
    source = random_.choice(WHOLE)
    draft = _copy_of(source, folder)
    header, data = _split(source / "model.safetensors")
    header = json.loads(json.dumps(header))
    names = [name for name in header if name != "__metadata__"]
    for _ in range(random_.choice((1, 2))):
        name = random_.choice(names)
        entry = header[name]
        kind = random_.randrange(4)
        if kind == 0:
            header[random_.choice(names) + random_.choice(("", "x", "_scale"))] = header.pop(name)
            names = [name for name in header if name != "__metadata__"]
        elif kind == 1:
            entry["shape"] = entry["shape"][::-1]
        elif kind == 2:
            entry["shape"] = [1, *entry["shape"]]
        else:
            swaps = {"BF16": "F16", "F32": "I32", "I64": "F64", "BOOL": "U8", "F16": "BF16"}
            entry["dtype"] = swaps.get(entry["dtype"], entry["dtype"])
    text = json.dumps(header).encode()
    (draft / "model.safetensors").write_bytes(with_header(text, data))
    return Case(text, partial(_read_draft, draft))


def _index(random_: random.Random, folder: Path) -> Case:
    draft = _copy_of(GOLDEN / "spec_rnn_full_anchor_sharded_bf16" / "checkpoint", folder)
    path = draft / "model.safetensors.index.json"
    data = mutated(random_, _document(path))
    path.write_bytes(data)
    return Case(data, partial(_read_draft, draft))


def _settings(random_: random.Random, folder: Path) -> Case:
    values = [json.dumps(value) for value in ODD_VALUES] + list(ODD_TEXTS)
    keys = [*settable_fields(), "", "layout", "x.y"]
    pairs = [
        f"{random_.choice(keys)}={random_.choice(values)}" for _ in range(random_.choice((1, 1, 3)))
    ]
    layout = random_.choice((None, "anchor-first", "bonus-anchor"))
    d2t = random_.choice((None, "offsets", "absolute"))
    draft = random_.choice(DRAFTS)

    def read() -> None:
        conversion = plan_to_dense(draft, overrides=parse_overrides(layout, d2t, pairs))
        json.dumps(conversion.plan.model_dump(mode="json"), allow_nan=False)

    return Case("\n".join(pairs).encode("utf-8", "surrogatepass"), read)


@lru_cache
def _converted(folder: Path) -> Any:
    run_conversion(plan_to_dense(WHOLE[-1]), folder / "converted")
    return _document(folder / "converted" / MANIFEST_FILE)


def _manifest(random_: random.Random, folder: Path) -> Case:
    document = _converted(folder)
    draft = _copy_of(folder / "converted", folder)
    data = mutated(random_, document)
    (draft / MANIFEST_FILE).write_bytes(data)
    again = partial(plan_to_speculators, draft, verifier="owner/name", keep_verifier_weights=True)
    return Case(data, again)


def _report(random_: random.Random, folder: Path) -> Case:
    path = folder / "report.json"
    document = make_report(random_.choice(("draft", "<b>", "\u202e"))).model_dump(mode="json")
    data = mutated(random_, document)
    path.write_bytes(data)

    def read() -> None:
        found = read_report(path)
        render_junit(found)
        render_markdown(found)

    return Case(data, read)


def _diagnosis(random_: random.Random, folder: Path) -> Case:
    path = folder / "diagnosis.json"
    data = mutated(random_, {"schema_version": 1, "verdict": "healthy", "hypotheses": [{}]})
    path.write_bytes(data)
    return Case(data, partial(read_diagnosis, path))


def _gate(random_: random.Random, folder: Path) -> Case:
    lines = (
        *("min_accepted_length = 2.5", "min_accepted_length = nan", "min_acceptance = [0.5, inf]"),
        *('required_checks = ["parity"]', 'required_checks = ["x"]', "required_checks = 3"),
        *("[prompt_sets.a]", '[prompt_sets."\\u0000"]', 'prompts = "../x"', 'trace = "a\\u0000b"'),
        *('[baseline]\nreport = "base.json"\nmax_drop = 0.1', "max_drop = -1", "a = 1979-05-27"),
        *("x = [[[[1]]]]", "a.b.c = 1", "a = '''", "= 1", "\u0000", "min_accepted_length = 1e999"),
    )
    text = "\n".join(random_.sample(lines, random_.randrange(1, 5)))
    data = text.encode()
    if random_.random() < 0.3:
        data = damaged(random_, data)
    path = folder / "dspark.toml"
    path.write_bytes(data)
    return Case(data, partial(open_gate, path, random_.choice((None, None, "a"))))


def _prompts(random_: random.Random, folder: Path) -> Case:
    lines: list[dict[str, Any]] = [
        {"id": "a", "prompt": "Once upon a time"},
        {"id": 1, "prompt_token_ids": [1, 2, 3]},
        {"messages": [{"role": "user", "content": "x"}], "response": "y"},
        {"turns": ["x", "y"]},
    ]
    data = b"\n".join(mutated(random_, random_.choice(lines)) for _ in range(random_.randrange(4)))
    path = folder / random_.choice(("prompts.jsonl", "prompts.txt"))
    path.write_bytes(data)
    return Case(data, partial(read_prompts, path))


def _card(random_: random.Random, folder: Path) -> Case:
    lines = random_.sample(YAML_LINES, random_.randrange(4))
    text = CARD if random_.random() < 0.3 else "---\n" + "\n".join(lines) + "\n---\n# x\n"
    data = text.encode("utf-8", "surrogatepass")
    if random_.random() < 0.3:
        data = damaged(random_, data)
    wanted = {"base_model": "a/b", "tags": ("dspark", "speculative-decoding")}
    text = data.decode("utf-8", "replace")
    return Case(data, lambda: with_front_matter(text, wanted).encode())


def _answer(random_: random.Random, folder: Path) -> Case:
    """What a Hub says about a repository."""
    large = {"sha256": "b" * 64, "size": 5, "pointerSize": 130}
    files = [
        {"rfilename": "config.json", "size": 2, "blobId": "0" * 40},
        {"rfilename": "model.safetensors", "size": 5, "blobId": "1" * 40, "lfs": large},
    ]
    data = mutated(random_, {"id": "owner/name", "sha": "a" * 40, "siblings": files})
    if random_.random() < 0.2:
        data = damaged(random_, data)

    def read() -> None:
        with hub_refusals("owner/name"):
            repository = listed(parse_answer(data))
        for name, file in repository.files.items():
            assert Path(name).name == name
            assert len(name.encode()) < 256
            assert isinstance(file.size, int)

    return Case(data, read)


@lru_cache
def _trace_of(folder: Path) -> Path:
    path = folder / "honest.safetensors"
    write_trace(path, make_header())
    return path


def _trace(random_: random.Random, folder: Path) -> Case:
    """The header of the trace is damaged, or some numbers, or some bytes."""
    honest = _trace_of(folder)
    header, data = _split(honest)
    header = json.loads(json.dumps(header))
    kind = random_.randrange(3)
    if kind == 0:
        inner = json.loads(header["__metadata__"]["dspark_trace"])
        header["__metadata__"]["dspark_trace"] = mutated(random_, inner).decode("utf-8", "replace")
    if kind == 1:
        at = random_.randrange(len(data) - 8)
        odd = struct.pack("<f", random_.choice((float("nan"), float("inf"), -1.0, 5.0, 1e-30)))
        data = data[:at] + odd + data[at + 4 :]
    content = with_header(json.dumps(header).encode(), data)
    if kind == 2:
        content = damaged(random_, content)
    path = folder / "trace.safetensors"
    path.write_bytes(content)

    def read() -> None:
        trace = open_trace(path)
        for sequence in trace:
            sequence.features_of(trace.header.layer_ids)

    return Case(content, read)


def _tokenizer(random_: random.Random, folder: Path) -> Case:
    from dspark_convert.traces.prompts import Prompt, encode_prompts
    from dspark_convert.traces.tokenizer import load_tokenizer

    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(TINY / "target" / name, place)
    name = random_.choice(("tokenizer.json", "tokenizer_config.json"))
    data = mutated(random_, _document(TINY / "target" / name))
    (place / name).write_bytes(data)
    prompts = [Prompt("a", text="x = 1"), Prompt("b", messages=({"role": "user", "content": "x"},))]

    def read() -> None:
        tokenizer = load_tokenizer(place)
        encode_prompts(prompts[: random_.choice((1, 2))], tokenizer)

    return Case(data, read)


def _target(random_: random.Random, folder: Path) -> Case:
    import torch

    from dspark_convert.formats.target import find_target_weights
    from dspark_convert.runtime.load_target import load_target

    place = folder / "target"
    if not place.exists():
        shutil.copytree(TINY / "target", place)
    data = mutated(random_, _document(TINY / "target" / "config.json"))
    (place / "config.json").write_bytes(data)

    def read() -> None:
        find_target_weights(place)
        session = load_target(place).start([0])
        session.prefill(torch.tensor([[1, 2, 3]]), [3])

    return Case(data, read)


_PREPARED: Mapping[str, Callable[[random.Random, Path], Case]] = {
    "header": _header,
    "config": _config,
    "tensors": _tensors,
    "index": _index,
    "settings": _settings,
    "manifest": _manifest,
    "report": _report,
    "diagnosis": _diagnosis,
    "gate": _gate,
    "prompts": _prompts,
    "card": _card,
    "answer": _answer,
    "trace": _trace,
    "tokenizer": _tokenizer,
    "target": _target,
}
READERS: Mapping[str, Reader] = {name: Reader(name, prepare) for name, prepare in _PREPARED.items()}
