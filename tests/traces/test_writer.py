"""Traces as they are written: whole, or not at all."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dspark_convert.checkpoint.interrupts import Interrupted
from dspark_convert.errors import OutputError, TraceError
from dspark_convert.formats.target import find_target_weights
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.traces.file import METADATA_KEY
from dspark_convert.traces.trace import open_trace
from dspark_convert.traces.writer import staged_trace, trace_nbytes

from .helpers import VERIFIER, assert_same, header_document, make_header, make_sequence, write_trace


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    hidden=st.integers(1, 5),
    largest=st.integers(0, 5),
    argmax=st.booleans(),
    log_probs=st.booleans(),
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=4),
)
def test_the_file_is_what_the_safetensors_library_writes(
    tmp_path: Path,
    dtype: str,
    hidden: int,
    largest: int,
    argmax: bool,
    log_probs: bool,
    lengths: list[tuple[int, int]],
) -> None:
    path, other = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    path.unlink(missing_ok=True)
    header = make_header(
        target={**header_document()["target"], "hidden_size": hidden},
        feature_dtype=dtype,
        top_log_probs=largest,
        top_temperature=1.0 if largest else None,
        has_argmax=argmax,
        has_log_probs=log_probs,
        sequences=[
            {"id": str(index), "num_tokens": prompt + text, "first_generated": prompt}
            for index, (prompt, text) in enumerate(lengths)
        ],
    )
    written = write_trace(path, header)
    for found, wanted in zip(open_trace(path), written, strict=True):
        assert_same(found, wanted)
    save_file(load_file(path), other, {METADATA_KEY: header.model_dump_json()})
    assert path.read_bytes() == other.read_bytes()
    data = sum(tensor.nbytes for tensor in load_file(path).values())
    assert trace_nbytes(header, {}) == data


def test_the_writer_keeps_no_sequence(path: Path) -> None:
    header = make_header()
    with staged_trace(path, header, {}, overwrite=False) as writer:
        sequence = make_sequence(header, header.sequences[0])
        features = weakref.ref(sequence.features)
        writer.add(sequence)
        del sequence
        gc.collect()
        assert features() is None


def test_borrowed_tensors_are_the_bytes_of_the_target(path: Path) -> None:
    weights = find_target_weights(VERIFIER)
    borrowed = {EMBEDDING: weights.embed_tokens, LM_HEAD: weights.lm_head}
    header = make_header(
        target={**header_document()["target"], "hidden_size": 64},
        has_embedding=True,
        has_lm_head=True,
        feature_dtype="bfloat16",
    )
    with staged_trace(path, header, borrowed, overwrite=False) as writer:
        for entry in header.sequences:
            writer.add(make_sequence(header, entry))
    trace, stored = open_trace(path), load_file(VERIFIER / "model.safetensors")
    embedding, lm_head = trace.embedding(), trace.lm_head()
    assert embedding is not None
    assert lm_head is not None
    assert torch.equal(embedding, stored["model.embed_tokens.weight"])
    assert torch.equal(lm_head, stored["lm_head.weight"])
    assert trace.stand_ins().keys() == {EMBEDDING, LM_HEAD}
    assert trace_nbytes(header, borrowed) == sum(t.nbytes for t in load_file(path).values())


# What goes wrong while writing


def test_after_an_error_nothing_is_left(tmp_path: Path, path: Path) -> None:
    header = make_header()

    def break_off() -> None:
        with staged_trace(path, header, {}, overwrite=False) as writer:
            writer.add(make_sequence(header, header.sequences[0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_writing_and_leaves_nothing(tmp_path: Path, path: Path) -> None:
    header = make_header()

    def be_told_to_end() -> None:
        with staged_trace(path, header, {}, overwrite=False) as writer:
            writer.add(make_sequence(header, header.sequences[0]))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        be_told_to_end()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_needs_overwrite_and_must_be_a_trace(path: Path) -> None:
    header = make_header()
    write_trace(path, header)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="output-exists"):
        write_trace(path, header)
    assert path.read_bytes() == before
    shorter = make_header(sequences=header_document()["sequences"][:1])
    with staged_trace(path, shorter, {}, overwrite=True) as writer:
        writer.add(make_sequence(shorter, shorter.sequences[0]))
    assert len(open_trace(path)) == 1
    for content in (b"notes", (VERIFIER / "model.safetensors").read_bytes()):
        path.write_bytes(content)
        with (
            pytest.raises(OutputError, match="output-not-ours"),
            staged_trace(path, header, {}, overwrite=True),
        ):
            pass
        assert path.read_bytes() == content


def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path, path: Path) -> None:
    header = make_header()

    def interfere() -> None:
        with staged_trace(path, header, {}, overwrite=False) as writer:
            for entry in header.sequences:
                writer.add(make_sequence(header, entry))
            path.write_text("mine")

    with pytest.raises(OutputError, match="output-exists"):
        interfere()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "mine"


def test_two_runs_cannot_write_one_output(tmp_path: Path, path: Path) -> None:
    with (tmp_path / f".{path.name}.dspark-tmp-0badcafe").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="output-busy"):
            write_trace(path, make_header())
    write_trace(path, make_header())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert len(open_trace(path)) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_target_that_overflowed_is_refused(tmp_path: Path, path: Path, bad: float) -> None:
    header = make_header()
    sequence = make_sequence(header, header.sequences[0])
    sequence.features[2, 1, 3] = bad
    with (
        pytest.raises(TraceError, match="trace-not-finite"),
        staged_trace(path, header, {}, overwrite=False) as writer,
    ):
        writer.add(sequence)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_and_full_disk(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputError, match="output-parent-missing"):
        write_trace(tmp_path / "no" / "trace.safetensors", make_header())
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(OutputError, match="disk-full"):
        write_trace(path, make_header())
