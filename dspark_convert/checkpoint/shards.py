"""Which weight files make up a checkpoint, and whether index and files agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dspark_convert.checkpoint.header import Header, gguf_finding
from dspark_convert.checkpoint.jsonfile import read_json
from dspark_convert.checkpoint.names import INDEX_FILE, SINGLE_FILE
from dspark_convert.errors import CheckpointError, Findings

_MAX_INDEX_BYTES = 10_000_000
_MAX_LISTED = 5  # names spelled out in one finding
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth")
_INCOMPLETE = "download or copy the checkpoint again, complete"


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """``weight_map``: tensor name to the bare name of its file; ``total_size`` as found."""

    weight_map: Mapping[str, str]
    total_size: object


def read_index(folder: Path, findings: Findings) -> ShardIndex | None:
    """The index of ``folder``; None, and an error in ``findings``, if it makes no sense."""
    try:
        document = read_json(folder / INDEX_FILE, limit=_MAX_INDEX_BYTES)
    except CheckpointError as error:
        findings.add(*error.findings)
        return None
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        findings.error(
            "bad-index",
            "the index has no weight_map that names tensors and their files",
            file=INDEX_FILE,
            key="weight_map",
            hint=_INCOMPLETE,
        )
        return None
    for name, shard in weight_map.items():
        if not _is_weight_name(shard):
            findings.error(
                "bad-index",
                "a shard must be the bare name of a .safetensors file in the same folder",
                file=INDEX_FILE,
                tensor=name,
                found=repr(shard)[:120],
                hint="repair the index",
            )
            return None
    metadata = document.get("metadata")
    total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return ShardIndex(weight_map=weight_map, total_size=total_size)


def indexed_weight_names(
    names: frozenset[str], index: ShardIndex, findings: Findings
) -> tuple[str, ...]:
    """The files that the index names and the folder (which lists ``names``) has, sorted."""
    present = _weight_files_among(names)
    wanted = set(index.weight_map.values())
    if SINGLE_FILE in present and wanted != {SINGLE_FILE}:
        findings.error(
            "weights-ambiguous",
            f"{SINGLE_FILE} lies beside an index of other files; loaders differ in which wins",
            file=SINGLE_FILE,
            hint=f"remove {SINGLE_FILE}, or the index with its shards",
        )
    for name in sorted(wanted - present):
        findings.error(
            "shard-missing", "the index names a missing file", file=name, hint=_INCOMPLETE
        )
    _report_strays(present - wanted - {SINGLE_FILE}, findings)
    return tuple(sorted(wanted & present))


def unindexed_weight_names(names: frozenset[str], findings: Findings) -> tuple[str, ...]:
    """The one weight file of a folder (which lists ``names``) without an index."""
    present = _weight_files_among(names)
    if SINGLE_FILE not in present:
        _report_no_weights(names, present, findings)
        return ()
    _report_strays(present - {SINGLE_FILE}, findings)
    return (SINGLE_FILE,)


def check_names(
    headers: Mapping[str, Header], index: ShardIndex | None, findings: Findings
) -> None:
    """Each tensor must lie in one file only: the one that the index, if any, names."""
    owners: dict[str, str] = {}
    for file, header in headers.items():
        held = {entry.name for entry in header.entries}
        _report_tensors(
            "tensor-duplicate",
            "two weight files hold tensors of the same name",
            held & owners.keys(),
            file,
            findings,
        )
        owners.update(dict.fromkeys(held, file))
    if index is not None:
        _check_index(headers, index, findings)


def _weight_files_among(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(".safetensors")}


def _is_weight_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and value.endswith(".safetensors")
        and not any(character in value for character in "/\\\0")
    )


def _report_strays(names: Iterable[str], findings: Findings) -> None:
    for name in sorted(names):
        findings.error(
            "shard-stray",
            "a weight file is not part of the checkpoint, but some loaders would read it",
            file=name,
            hint="move it out of the folder, or repair the index",
        )


def _report_no_weights(names: frozenset[str], present: set[str], findings: Findings) -> None:
    pickles = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES))
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if present:
        findings.error(
            "index-missing",
            "there are weight files, but no index that says how they belong together",
            file=INDEX_FILE,
            expected=f"{SINGLE_FILE}, or {INDEX_FILE}",
            found=_listed(sorted(present)),
            hint=f"download the index, or name the only weight file {SINGLE_FILE}",
        )
    elif pickles:
        findings.error(
            "pickle-only",
            "the weights are pickles, which can run code when loaded and are never opened",
            file=pickles[0],
            hint="save the model as safetensors in an environment that you trust",
        )
    elif gguf:
        findings.add(gguf_finding(gguf[0]))
    else:
        findings.error(
            "weights-missing", "the folder has no weights", file=SINGLE_FILE, hint=_INCOMPLETE
        )


def _check_index(headers: Mapping[str, Header], index: ShardIndex, findings: Findings) -> None:
    indexed: defaultdict[str, set[str]] = defaultdict(set)
    for name, file in index.weight_map.items():
        indexed[file].add(name)
    for file, header in headers.items():
        held = {entry.name for entry in header.entries}
        _report_tensors(
            "index-stale",
            "the index names tensors that the file lacks",
            indexed[file] - held,
            file,
            findings,
        )
        _report_tensors(
            "tensor-not-indexed",
            "the file holds tensors that the index does not place there",
            held - indexed[file],
            file,
            findings,
        )
    data_bytes = sum(entry.nbytes for header in headers.values() for entry in header.entries)
    if index.total_size is not None and index.total_size != data_bytes:
        findings.note(
            "index-total-size",
            "the index states a size that the tensors do not have; no loader reads it",
            file=INDEX_FILE,
            key="metadata.total_size",
            expected=data_bytes,
            found=repr(index.total_size)[:120],
        )


def _report_tensors(
    code: str, message: str, names: set[str], file: str, findings: Findings
) -> None:
    if names:
        ordered = sorted(names)
        findings.error(
            code,
            message,
            file=file,
            tensor=ordered[0],
            found=_listed(ordered),
            hint="index and weight files are of different versions: download all of them again",
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
