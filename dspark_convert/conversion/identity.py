"""What a checkpoint is called in documents that travel: nobody's folders are named."""

from __future__ import annotations

from dspark_convert.checkpoint.files import hash_range, open_regular
from dspark_convert.checkpoint.folder import Checkpoint, WeightFile
from dspark_convert.checkpoint.names import repository_of, shown_name
from dspark_convert.conversion.left_out import without_local_paths
from dspark_convert.schemas.plan import SourceFile, SourceIdentity


def identify(checkpoint: Checkpoint) -> SourceIdentity:
    """Name a checkpoint without naming anybody's folders: the repository, or the folder's name."""
    name, revision = repository_of(checkpoint.folder)
    return SourceIdentity(
        name=shown_name(str(without_local_paths(name))),
        revision=revision,
        config_sha256=checkpoint.config_sha256,
        files=tuple(_source_file(file) for file in checkpoint.files),
    )


def _source_file(file: WeightFile) -> SourceFile:
    with open_regular(file.path, file=file.name) as descriptor:
        header_sha256 = hash_range(descriptor, file.header.data_begin)
    return SourceFile(name=file.name, size=file.size, header_sha256=header_sha256, sha256=None)
