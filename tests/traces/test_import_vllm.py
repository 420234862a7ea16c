"""vLLM's files become the trace that a recording of the same texts gives, or are refused."""

from __future__ import annotations

import fcntl
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dspark_convert.cli.verify import app
from dspark_convert.errors import CheckpointError, DSparkError, OutputError, TraceError, UsageError
from dspark_convert.formats.target import find_target_weights
from dspark_convert.runtime import SamplingOptions
from dspark_convert.traces import target_head
from dspark_convert.traces.import_vllm import ImportOptions, import_vllm
from dspark_convert.traces.plan import choose_stop_token_ids, read_pair
from dspark_convert.traces.record import record
from dspark_convert.traces.trace import Trace, open_trace, require_draft
from tests.runtime.helpers import golden_target

from .helpers import FULL, PROMPTS, VERIFIER, record_options

LIMIT = 10


@dataclass
class Extracts:
    """A folder as vLLM leaves it, and the trace of the same texts."""

    folder: Path
    lengths: Path
    trace: Trace

    def options(self, **changes: Any) -> ImportOptions:
        values: dict[str, Any] = {
            "folder": self.folder,
            "target": VERIFIER,
            "draft": FULL,
            "output": self.folder.parent / "imported.safetensors",
            "text_origin": "greedy",
            "layers": tuple(layer_id + 1 for layer_id in self.trace.header.layer_ids),
            "prompt_lengths": self.lengths,
            "stop_token_ids": frozenset(),
        }
        return ImportOptions(**{**values, **changes})

    def edit(self, name: str, **tensors: torch.Tensor | None) -> None:
        path = self.folder / f"{name}.safetensors"
        kept = {**load_file(path), **tensors}
        save_file({key: value for key, value in kept.items() if value is not None}, path)


