"""Exit codes, streams and help of ``dspark-convert``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from dspark_convert import __version__
from dspark_convert.cli.convert import app
from dspark_convert.schemas.catalog import PUBLISHED, schema_text
from fixtures.broken.edits import cut, put, write
from tests.conftest import COMMAND, mostly_slow

REDUCED = "spec_vanilla_reduced_anchor_bf16"
Cli = Callable[..., Any]


@pytest.fixture
def source(golden: Path) -> Path:
    return golden / REDUCED / "checkpoint"


@pytest.fixture
def refused(draft: Callable[..., Path]) -> Path:
    return draft(cut("mask_token_id"))


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    folder = tmp_path / "unreadable"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("to-dense {source} {output}", 0),
        ("to-dense {source} {output} --dry-run", 0),
        ("to-dense {source} {source}", 3),
        ("to-dense {refused} {output}", 3),
        ("to-dense {refused} {output} --set mask_token_id=319", 0),
        ("to-dense {refused} {output} --dry-run", 3),
        ("to-dense {unreadable} {output}", 3),
        ("to-dense {absent} {output}", 3),
        ("to-dense {source} {absent}/below/out", 3),
        ("to-dense {source} {output} --target {unreadable}", 3),
        ("to-dense {source} {output} --set nonsense=1", 2),
        ("to-dense {source} {output} --layout sideways", 2),
        ("to-dense {source} {output} --d2t maybe", 2),
        ("to-dense {source}", 2),
        ("inspect {source}", 0),
        ("inspect {refused}", 3),
        ("inspect {refused} --set mask_token_id=319", 0),
        ("inspect {unreadable}", 3),
        ("inspect {absent}", 3),
        ("check {source}", 0),
        ("check {refused}", 1),
        ("check {refused} --set mask_token_id=319", 0),
        ("check {unreadable}", 3),
        ("check {source}/config.json", 3),
        ("schema", 0),
        ("schema refusal", 0),
        ("schema nonsense", 2),
        ("schema --write {output}", 0),
        ("schema --check {unreadable}", 1),
        ("schema --write {source}/config.json", 3),
        ("nonsense", 2),
        ("--version", 0),
        ("--help", 0),
        ("-h", 0),
    ],
)
def test_exit_code(
    arguments: str,
    code: int,
    cli: Cli,
    source: Path,
    refused: Path,
    unreadable: Path,
    tmp_path: Path,
) -> None:
    places = {
        "source": source,
        "refused": refused,
        "unreadable": unreadable,
        "absent": tmp_path / "absent",
        "output": tmp_path / "out",
    }
    outcome = cli(*(part.format(**places) for part in arguments.split()))
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.out + outcome.err
    assert code == 0 or outcome.out + outcome.err


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        ("to-dense {source} {output}", "conversion-manifest"),
        ("to-dense {source} {output} --dry-run", "conversion-plan"),
        ("to-dense {refused} {output}", "refusal"),
        ("to-dense {source} {output} --set x=1", "refusal"),
        ("inspect {source}", "inspection"),
        ("inspect {refused}", "inspection"),
        ("inspect {unreadable}", "refusal"),
        ("check {source}", "check-report"),
        ("check {refused}", "check-report"),
        ("check {unreadable}", "refusal"),
    ],
)
def test_json_is_all_of_stdout_and_validates(
    arguments: str,
    schema: str,
    cli: Cli,
    source: Path,
    refused: Path,
    unreadable: Path,
    tmp_path: Path,
) -> None:
    places = {"source": source, "refused": refused, "unreadable": unreadable}
    words = arguments.format(output=tmp_path / "out", **places).split()
    outcome = cli(*words, "--json")
    assert outcome.out.isascii()
    Draft202012Validator(json.loads(schema_text(schema))).validate(outcome.json)
    if schema == "refusal":
        assert outcome.json["exit_code"] == outcome.code


def test_tables_go_to_stdout_and_findings_to_stderr(
    cli: Cli, source: Path, refused: Path, tmp_path: Path
) -> None:
    converted = cli("to-dense", source, tmp_path / "out")
    assert "serve with 7 speculative tokens" in converted.out
    assert "note tensors-absent" in converted.err
    failed = cli("to-dense", refused, tmp_path / "other")
    assert failed.out == ""
    assert "error key-missing" in failed.err
    assert "--set mask_token_id=VALUE" in failed.err


def test_quiet_says_errors_only(cli: Cli, source: Path, refused: Path, tmp_path: Path) -> None:
    for arguments in (("to-dense", source, tmp_path / "out", "--quiet"), ("check", source, "-q")):
        outcome = cli(*arguments)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    failed = cli("check", refused, "-q")
    assert failed.out == ""
    assert "error key-missing" in failed.err


def test_dry_run_writes_nothing_and_tells_everything(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    outcome = cli("to-dense", source, tmp_path / "out", "--dry-run", env={"COLUMNS": "400"})
    assert list(tmp_path.iterdir()) == []
    for words in ("d2t", "draft_id_to_target_id", "offsets, same bytes", "t2d", "auto_map"):
        assert words in outcome.out
    assert "transformer_layer_config.hidden_size" in outcome.out


def test_summary_says_who_cannot_load_the_result(cli: Cli, golden: Path, tmp_path: Path) -> None:
    source = golden / "spec_gated_reduced_1plusN_bf16/checkpoint"
    said = cli("to-dense", source, tmp_path / "out", env={"COLUMNS": "400"}).out
    assert "7 slots; serve with 6 speculative tokens" in said
    assert "it has no gated Markov head" in said
    assert "num_speculative_tokens=6" in said


def test_public_draft_converts(cli: Cli, draft: Callable[..., Path], tmp_path: Path) -> None:
    methods = [{"proposal_type": "greedy", "speculative_tokens": 7}]
    source = draft(
        cut("sample_from_anchor"),
        put(block_size=8, speculators_config__proposal_methods=methods),
        write("README.md", b"# draft"),
    )
    outcome = cli("to-dense", source, tmp_path / "out", env={"COLUMNS": "200"})
    assert outcome.code == 0
    assert "inferred: 7 speculative tokens in a block of 8" in outcome.out
    assert "8 slots; serve with 7 speculative tokens" in outcome.out
    assert "layout-inferred" in outcome.err


def test_schemas_are_printed_listed_and_written(cli: Cli, tmp_path: Path) -> None:
    assert cli("schema").out.split() == sorted(PUBLISHED)
    for name in PUBLISHED:
        assert cli("schema", name).out == schema_text(name)
    assert cli("schema", "--write", tmp_path / "a/b").code == 0
    assert cli("schema", "--check", tmp_path / "a/b").code == 0
    (tmp_path / "a/b/refusal.schema.json").write_text("{}")
    drifted = cli("schema", "--check", tmp_path / "a/b")
    assert (drifted.code, "refusal.schema.json" in drifted.err) == (1, True)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(cli: Cli, option: str) -> None:
    assert cli(option).out == f"dspark-convert {__version__}\n"


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_is_documented(name: str, cli: Cli) -> None:
    assert COMMANDS[name].help
    shown = "".join(cli(name, "--help").out.split())
    assert name in cli("--help").out
    for parameter in COMMANDS[name].params:
        assert parameter.help, parameter.name
        spelled = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
        assert spelled.strip("[]") in shown
        assert "".join(parameter.help.split()) in shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", mostly_slow(["", "1"], fast=[""]))
@pytest.mark.parametrize(
    "arguments",
    mostly_slow(
        [(("check",),), (("inspect", "--json"),), (("engines",),)],
        fast=[(("inspect", "--json"),)],
    ),
)
def test_a_full_disk_behind_stdout_is_no_verdict(
    source: Path, arguments: tuple[str, ...], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        command, *options = arguments
        done = subprocess.run(
            [COMMAND, command, source, *options], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert b"the output cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_notes_that_cannot_be_printed_do_not_stop_a_conversion(
    source: Path, tmp_path: Path, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        command = [COMMAND, "to-dense", source, tmp_path / "out"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_overwrite_spares_a_result_that_was_changed_since(
    source: Path, tmp_path: Path, cli: Cli, name: str
) -> None:
    output = tmp_path / "out"
    assert cli("to-dense", source, output).code == 0
    changed = output / name
    changed.write_bytes(changed.read_bytes() + b" ")
    before = changed.read_bytes()
    outcome = cli("to-dense", source, output, "--overwrite", "--json")
    assert outcome.code == 3
    assert "output-not-ours" in outcome.codes
    assert changed.read_bytes() == before


def test_inspect_shows_keys_that_are_not_understood(cli: Cli, draft: Callable[..., Path]) -> None:
    folder = draft(put(dflash_config__future_scale=2.0))
    shown = cli("inspect", folder, env={"COLUMNS": "200"}).out
    assert re.search(r"not understood +dflash_config\.future_scale\b", shown)
    document = json.loads(cli("inspect", folder, "--json").out)
    assert document["not_understood"] == ["dflash_config.future_scale"]
