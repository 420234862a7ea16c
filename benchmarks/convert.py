"""Speed and memory of a conversion, against copying the same files.

    python benchmarks/convert.py [--gib 4] [--runs 5] [--folder build/benchmark]

Builds a synthetic speculators draft of the size asked, once in one file and once in shards, then
alternates ``dspark-convert to-dense`` with the baseline, a ``cp -r`` of the same folder followed by
an fsync of each file. Prints medians over all runs; nothing is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

STARTUP_ALLOWANCE = 0.5  # seconds of a conversion that are not held against it
SHARD_BYTES = 1 << 30
BLOCK = 1 << 20  # bytes of randomness, repeated; small, as a child inherits our peak memory
LIBRARIES = "import typer, rich, pydantic"
TARGET_VOCABULARY, DRAFT_VOCABULARY = 151_936, 32_000
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, RANK, FEATURES = 4096, 12_288, 32, 8, 128, 256, 5
WIDTH = {"BF16": 2, "I64": 8, "BOOL": 1}

Shapes = dict[str, tuple[str, tuple[int, ...]]]


# The synthetic draft -------------------------------------------------------------------------


def layer_shapes(layer: int) -> Shapes:
    """One decoder layer with the sizes of Qwen3-8B."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "input_layernorm": (HIDDEN,),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.k_norm": (HEAD_DIM,),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
    }
    return {f"layers.{layer}.{name}.weight": ("BF16", shape) for name, shape in shapes.items()}


def shared_shapes() -> Shapes:
    """Everything but the layers; the vocabulary is reduced."""
    return {
        "confidence_head.proj.bias": ("BF16", (1,)),
        "confidence_head.proj.weight": ("BF16", (1, HIDDEN + RANK)),
        "d2t": ("I64", (DRAFT_VOCABULARY,)),
        "fc.weight": ("BF16", (HIDDEN, FEATURES * HIDDEN)),
        "hidden_norm.weight": ("BF16", (HIDDEN,)),
        "lm_head.weight": ("BF16", (DRAFT_VOCABULARY, HIDDEN)),
        "markov_head.markov_w1.weight": ("BF16", (TARGET_VOCABULARY, RANK)),
        "markov_head.markov_w2.weight": ("BF16", (DRAFT_VOCABULARY, RANK)),
        "norm.weight": ("BF16", (HIDDEN,)),
        "t2d": ("BOOL", (TARGET_VOCABULARY,)),
    }


def nbytes(shapes: Shapes) -> int:
    """Bytes of all tensors."""
    return sum(WIDTH[dtype] * math.prod(shape) for dtype, shape in shapes.values())


def draft_shapes(size: int) -> tuple[Shapes, int]:
    """The tensors of a draft of about ``size`` bytes, and its number of layers."""
    shapes = shared_shapes()
    layers = max(1, round((size - nbytes(shapes)) / nbytes(layer_shapes(0))))
    for layer in range(layers):
        shapes |= layer_shapes(layer)
    return shapes, layers


def draft_config(layers: int) -> dict[str, object]:
    """A config as speculators writes it, anchor-first."""
    return {
        "architectures": ["DSparkDraftModel"],
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
        "block_size": 7,
        "confidence_head_with_markov": True,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "dtype": "bfloat16",
        "enable_confidence_head": True,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": TARGET_VOCABULARY - 267,
        "sample_from_anchor": True,
        "speculators_config": {
            "algorithm": "dspark",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        },
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "transformer_layer_config": {
            "attention_bias": False,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "layer_types": ["full_attention"] * layers,
            "max_position_embeddings": 40_960,
            "model_type": "qwen3",
            "num_attention_heads": HEADS,
            "num_hidden_layers": layers,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
            "vocab_size": TARGET_VOCABULARY,
        },
    }


