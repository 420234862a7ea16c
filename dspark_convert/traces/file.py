"""One file of a trace: names, dtypes and shapes of its tensors, and a header checked against them.

Shapes: T tokens of a text, P of its prompt, K largest probabilities, L layers, H target hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from dspark_convert.checkpoint.dtypes import FLOAT_CODES, FLOATS
from dspark_convert.checkpoint.header import TensorEntry, read_header
from dspark_convert.checkpoint.jsonfile import parse_json
from dspark_convert.errors import CheckpointError, Finding, Findings, TraceError
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.trace import TraceHeader, TraceSequenceEntry

METADATA_KEY = "dspark_trace"

RECORD_AGAIN = "record the trace again, or copy it again"

_MAX_FINDINGS = 20


@dataclass(frozen=True)
class TraceFile:
    """One file whose header was checked against its tensors."""

    path: Path
    header: TraceHeader
    stamp: tuple[int, ...]
    """Which file it was: device, inode, size, and time of the last change in nanoseconds."""

    @contextmanager
    def mapped(self) -> Iterator[Any]:
        """The safetensors library's view of the file that was opened.

        Raises ``CheckpointError`` (``file-changed``) when another file has taken its place.
        """
        try:
            with safe_open(self.path, framework="pt") as stored:
                if _stamp(self.path) != self.stamp:
                    raise _changed(self.path)
                yield stored
        except (OSError, SafetensorError) as error:
            raise _changed(self.path) from error


def open_trace_file(path: Path) -> TraceFile:
    """Read the header of one file and check it; see ``trace.open_trace`` for what it raises."""
    stored = read_header(path)
    stamp = _stamp(path)
    if METADATA_KEY not in stored.metadata:
        raise trace_error(
            "trace-foreign",
            "this safetensors file is not a trace",
            file=path.name,
            key=METADATA_KEY,
            hint="make one with dspark-verify record or import-vllm",
        )
    header = _parse_header(stored.metadata[METADATA_KEY], path.name)
    _check_inventory(header, stored.entries, path.name)
    return TraceFile(path, header, stamp)


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="file-changed",
            message="the trace was replaced or changed while it was in use",
            file=path.name,
            hint="run again when nothing writes to it",
        )
    )


def sequence_prefix(index: int) -> str:
    """The prefix of the tensor names of one sequence."""
    return f"seq.{index:05d}."


def sequence_tensors(
    header: TraceHeader, entry: TraceSequenceEntry
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name, dtype (as safetensors calls it) and shape of the tensors of one sequence."""
    length, layers, hidden = entry.num_tokens, len(header.layer_ids), header.target.hidden_size
    generated, largest = length - entry.first_generated, header.top_log_probs
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_ids": ("I64", (length,)),
        "features": (FLOAT_CODES[header.feature_dtype], (length, layers, hidden)),
    }
    if header.has_log_probs:
        tensors["log_probs"] = ("F32", (generated,))
    if header.has_argmax:
        tensors["argmax_ids"] = ("I64", (generated,))
        tensors["top2_gap"] = ("F32", (generated,))
    if largest:
        tensors["top_ids"] = ("I32", (generated, largest))
        tensors["top_log_probs"] = ("F32", (generated, largest))
        tensors["tail_mass"] = ("F32", (generated,))
    return tensors


def trace_error(code: str, message: str, **where: Any) -> TraceError:
    """A refusal with one finding; ``where`` holds its further fields."""
    return TraceError(Finding(code=code, message=message, **where))


def not_finite(
    what: str, sequence_id: str, hint: str = "run the target in bfloat16 or float32"
) -> TraceError:
    """The refusal of a target that overflowed, or of a trace that holds what no target says."""
    return trace_error(
        "trace-not-finite",
        f"the target's {what} of sequence {sequence_id} hold NaN or infinity",
        hint=hint,
    )


def _parse_header(text: str, file: str) -> TraceHeader:
    document = parse_json(text.encode("utf-8", "surrogatepass"), file=file)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > 1:
        raise trace_error(
            "trace-version-unsupported",
            "the trace was written by a newer version of this tool",
            file=file,
            expected="schema_version 1",
            found=str(version),
            hint="update dspark-convert",
        )
    try:
        return TraceHeader.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise trace_error(
            "trace-header-invalid",
            f"this is not the header of a trace: {first['msg']}",
            file=file,
            key=".".join(map(str, first["loc"]))[:120] or None,
            hint=RECORD_AGAIN,
        ) from None


def _check_inventory(header: TraceHeader, stored: Sequence[TensorEntry], file: str) -> None:
    """Check that the file has exactly the tensors that its header announces."""
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    for index, entry in enumerate(header.sequences):
        for name, spec in sequence_tensors(header, entry).items():
            wanted[sequence_prefix(index) + name] = spec
    flags = {EMBEDDING: header.has_embedding, LM_HEAD: header.has_lm_head}
    borrowed = {name for name, present in flags.items() if present}
    found = {entry.name: entry for entry in stored}
    findings = Findings()
    for name in [*wanted, *sorted(borrowed)]:
        if name not in found:
            _report(findings, "trace-tensor-missing", "the header announces it", file, name)
    for name, tensor in found.items():
        if name in borrowed:
            _check_borrowed(tensor, header, file, findings)
        elif name not in wanted:
            _report(findings, "trace-tensor-unexpected", "the header lacks it", file, name)
        elif (tensor.dtype, tensor.shape) != wanted[name]:
            text = "it is not what the header says"
            expected = _describe(*wanted[name])
            _report(findings, "trace-tensor-mismatch", text, file, name, expected, tensor)
    if errors := findings.of("error"):
        raise TraceError(*errors[:_MAX_FINDINGS])


def _check_borrowed(
    tensor: TensorEntry, header: TraceHeader, file: str, findings: Findings
) -> None:
    hidden = header.target.hidden_size
    if tensor.dtype not in FLOATS or len(tensor.shape) != 2 or tensor.shape[1] != hidden:
        text = "it cannot be a matrix of the target"
        expected = f"a float dtype [rows, {hidden}]"
        _report(findings, "trace-tensor-mismatch", text, file, tensor.name, expected, tensor)


def _report(
    findings: Findings,
    code: str,
    text: str,
    file: str,
    tensor: str,
    expected: str | None = None,
    found: TensorEntry | None = None,
) -> None:
    findings.error(
        code,
        f"a tensor does not fit the header of the trace: {text}",
        file=file,
        tensor=tensor,
        expected=expected,
        found=None if found is None else _describe(found.dtype, found.shape),
        hint=RECORD_AGAIN,
    )


def _describe(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype} {list(shape)}"
