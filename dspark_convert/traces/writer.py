"""Write a trace: streamed to disk one sequence at a time, and put in place whole or not at all.

The header of a safetensors file comes first and states every length, which is not known while texts
are generated. So tensors go to nameless temporary files, one per dtype, and at the end are copied
behind their header, in the order in which the safetensors library lays out a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from dspark_convert.checkpoint.files import open_regular
from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.header import (
    layout_entries,
    read_header,
    render_header,
    tensor_nbytes,
)
from dspark_convert.checkpoint.placement import (
    check_place,
    check_space,
    os_errors_refused,
)
from dspark_convert.checkpoint.staged_file import staged_file
from dspark_convert.checkpoint.transfer import copy_range, write_at
from dspark_convert.errors import DSparkError, Finding, OutputError
from dspark_convert.runtime.dtypes import torch_dtype
from dspark_convert.schemas.trace import TraceHeader, TraceSequenceEntry
from dspark_convert.traces.file import (
    METADATA_KEY,
    not_finite,
    open_trace_file,
    sequence_prefix,
    sequence_tensors,
)
from dspark_convert.traces.trace import TraceSequence


def trace_nbytes(header: TraceHeader, borrowed: Mapping[str, StoredTensor]) -> int:
    """Bytes of the tensors of a trace, without its header."""
    sizes = [
        tensor_nbytes(dtype, shape)
        for entry in header.sequences
        for dtype, shape in sequence_tensors(header, entry).values()
    ]
    return sum(size or 0 for size in sizes) + sum(tensor.nbytes for tensor in borrowed.values())


@contextmanager
def staged_trace(
    output: Path,
    plan: TraceHeader,
    borrowed: Mapping[str, StoredTensor],
    *,
    overwrite: bool,
    protected: Sequence[Path] = (),
) -> Iterator[TraceWriter]:
    """Yield a writer whose trace appears at ``output`` when the block ends well.

    ``plan`` is the header with each sequence at its greatest length; ``borrowed`` holds the
    target's tensors that drafts may borrow, by canonical name. After an exception or a signal
    ``output`` is as it was. An existing ``output`` is replaced only with ``overwrite``, and only if
    it is a trace; it may not lie in a ``protected`` folder. On disk, the trace takes twice its size
    while it is assembled.

    Raises ``OutputError``: ``output-parent-missing``, ``output-protected``, ``output-exists``,
    ``output-not-ours``, ``output-busy``, ``output-not-writable``, ``disk-full``. Signals are as in
    ``checkpoint.staging``.
    """
    needed = 2 * trace_nbytes(plan, borrowed)
    with os_errors_refused(output, needed):
        place = check_place(output, protected)
        recheck = partial(_require_replaceable, place, overwrite=overwrite)
        recheck()
        check_space(place, needed)
        with staged_file(place, recheck=recheck, alone=True) as staged, ExitStack() as lanes:
            writer = TraceWriter(plan, place.parent, lanes)
            for name in sorted(borrowed):
                writer.borrow(name, borrowed[name])
            yield writer
            writer.assemble(staged.descriptor)
            open_trace_file(staged.path)


@dataclass
class _Lane:
    """All tensors of one dtype, in the order of their names."""

    data: IO[bytes]
    names: list[str] = field(default_factory=list)
    nbytes: int = 0


class TraceWriter:
    """Appends sequences to the trace under construction; made by ``staged_trace``."""

    def __init__(self, plan: TraceHeader, folder: Path, lanes: ExitStack) -> None:
        self._plan, self._folder, self._stack = plan, folder, lanes
        self._lanes: dict[str, _Lane] = {}
        self._specs: list[tuple[str, str, tuple[int, ...]]] = []
        self._sequences: list[TraceSequenceEntry] = []

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def header(self) -> TraceHeader:
        """The header of what has been added so far."""
        document = {**self._plan.model_dump(), "sequences": tuple(self._sequences)}
        return TraceHeader.model_validate(document)

    def add(self, sequence: TraceSequence) -> None:
        """Append one sequence.

        Raises ``TraceError`` (``trace-not-finite``) when the target overflowed.
        """
        _require_finite(sequence)
        entry = sequence.entry
        prefix = sequence_prefix(len(self._sequences))
        for name, (dtype, shape) in sorted(sequence_tensors(self._plan, entry).items()):
            tensor: Tensor = getattr(sequence, name)
            assert tuple(tensor.shape) == shape, f"{name}: {tuple(tensor.shape)}, not {shape}"
            stored = tensor.to(torch_dtype(dtype)).contiguous().flatten()
            lane = self._lane(prefix + name, dtype, shape)
            lane.data.write(stored.view(torch.uint8).numpy().data)
            lane.nbytes += stored.nbytes
        self._sequences.append(entry)

    def borrow(self, name: str, tensor: StoredTensor) -> None:
        """Copy a tensor of the target, byte for byte; before the first sequence."""
        lane = self._lane(name, tensor.dtype, tensor.shape)
        with open_regular(tensor.path, file=tensor.file) as source:
            copy_range(
                source,
                tensor.offset,
                tensor.nbytes,
                lane.data.fileno(),
                lane.nbytes,
                on_bytes=lambda count: None,
            )
        lane.nbytes += tensor.nbytes
        lane.data.seek(lane.nbytes)

    def assemble(self, descriptor: int) -> None:
        """Write the whole file: header, then the lanes."""
        entries = layout_entries(self._specs)
        metadata = {METADATA_KEY: self.header.model_dump_json()}
        head = render_header(entries, metadata)
        write_at(descriptor, 0, head)
        offset = len(head)
        for dtype in dict.fromkeys(entry.dtype for entry in entries):
            lane = self._lanes[dtype]
            names = [entry.name for entry in entries if entry.dtype == dtype]
            assert names == lane.names, "a lane is in the order of the file"
            lane.data.flush()
            source = lane.data.fileno()
            copy_range(source, 0, lane.nbytes, descriptor, offset, on_bytes=lambda count: None)
            offset += lane.nbytes

    def _lane(self, name: str, dtype: str, shape: tuple[int, ...]) -> _Lane:
        if dtype not in self._lanes:
            data = self._stack.enter_context(_nameless(self._folder))
            self._lanes[dtype] = _Lane(data)
        self._lanes[dtype].names.append(name)
        self._specs.append((name, dtype, shape))
        return self._lanes[dtype]


def _nameless(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _require_finite(sequence: TraceSequence) -> None:
    if not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(sequence.features)):
        raise not_finite("hidden states", sequence.id)


def _require_replaceable(place: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(place):
        return
    if not overwrite:
        raise _refusal(
            "output-exists",
            "the output already exists",
            place,
            hint="choose another output, or use --overwrite",
        )
    if place.is_symlink() or not _is_trace(place):
        raise _refusal(
            "output-not-ours",
            "the output is not a trace, and is never replaced",
            place,
            hint="choose another output, or remove it yourself",
        )


def _is_trace(path: Path) -> bool:
    try:
        return METADATA_KEY in read_header(path).metadata
    except DSparkError:
        return False


def _refusal(code: str, message: str, path: Path, hint: str) -> OutputError:
    return OutputError(Finding(code=code, message=message, found=str(path), hint=hint))
