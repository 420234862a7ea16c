"""Carry out a planned conversion: stream the bytes, re-read them, put the result in place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dspark_convert import __version__
from dspark_convert.checkpoint.files import open_regular, read_limited, read_range
from dspark_convert.checkpoint.folder import StoredTensor, open_checkpoint
from dspark_convert.checkpoint.names import CONFIG_FILE, INDEX_FILE, shown_name
from dspark_convert.checkpoint.side_files import MAX_SIDE_FILE_BYTES, SideFile
from dspark_convert.checkpoint.staging import staged_folder
from dspark_convert.checkpoint.transfer import ranges_equal
from dspark_convert.conversion.assembled import Assembled
from dspark_convert.conversion.manifest import MANIFEST_FILE, read_manifest, validate_file
from dspark_convert.conversion.plan import Conversion
from dspark_convert.conversion.weights import OutputWeights, Piece
from dspark_convert.conversion.write_weights import WeightDigests, write_weights
from dspark_convert.errors import Finding, Findings, OutputError
from dspark_convert.schemas.plan import (
    ConversionAccount,
    ConversionManifest,
    OutputFile,
    SourceIdentity,
)

_SMALL_FILES_BYTES = 64 << 10
"""Room for config, index and manifest, apart from the tensors that they list."""


def run_conversion(
    conversion: Conversion,
    output: Path,
    *,
    overwrite: bool = False,
    verify_bytes: bool = False,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> ConversionManifest:
    """Write the result of a conversion to the folder ``output``.

    Args:
        conversion: the plan and its sources.
        output: appears complete, or not at all.
        overwrite: replace an empty folder, or an earlier result of ours.
        verify_bytes: compare all copied bytes, not only the ends of each range.
        on_bytes: called with the size of every piece of a tensor that was copied.

    Raises:
        OutputError: the output may not be replaced, the disk is full, or re-reading found bytes
            other than those written (``output-differs``).
        CheckpointError: the source changed while it was read (``file-changed``), or is not what the
            Hub has (``cached-file-corrupt``).
    """
    with staged_folder(
        output,
        overwrite=overwrite,
        owned=is_our_output,
        protected=conversion.read_only,
        needed_bytes=needed_bytes(conversion),
    ) as folder:
        digests = write_weights(conversion.files, folder, conversion.source_files, on_bytes)
        for side_file in conversion.side_files:
            _copy_side_file(side_file, folder / side_file.name)
        _write_json(folder / CONFIG_FILE, conversion.plan.config)
        if len(conversion.files) > 1:
            _write_json(folder / INDEX_FILE, _index(conversion.files))
        manifest = _manifest(conversion, folder, digests)
        _write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))
        _verify(conversion, folder, whole=verify_bytes)
    return manifest


def needed_bytes(conversion: Conversion) -> int:
    """Bytes that the output folder will need, its small files included."""
    weights = sum(file.size for file in conversion.files)
    documents = sum(file.size for file in conversion.side_files)
    return weights + documents + _SMALL_FILES_BYTES + 1024 * len(conversion.plan.tensors)


def is_our_output(folder: Path) -> bool:
    """Whether a folder holds exactly what our manifest in it describes, unchanged.

    For weight files, size and header are compared; for other files, every byte.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    named = {file.name for file in manifest.files} | {MANIFEST_FILE}
    present = {shown_name(path.name): path.name for path in folder.iterdir()}
    if present.keys() != named:
        return False
    findings = Findings()
    for file in manifest.files:
        stored = file.model_copy(update={"name": present[file.name]})
        validate_file(folder, stored, findings, whole=False)
    return not findings.of("error")


def _copy_side_file(file: SideFile, path: Path) -> None:
    path.write_bytes(read_limited(file.path, limit=MAX_SIDE_FILE_BYTES))


def _write_json(path: Path, document: Any) -> None:
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _index(files: tuple[OutputWeights, ...]) -> dict[str, Any]:
    return {
        "metadata": {"total_size": sum(file.size - len(file.header) for file in files)},
        "weight_map": {entry.name: file.name for file in files for entry in file.entries},
    }


def _manifest(conversion: Conversion, folder: Path, digests: WeightDigests) -> ConversionManifest:
    plan = conversion.plan
    weights = {file.name: file for file in conversion.files}
    files = []
    for path in sorted(folder.iterdir()):
        name = shown_name(path.name)
        if path.name in weights:
            header = hashlib.sha256(weights[path.name].header).hexdigest()
            size, sha256 = weights[path.name].size, digests.output[path.name]
            file = OutputFile(name=name, size=size, sha256=sha256, header_sha256=header)
        else:
            data = path.read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            file = OutputFile(name=name, size=len(data), sha256=sha256)
        files.append(file)
    account: dict[str, Any] = {name: getattr(plan, name) for name in ConversionAccount.model_fields}
    return ConversionManifest(
        **{**account, "source": _with_digests(plan.source, digests)},
        tool_version=__version__,
        layout=plan.draft.layout,
        files=tuple(files),
    )


def _with_digests(source: SourceIdentity, digests: WeightDigests) -> SourceIdentity:
    files = (file.model_copy(update={"sha256": digests.source[file.name]}) for file in source.files)
    return source.model_copy(update={"files": tuple(files)})


def _verify(conversion: Conversion, folder: Path, *, whole: bool) -> None:
    """Open the result as any reader would, and compare it with the plan and the sources."""
    written = open_checkpoint(folder)
    planned = {piece.name: piece for file in conversion.files for piece in file.pieces.values()}
    if written.config != conversion.plan.config or written.tensors.keys() != planned.keys():
        raise _differs(CONFIG_FILE, None)
    for name, piece in planned.items():
        stored = written.tensors[name]
        if (stored.dtype, stored.shape) != (piece.dtype, piece.shape):
            raise _differs(stored.file, name)
        if not _same_bytes(piece, stored, whole=whole):
            raise _differs(stored.file, name)


def _same_bytes(piece: Piece, stored: StoredTensor, *, whole: bool) -> bool:
    with open_regular(stored.path) as written:
        if isinstance(piece.content, bytes):
            return read_range(written, stored.offset, stored.nbytes) == piece.content
        content = piece.content
        if isinstance(content, Assembled):
            return _same_blocks(content, written, stored, whole=whole)
        with open_regular(content.path, file=content.file) as source:
            return ranges_equal(
                source, content.offset, written, stored.offset, stored.nbytes, whole=whole
            )


def _same_blocks(content: Assembled, written: int, stored: StoredTensor, *, whole: bool) -> bool:
    """Make the blocks again (only the first and the last without ``whole``) and compare them."""
    blocks = list(content.blocks())
    with ExitStack() as stack:
        source = None
        if content.stored is not None:
            opened = open_regular(content.stored.path, file=content.stored.file)
            source = stack.enter_context(opened)
        for first, end in blocks if whole else {blocks[0], blocks[-1]}:
            expected = content.read(source, first, end)
            offset = stored.offset + first * content.row_bytes
            if read_range(written, offset, len(expected)) != expected:
                return False
    return True


def _differs(file: str, tensor: str | None) -> OutputError:
    return OutputError(
        Finding(
            code="output-differs",
            message="re-reading the result found bytes that the source does not hold",
            file=file,
            tensor=tensor,
            hint="check that nothing writes to the source and that the disk is healthy, then run "
            "again",
        )
    )
