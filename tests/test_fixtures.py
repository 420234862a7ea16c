"""The fixtures themselves: the golden set is whole, the broken drafts are what they claim to be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from dspark_convert.checkpoint.dtypes import DTYPES
from fixtures.broken import CASES, Case, build
from fixtures.broken.drafts import GOLDEN, WEIGHTS, pack, read_draft

ROOT = Path(__file__).parents[1]
VARIANTS = json.loads((GOLDEN / "manifest.json").read_text())["variants"]


def content(folder: Path) -> dict[str, bytes | Path]:
    """What lies below ``folder``: bytes of files, destinations of links."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_variant_has_the_tensors_and_cases_it_promises(variant: str) -> None:
    expected = json.loads((GOLDEN / variant / "expected.json").read_text())
    stored = {
        name: [DTYPES[tensor.dtype].name, list(tensor.shape)]
        for name, tensor in read_draft(variant).tensors.items()
    }
    assert stored == expected["tensor_names"]
    recorded = load_file(GOLDEN / variant / "expected.safetensors")
    for case in expected["cases"]:
        assert recorded[f"case{case['case']}.draft_ids"].tolist() == case["draft_ids"]
    assert (GOLDEN / expected["verifier"] / WEIGHTS).is_file()


def test_only_one_copy_of_checkpoint_code_is_kept_and_it_raises() -> None:
    (code,) = GOLDEN.rglob("*.py")
    with pytest.raises(RuntimeError, match="must not be executed"):
        exec(code.read_text())


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_tensors_are_what_the_library_reads(variant: str, tmp_path: Path) -> None:
    tensors = read_draft(variant).tensors
    (tmp_path / WEIGHTS).write_bytes(pack(tensors))
    with safe_open(tmp_path / WEIGHTS, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    read = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    assert read == {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("case_id", CASES)
def test_case_builds_the_same_bytes_twice_and_other_bytes_than_its_base(
    case_id: str, tmp_path: Path
) -> None:
    case = CASES[case_id]
    folder = build(case_id, tmp_path / "first")
    build(case_id, tmp_path / "second")
    build(case_id, tmp_path / "second")
    built = content(tmp_path / "first")
    assert built == content(tmp_path / "second")

    assert folder.is_relative_to(tmp_path / "first" / case_id)
    unedited = Case("", case.base, (), (), ()).build(tmp_path / "third" / case_id)
    assert content(unedited)
    assert (built == content(tmp_path / "third")) == (not case.edits)


def test_a_refused_case_is_edited_and_only_a_refused_case_has_a_cure() -> None:
    assert all(case.edits for case in CASES.values() if case.refused)
    assert all(case.refused for case in CASES.values() if case.cure)
    codes = {code for case in CASES.values() for code in case.refused}
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in codes)


def test_each_entry_of_the_acceptance_list_has_a_case() -> None:
    shown = {match[1] for case_id in CASES if (match := re.match(r"h(\d+)-", case_id))}
    assert shown == {str(number) for number in range(1, 16)}


def test_command_line_builds_the_cases_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fixtures.broken", str(tmp_path)]
    done = subprocess.run(
        [*command, "h5-no-table", "gguf"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert {path.name for path in tmp_path.iterdir()} == {"h5-no-table", "gguf"}
    assert "d2t-missing" in done.stdout
    refused = subprocess.run([*command, "nonsense"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "nonsense" in refused.stderr