def extract(folder: Path, **changes: Any) -> Extracts:
    """Record the verifier and write what vLLM would: ids, features, and nothing else."""
    options = record_options(folder, max_new_tokens=LIMIT, layers="all", **changes)
    record(options)
    trace, extracts = open_trace(options.output), folder / "extracts"
    extracts.mkdir()
    lengths = []
    for sequence in trace:
        tensors = {"hidden_states": sequence.features, "token_ids": sequence.token_ids}
        save_file(tensors, extracts / f"{sequence.id}.safetensors")
        (extracts / f"{sequence.id}.safetensors.lock").touch()
        lengths.append({"id": sequence.id, "prompt_length": sequence.first_generated})
    path = folder / "lengths.jsonl"
    path.write_text("\n".join(map(json.dumps, lengths)))
    return Extracts(extracts, path, trace)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Extracts:
    """Not to be changed: tests get copies."""
    return extract(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def extracts(recorded: Extracts, tmp_path: Path) -> Extracts:
    shutil.copytree(recorded.folder.parent, tmp_path, dirs_exist_ok=True)
    return replace(
        recorded,
        folder=tmp_path / recorded.folder.name,
        lengths=tmp_path / recorded.lengths.name,
    )


def refused(options: ImportOptions, code: str, error_type: type[DSparkError] = TraceError) -> str:
    with pytest.raises(error_type, match=code) as error:
        import_vllm(options)
    assert error.value.findings[0].code == code
    assert not options.output.exists()
    return str(error.value)


def test_the_import_equals_a_recording_but_for_log_p(extracts: Extracts) -> None:
    sizes: list[int] = []
    options = extracts.options()
    header, notes = import_vllm(options, on_size=sizes.append)
    trace, recorded = open_trace(options.output), extracts.trace
    assert trace.header == header
    assert notes == ()
    assert sizes == [sum(tensor.nbytes for tensor in load_file(options.output).values())]
    same = ("text_origin", "max_new_tokens", "extra_tokens", "layer_ids", "feature_dtype", "target")
    for key in same:
        assert getattr(header, key) == getattr(recorded.header, key), key
    assert (header.recorded_by, header.has_log_probs, header.top_log_probs) == ("vllm", False, 0)
    for found, wanted in zip(trace, recorded, strict=True):
        for name in ("token_ids", "features", "argmax_ids"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        torch.testing.assert_close(found.top2_gap, wanted.top2_gap, atol=1e-4, rtol=0)
        assert (found.id, found.first_generated) == (wanted.id, wanted.first_generated)
        assert found.log_probs is found.top_ids is None
    require_draft(trace, read_pair(FULL, VERIFIER).draft.config)
    assert trace.stand_ins().keys() == recorded.stand_ins().keys()


def test_layer_ids_are_vllms(extracts: Extracts) -> None:
    """Its id 0 is the embedding; the number of layers is the last layer's output."""
    wanted = extracts.options().layers
    assert wanted == (0, 1, 2, 3, 4)
    for name in ("p0", "p1", "p2"):
        states = load_file(extracts.folder / f"{name}.safetensors")["hidden_states"]
        extracts.edit(name, hidden_states=states[:, 1:4].contiguous())
    header, notes = import_vllm(extracts.options(layers=(3, 1, 2)))
    assert header.layer_ids == (0, 1, 2)
    assert [note.code for note in notes] == ["import-greedy-unchecked"]
    assert not header.has_argmax


def test_the_head_chooses_what_the_target_chooses() -> None:
    target = golden_target()
    session = target.start((3,))
    output = session.prefill(torch.tensor([PROMPTS[2]]), [7])
    whole = target.model(torch.tensor([PROMPTS[2]])).logits[0]
    head = target_head.load_target_head(find_target_weights(VERIFIER), torch.float32)
    chosen, gaps = head.choose(output.features[0])
    two = whole.topk(2).values
    assert torch.equal(chosen, whole.argmax(-1))
    torch.testing.assert_close(gaps, two[:, 0] - two[:, 1], atol=1e-4, rtol=0)


def test_a_given_text_needs_the_last_layer(extracts: Extracts) -> None:
    header, _ = import_vllm(extracts.options(text_origin="given"))
    assert (header.text_origin, header.has_argmax) == ("given", True)
    for name in ("p0", "p1", "p2"):
        states = load_file(extracts.folder / f"{name}.safetensors")["hidden_states"]
        extracts.edit(name, hidden_states=states[:, 1:4].contiguous())
    output = extracts.folder.parent / "other"
    message = refused(
        extracts.options(text_origin="given", layers=(1, 2, 3), output=output),
        "import-argmax-missing",
    )
    assert "argmax" in message


def test_a_sampled_text_is_not_taken_for_a_greedy_one(tmp_path: Path) -> None:
    extracts = extract(tmp_path, sampling=SamplingOptions(temperature=1.0))
    refused(extracts.options(), "import-text-not-greedy")
    import_vllm(extracts.options(text_origin="given"))


def test_wrong_prompt_lengths_show_in_the_choices(extracts: Extracts) -> None:
    """A prompt taken for a response is not what the target would have written."""
    refused(extracts.options(prompt_lengths=None, prompt_length=1), "import-text-not-greedy")


def test_a_stop_token_ends_a_text_and_makes_it_whole(extracts: Extracts) -> None:
    texts = [sequence.token_ids[sequence.first_generated :].tolist() for sequence in extracts.trace]
    stop = texts[0][2]
    header, _ = import_vllm(extracts.options(stop_token_ids=frozenset({stop})))
    lengths = [entry.num_tokens - entry.first_generated for entry in header.sequences]
    assert lengths == [
        text.index(stop) + 1 if stop in text else header.max_new_tokens + header.extra_tokens
        for text in texts
    ]
    assert len(list(open_trace(extracts.options().output))) == 3


def test_all_texts_ended_by_stop_tokens(extracts: Extracts) -> None:
    texts = [sequence.token_ids[sequence.first_generated :].tolist() for sequence in extracts.trace]
    stops = frozenset(text[3] for text in texts)
    header, _ = import_vllm(extracts.options(stop_token_ids=stops))
    lengths = [entry.num_tokens - entry.first_generated for entry in header.sequences]
    assert max(lengths) <= 4
    assert header.max_new_tokens == max(lengths)


def test_the_limit_is_what_every_text_is_long_enough_for(extracts: Extracts) -> None:
    sequence = extracts.trace[1]
    extracts.edit(
        "p1",
        hidden_states=sequence.features[:-3].contiguous(),
        token_ids=sequence.token_ids[:-3].contiguous(),
    )
    header, _ = import_vllm(extracts.options())
    assert header.max_new_tokens == LIMIT - 3
    again = extracts.options(output=extracts.folder.parent / "out")
    message = refused(replace(again, max_new_tokens=LIMIT - 2), "import-text-too-short")
    assert "p1.safetensors" in message
    lower, _ = import_vllm(replace(again, max_new_tokens=4))
    assert lower.max_new_tokens == 4


def test_a_file_that_vllm_still_writes_is_refused(extracts: Extracts) -> None:
    with (extracts.folder / "p1.safetensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = refused(extracts.options(), "import-still-writing")
        assert "p1.safetensors" in message
    import_vllm(extracts.options())


@pytest.mark.parametrize(
    ("edit", "tensor"),
    [
        ({"hidden_states": torch.zeros(15, 4, 64)}, "hidden_states"),
        ({"hidden_states": torch.zeros(15, 5, 63)}, "hidden_states"),
        ({"hidden_states": torch.zeros(15, 320)}, "hidden_states"),
        ({"hidden_states": torch.zeros(())}, "hidden_states"),
        ({"hidden_states": torch.zeros(15, 5, 64, dtype=torch.int32)}, "hidden_states"),
        ({"token_ids": torch.zeros(3, dtype=torch.int64)}, "token_ids"),
        ({"token_ids": torch.full((22,), 320)}, "token_ids"),
        ({"token_ids": None}, None),
        ({"log_probs": torch.zeros(3)}, None),
    ],
)
def test_files_that_do_not_fit_are_refused(
    extracts: Extracts, edit: dict[str, torch.Tensor | None], tensor: str | None
) -> None:
    extracts.edit("p0", **edit)
    with pytest.raises(TraceError) as error:
        import_vllm(extracts.options())
    (finding,) = error.value.findings
    assert (finding.code, finding.file) == ("import-file-invalid", "p0.safetensors")
    if tensor is not None:
        assert finding.tensor == tensor


def test_damaged_mixed_and_absent_files(extracts: Extracts) -> None:
    path = extracts.folder / "p0.safetensors"
    states = load_file(path)["hidden_states"]
    extracts.edit("p0", hidden_states=states.bfloat16())
    refused(extracts.options(), "import-dtypes-mixed")
    path.write_bytes(path.read_bytes()[:-10])
    refused(extracts.options(), "file-truncated", CheckpointError)
    empty = extracts.folder / "empty"
    empty.mkdir()
    refused(extracts.options(folder=empty), "import-empty")
    refused(extracts.options(folder=extracts.folder / "none"), "import-empty")


def test_the_output_may_not_lie_among_the_inputs(extracts: Extracts) -> None:
    output = extracts.folder / "trace.safetensors"
    refused(extracts.options(output=output), "output-protected", OutputError)


def test_nan_is_refused(extracts: Extracts) -> None:
    states = load_file(extracts.folder / "p2.safetensors")["hidden_states"]
    states[3, 2, 1] = float("nan")
    extracts.edit("p2", hidden_states=states)
    refused(extracts.options(), "trace-not-finite")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_stay_in_the_dtype_of_vllm(extracts: Extracts, dtype: torch.dtype) -> None:
    wanted = []
    for name in ("p0", "p1", "p2"):
        states = load_file(extracts.folder / f"{name}.safetensors")["hidden_states"].to(dtype)
        extracts.edit(name, hidden_states=states)
        wanted.append(states)
    header, _ = import_vllm(extracts.options())
    assert header.feature_dtype == str(dtype).removeprefix("torch.")
    for found, states in zip(open_trace(extracts.options().output), wanted, strict=True):
        assert torch.equal(found.features, states)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "import-prompt-length-unknown"),
        ('{"id": "p0", "prompt_length": 4}', "import-prompt-length-unknown"),
        ('{"id": "p0", "prompt_length": "4"}', "import-prompt-length-unknown"),
        ('{"id": "p0", "prompt_length": 0}', "import-prompt-length-unknown"),
        ('{"id": "p0", "prompt_length": true}', "import-prompt-length-unknown"),
        ('{"prompt_length": 4}', "import-prompt-length-unknown"),
        ("[]", "import-prompt-length-unknown"),
        ("{", "bad-json"),
        ('{"id": "p0", "prompt_length": 400}', "import-text-too-short"),
    ],
)
def test_prompt_lengths_must_be_known(extracts: Extracts, content: str, code: str) -> None:
    extracts.lengths.write_text(content)
    refused(extracts.options(), code, DSparkError)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt_lengths": None}, "prompt-length-missing"),
        ({"prompt_length": 3}, "prompt-length-missing"),
        ({"prompt_lengths": None, "prompt_length": 0}, "option-out-of-range"),
        ({"max_new_tokens": 0}, "option-out-of-range"),
        ({"layers": ()}, "option-out-of-range"),
        ({"stop_token_ids": frozenset({-3})}, "option-out-of-range"),
    ],
)
def test_options_without_a_meaning(extracts: Extracts, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        extracts.options(**changes)


def test_layers_of_the_draft_must_be_there(extracts: Extracts) -> None:
    refused(extracts.options(layers=(1, 2)), "layers-lack-draft", UsageError)
    refused(extracts.options(layers=(0, 1, 2, 3, 5)), "layers-unknown", UsageError)
    refused(extracts.options(max_bytes=100), "trace-too-large")


def test_stop_tokens_come_from_the_generation_config_else_the_config(tmp_path: Path) -> None:
    weights = find_target_weights(VERIFIER)
    assert choose_stop_token_ids(frozenset({7}), weights) == frozenset({7})
    assert choose_stop_token_ids(frozenset(), weights) == frozenset()
    assert choose_stop_token_ids(None, weights) == frozenset({1}) == golden_target().stop_token_ids
    for document, expected in (
        ({"eos_token_id": [4, 5]}, {4, 5}),
        ({"eos_token_id": None}, set()),
        ({}, set()),
        ([], set()),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        moved = replace(weights, checkpoint=replace(weights.checkpoint, folder=folder))
        assert choose_stop_token_ids(None, moved) == frozenset({1})
        (folder / "generation_config.json").write_text(json.dumps(document))
        assert choose_stop_token_ids(None, moved) == expected


def test_stop_tokens_of_a_multimodal_target_are_those_of_its_text_model(tmp_path: Path) -> None:
    weights = find_target_weights(VERIFIER)
    for outer in ({}, {"eos_token_id": None}):
        checkpoint = replace(weights.checkpoint, folder=tmp_path, config=outer)
        nested = replace(weights, checkpoint=checkpoint, config={"eos_token_id": [6]})
        assert choose_stop_token_ids(None, nested) == frozenset({6})


def test_a_target_without_a_plain_final_norm_is_refused(
    extracts: Extracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decoder:
        def get_decoder(self) -> Decoder:
            return self

    monkeypatch.setattr(
        target_head.AutoModelForCausalLM, "from_config", lambda config, **options: Decoder()
    )
    refused(extracts.options(), "target-head-unsupported")


def test_the_command(extracts: Extracts) -> None:
    out = extracts.folder.parent / "imported.safetensors"
    common = [
        *("import-vllm", extracts.folder, "--target", VERIFIER, "--for", FULL, "--out", out),
        *("--layers", "0,1,2,3,4", "--stop-token-ids", ""),
    ]

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(part) for part in (*common, *arguments)])

    done = run("--text-origin", "greedy", "--prompt-lengths", extracts.lengths, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == open_trace(out).header.model_dump(mode="json")
    assert "the trace takes at most" in done.stderr
    assert run("--text-origin", "greedy").exit_code == 2
    assert run("--text-origin", "sampled", "--prompt-length", 3).exit_code == 2
    assert run("--text-origin", "greedy", "--prompt-lengths", extracts.lengths).exit_code == 3
