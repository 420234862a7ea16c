"""Carrying a plan out: what may be replaced, and that what was written is what was meant."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.checkpoint.transfer import copy_range
from dspark_convert.conversion import run, write_weights
from dspark_convert.conversion.manifest import read_manifest, validate_file
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import CheckpointError, Findings, OutputError
from fixtures.broken.edits import d2t, hub_snapshot, put, unchanged, write

from .helpers import convert, digest, files_of, tensors_of

DENSE, REDUCED = "dense_vanilla_bf16", "spec_vanilla_reduced_anchor_bf16"


@pytest.fixture
def source(golden: Path) -> Path:
    return golden / REDUCED / "checkpoint"


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(OutputError) as caught:
        convert(*arguments, **options)
    return caught.value.code


def temporaries(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


def test_manifest_is_what_lies_in_the_output(source: Path, tmp_path: Path) -> None:
    manifest = convert(source, tmp_path / "out")
    stored = json.loads((tmp_path / "out/dspark_conversion.json").read_text())
    assert stored == manifest.model_dump(mode="json")
    files = files_of(tmp_path / "out")
    assert {file.name for file in manifest.files} | {"dspark_conversion.json"} == set(files)
    assert {file.name: file.size for file in manifest.files} == {
        name: len(data) for name, data in files.items() if name != "dspark_conversion.json"
    }


def test_manifest_repeats_the_account_of_the_plan(source: Path, tmp_path: Path) -> None:
    plan = plan_to_dense(source).plan.model_dump(mode="json", exclude={"source"})
    stored = convert(source, tmp_path / "out").model_dump(mode="json")
    assert list(stored)[:3] == ["schema_version", "tool", "tool_version"]
    assert next(iter(plan)) == "schema_version"
    shared = plan.keys() & stored.keys() - {"schema_version"}
    assert {"tensors", "keys", "side_files", "findings", "target", "source_config"} < shared
    assert {name: stored[name] for name in shared} == {name: plan[name] for name in shared}


def test_manifest_holds_the_hash_of_every_byte_read_and_written(
    golden: Path, tmp_path: Path
) -> None:
    for name in (DENSE, REDUCED, "spec_rnn_full_anchor_sharded_bf16"):
        source, output = golden / name / "checkpoint", tmp_path / name
        manifest = convert(source, output)
        for folder, files in ((source, manifest.source.files), (output, manifest.files)):
            assert {file.name: file.sha256 for file in files} == {
                file.name: hashlib.sha256((folder / file.name).read_bytes()).hexdigest()
                for file in files
            }
        weights = {file.name: file.header_sha256 for file in manifest.files if file.header_sha256}
        assert weights.keys() == {path.name for path in output.glob("*.safetensors")}
        planned = plan_to_dense(source).plan.source.files
        assert all(file.sha256 is None for file in planned)


def test_overwrite_knows_a_manifest_of_version_1(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out")
    path = tmp_path / "out/dspark_conversion.json"
    document = json.loads(path.read_text())
    document["schema_version"] = 1
    for file in document["files"]:
        header = file.pop("header_sha256")
        file["sha256"] = header or file["sha256"]
    path.write_text(json.dumps(document))
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    (weights,) = (file for file in manifest.files if file.name == "model.safetensors")
    assert (weights.sha256, weights.header_sha256 is None) == (None, False)
    findings = Findings()
    validate_file(tmp_path / "out", weights, findings, whole=True)
    assert [finding.code for finding in findings] == ["manifest-without-hashes"]
    convert(source, tmp_path / "out", overwrite=True)


def test_a_file_of_the_hub_cache_with_other_bytes_than_the_hub_has_is_refused(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    folder = draft(hub_snapshot)
    blob = (folder / "model.safetensors").resolve()
    convert(folder, tmp_path / "good")
    data = bytearray(blob.read_bytes())
    data[-50] ^= 0xFF
    blob.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        convert(folder, tmp_path / "out")
    (finding,) = caught.value.findings
    assert (finding.code, finding.file) == ("cached-file-corrupt", "model.safetensors")
    assert blob.name in str(finding.expected)
    assert str(blob) in str(finding.hint)
    assert not (tmp_path / "out").exists()


def test_progress_counts_every_copied_byte(source: Path, tmp_path: Path) -> None:
    sizes: list[int] = []
    convert(source, tmp_path / "out", on_bytes=sizes.append)
    copied = tensors_of(tmp_path / "out")
    assert sum(sizes) == sum(len(data) for _, _, data in copied.values())


def test_overwrite_replaces_an_earlier_result(source: Path, golden: Path, tmp_path: Path) -> None:
    convert(golden / DENSE / "checkpoint", tmp_path / "out")
    assert refusal(source, tmp_path / "out") == "output-exists"
    convert(source, tmp_path / "out", overwrite=True)
    convert(source, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")
    assert not temporaries(tmp_path)


def test_overwrite_replaces_an_empty_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out", overwrite=True)
    assert tensors_of(tmp_path / "out")


def foreign_file(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")


def result_with_a_file_added(out: Path) -> None:
    (out / "notes.txt").write_text("mine")


def result_with_a_folder_added(out: Path) -> None:
    (out / "mine").mkdir()


def manifest_of_another(out: Path) -> None:
    (out / "dspark_conversion.json").write_text('{"tool": "another"}')


def broken_manifest(out: Path) -> None:
    (out / "dspark_conversion.json").write_text("[" * 100_000)


def no_manifest(out: Path) -> None:
    (out / "dspark_conversion.json").unlink()


def working_tree(out: Path) -> None:
    (out / ".git").mkdir()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (foreign_file, "output-not-ours"),
        (result_with_a_file_added, "output-not-ours"),
        (result_with_a_folder_added, "output-not-ours"),
        (manifest_of_another, "output-not-ours"),
        (broken_manifest, "output-not-ours"),
        (no_manifest, "output-not-ours"),
        (working_tree, "output-protected"),
    ],
)
def test_overwrite_replaces_nothing_else(
    source: Path, tmp_path: Path, change: Callable[[Path], None], code: str
) -> None:
    out = tmp_path / "out"
    if change is not foreign_file:
        convert(source, out)
    change(out)
    before = digest(out)
    assert refusal(source, out, overwrite=True) == code
    assert digest(out) == before
    assert not temporaries(tmp_path)


def test_source_target_and_their_surroundings_are_never_replaced(
    draft: Callable[..., Path], golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draft()
    before = digest(source)
    for output in (source, source.parent, source / "inside"):
        assert refusal(source, output, overwrite=True) == "output-protected"
    target = golden / "verifier_bf16"
    assert refusal(source, target / "x", target=target) == "output-protected"
    (tmp_path / "here/below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here/below")
    assert refusal(source, tmp_path / "here", overwrite=True) == "output-protected"
    assert digest(source) == before


def corrupt(where: Callable[[int], int]) -> Callable[..., None]:
    """A copy that turns one bit of each range of more than 10 KB."""

    def copy(source: int, offset: int, length: int, target: int, at: int, **options: Any) -> None:
        copy_range(source, offset, length, target, at, **options)
        if length > 10_000:
            place = at + where(length)
            os.pwrite(target, bytes([os.pread(target, 1, place)[0] ^ 1]), place)

    return copy


@pytest.mark.parametrize(
    ("where", "verify_bytes", "caught"),
    [
        (lambda length: 0, False, True),
        (lambda length: length - 1, False, True),
        (lambda length: length // 2, True, True),
        (lambda length: length // 2, False, False),
    ],
)
def test_corrupted_copy_is_found_on_re_reading(
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Callable[[int], int],
    verify_bytes: bool,
    caught: bool,
) -> None:
    monkeypatch.setattr(write_weights, "copy_range", corrupt(where))
    source = golden / DENSE / "checkpoint"
    if caught:
        code = refusal(source, tmp_path / "out", verify_bytes=verify_bytes)
        assert code == "output-differs"
        assert list(tmp_path.iterdir()) == []
    else:  # the ends of a range are looked at, its middle only with --verify-bytes
        convert(source, tmp_path / "out", verify_bytes=verify_bytes)
        assert tensors_of(tmp_path / "out") != tensors_of(source)


def test_rewritten_table_is_compared_too(
    draft: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write_weights.write_at

    def corrupted(descriptor: int, offset: int, data: bytes) -> None:
        real(descriptor, offset, data[:-1] + b"\1" if len(data) == 1600 else data)

    monkeypatch.setattr(write_weights, "write_at", corrupted)
    assert refusal(draft(d2t(unchanged, "I32")), tmp_path / "out") == "output-differs"


def test_source_that_shrinks_during_the_run_is_refused(
    draft: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draft()

    def shrink(*arguments: Any, **options: Any) -> None:
        os.truncate(source / "model.safetensors", 5000)
        copy_range(*arguments, **options)

    monkeypatch.setattr(write_weights, "copy_range", shrink)
    with pytest.raises(CheckpointError) as caught:
        convert(source, tmp_path / "out")
    assert caught.value.code == "file-changed"
    assert not (tmp_path / "out").exists()


def test_full_disk_is_seen_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "needed_bytes", lambda conversion: 1 << 60)
    assert refusal(source, tmp_path / "out") == "disk-full"
    assert list(tmp_path.iterdir()) == []


def test_needed_bytes_cover_what_is_written(draft: Callable[..., Path], tmp_path: Path) -> None:
    large = draft(write("README.md", b"x" * 300_000), put(note="y" * 10_000))
    needed = run.needed_bytes(plan_to_dense(large))
    convert(large, tmp_path / "out")
    assert sum(len(data) for data in files_of(tmp_path / "out").values()) <= needed


def test_failure_keeps_the_earlier_result(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "out")
    before = digest(tmp_path / "out")
    monkeypatch.setattr(write_weights, "copy_range", corrupt(lambda length: 0))
    assert refusal(source, tmp_path / "out", overwrite=True) == "output-differs"
    assert digest(tmp_path / "out") == before
    assert not temporaries(tmp_path)