def tensor_data(name: str, size: int, block: bytes) -> Iterator[bytes]:
    """Random bytes, but for the tables: draft ids are the first target ids."""
    if name == "d2t":
        block = bytes(BLOCK)
    elif name == "t2d":
        yield b"\1" * DRAFT_VOCABULARY
        size, block = size - DRAFT_VOCABULARY, bytes(BLOCK)
    for _ in range(size // BLOCK):
        yield block
    yield block[: size % BLOCK]


def write_weights(path: Path, shapes: Shapes, block: bytes) -> None:
    """One safetensors file, its data really allocated and flushed."""
    names = sorted(shapes, key=lambda name: (-WIDTH[shapes[name][0]], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + nbytes({name: shapes[name]})
        dtype, shape = shapes[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.writelines(tensor_data(name, nbytes({name: shapes[name]}), block))
        file.flush()
        os.fsync(file.fileno())


def split(shapes: Shapes) -> list[Shapes]:
    """Tensors in their order, cut into shards of ``SHARD_BYTES`` at most."""
    shards: list[Shapes] = [{}]
    for name, spec in shapes.items():
        if nbytes({**shards[-1], name: spec}) > SHARD_BYTES and shards[-1]:
            shards.append({})
        shards[-1][name] = spec
    return shards


def build_draft(folder: Path, size: int, *, sharded: bool) -> int:
    """Write the draft; the number of bytes of its tensors."""
    shapes, layers = draft_shapes(size)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(draft_config(layers), indent=2))
    block = os.urandom(BLOCK)
    if not sharded:
        write_weights(folder / "model.safetensors", shapes, block)
        return nbytes(shapes)
    shards = split(shapes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_weights(folder / file, shard, block)
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": nbytes(shapes)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return nbytes(shapes)


# Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Wall time in seconds and peak resident memory in MB (10**6 bytes) of one process."""

    wall: float
    peak: float


def environment() -> dict[str, str]:
    """Ours, but byte code is kept, as it is in an installed package."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def run(*command: str) -> Run:
    """Run a command, which must succeed; its output is thrown away."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(wall, usage.ru_maxrss * unit / 1e6)


def program() -> str:
    """The ``dspark-convert`` that belongs to this interpreter."""
    found = shutil.which("dspark-convert", path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit("dspark-convert is not installed beside this Python")
    return found


def convert(source: Path, output: Path) -> Run:
    """Convert ``source``."""
    return run(program(), "to-dense", str(source), str(output), "--quiet")


def copy(source: Path, output: Path) -> Run:
    """``cp -r`` and an fsync of each file."""
    start = time.perf_counter()
    copied = run("cp", "-r", str(source), str(output))
    for path in output.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return Run(time.perf_counter() - start, copied.peak)


def alternate(source: Path, output: Path, runs: int) -> tuple[list[Run], list[Run]]:
    """``runs`` conversions and as many copies, one after the other; outputs are removed untimed."""
    conversions: list[Run] = []
    copies: list[Run] = []
    for _ in range(runs):
        for measure, results in ((convert, conversions), (copy, copies)):
            results.append(_once(measure, source, output))
            print(f"  {measure.__name__:8} {results[-1].wall:7.2f} s", file=sys.stderr)
    return conversions, copies


def _once(measure: Callable[[Path, Path], Run], source: Path, output: Path) -> Run:
    os.sync()  # what earlier runs left to be written must not be paid for by this one
    try:
        return measure(source, output)
    finally:
        shutil.rmtree(output, ignore_errors=True)
        os.sync()


def median(runs: list[Run]) -> float:
    """Median wall time in seconds."""
    return statistics.median(result.wall for result in runs)


def report_conversion(name: str, size: int, conversions: list[Run], copies: list[Run]) -> None:
    """One row of the table."""
    ratio = (median(conversions) - STARTUP_ALLOWANCE) / median(copies)
    peak = max(result.peak for result in conversions)
    spread = "-".join(f"{wall:.2f}" for wall in _extremes(conversions))
    copied = "-".join(f"{wall:.2f}" for wall in _extremes(copies))
    print(
        f"| {name} | {size / 2**30:.2f} | {median(conversions):.2f} ({spread}) "
        f"| {median(copies):.2f} ({copied}) | {ratio:.2f} | {peak:.0f} |"
    )


def _extremes(runs: list[Run]) -> tuple[float, float]:
    walls = [result.wall for result in runs]
    return min(walls), max(walls)


def report_startup(runs: int) -> None:
    """Time of ``--help`` against importing the libraries that it needs, and what it imports."""
    helps: list[Run] = []
    imports: list[Run] = []
    for _ in range(runs + 1):
        helps.append(run(program(), "--help"))
        imports.append(run(sys.executable, "-c", LIBRARIES))
    shown, imported = median(helps[1:]), median(imports[1:])  # the first warms the page cache
    probe = "import sys, dspark_convert.cli.convert; sys.exit('torch' in sys.modules)"
    torch = subprocess.run([sys.executable, "-c", probe]).returncode
    print("\n| `--help`, s | libraries, s | ratio | torch imported |\n| --- | --- | --- | --- |")
    print(
        f"| {shown:.3f} | {imported:.3f} | {shown / imported:.2f} | {'yes' if torch else 'no'} |\n"
    )


def main() -> None:
    """Build, measure, print, remove."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the draft")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmark"), help="made anew")
    arguments = parser.parse_args()
    size = int(arguments.gib * 2**30)
    work: Path = arguments.folder
    work.mkdir(parents=True)
    try:
        if shutil.disk_usage(work).free < 2.5 * size:
            raise SystemExit(f"{2.5 * arguments.gib:.0f} GiB of free space are needed")
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        report_startup(4 * arguments.runs)
        print("| draft | GiB | convert, s | copy, s | ratio | peak, MB |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name, sharded in (("one file", False), ("shards", True)):
            source = work / "source"
            written = build_draft(source, size, sharded=sharded)
            report_conversion(name, written, *alternate(source, work / "output", arguments.runs))
            shutil.rmtree(source)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
