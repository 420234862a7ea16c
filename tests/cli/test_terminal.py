"""What reaches a terminal: no markup and no control characters of files, every letter of a name."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.cli.console import visible
from fixtures.broken.edits import cut, drop, put, rename, zeros
from tests.conftest import mostly_slow

COMMAND = Path(sysconfig.get_path("scripts")) / "dspark-convert"
COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\d[0-9;]*m")
ESCAPE = "\x1b"

HOSTILE = [
    "[red]name[/red]",
    "[/]",
    "[link=https://evil.example]x[/link]",
    ":pile_of_poo:",
    "\x1b[2Jname",
    "\x1b]0;title\x07",
    "\x9b31mname",
    "line\nbreak",
    "back\bspace\rreturn",
    "\u202egnp.exe",
    "\u2066isolate",
    "zero\u200bwidth",
    "\x7fdelete",
    "\u2028line",
]
# One of every kind; that no character is shown which must not be is a property of ``visible``.
HOSTILE_BY_DEFAULT = [
    "[red]name[/red]",
    "[link=https://evil.example]x[/link]",
    "\x1b]0;title\x07",
    "\x9b31mname",
    "line\nbreak",
    "\u202egnp.exe",
    "zero\u200bwidth",
]
FORBIDDEN = set("\x1b\x07\x08\x9b\r\x7f\u202e\u2066\u200b\u2028")


def squeezed(text: str) -> str:
    """Without the white space that folding a cell adds."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("text", mostly_slow(HOSTILE, fast=HOSTILE_BY_DEFAULT))
def test_hostile_texts_are_shown_as_data(
    text: str, cli: Callable[..., Any], draft: Callable[..., Path], tmp_path: Path
) -> None:
    named = draft(zeros(f"{text}.weight", "BF16", 4))
    keyed = draft(put(**{text: text, "architectures": [text]}))
    valued = draft(put(markov_head_type=text, transformer_layer_config__model_type=text))
    said = [
        cli("to-dense", named, tmp_path / "out"),
        cli("check", named),
        cli("to-dense", keyed, tmp_path / "out", "--dry-run", env={"COLUMNS": "400"}),
        cli("inspect", keyed),
        cli("check", valued),
        cli("to-dense", named, tmp_path / text.replace("/", "_")),
        cli("inspect", tmp_path / text.replace("/", "_")),
        cli("to-dense", keyed, tmp_path / "out", "--set", f"{text}=1"),
        cli("schema", text),
    ]
    for outcome in said:
        assert not FORBIDDEN & set(outcome.out + outcome.err)
    for outcome in said[:2]:
        assert squeezed(visible(text)) in squeezed(outcome.err)
    assert squeezed(visible(text)) in squeezed(said[2].out)


@pytest.mark.parametrize("text", HOSTILE)
def test_json_escapes_hostile_texts_and_loses_none(
    text: str, cli: Callable[..., Any], draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(put(**{text: text}))
    outcome = cli("to-dense", source, tmp_path / "out", "--dry-run", "--json")
    assert not (FORBIDDEN - {"\x7f"}) & set(outcome.out)
    assert outcome.json["config"][text] == text


@given(st.text(st.characters()))
def test_visible_text_has_no_control_characters_and_keeps_the_rest(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", shown)
    if text.isprintable():
        assert shown == text
    assert shown.encode().decode() == shown


LONG = "a_tensor_with_" + "_".join(f"part{number}" for number in range(40)) + ".weight"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_letter_of_a_name_is_lost(
    columns: int, cli: Callable[..., Any], draft: Callable[..., Path], tmp_path: Path
) -> None:
    width = {"COLUMNS": str(columns)}
    plan = cli("to-dense", draft(put(**{LONG: 1})), tmp_path / "out", "--dry-run", env=width)
    failed = cli("check", draft(zeros(LONG, "BF16", 4)), env=width)
    assert LONG in squeezed(failed.err)
    assert all(len(line) <= columns for line in (plan.out + failed.err).splitlines())
    assert "…" not in plan.out + failed.err


def column_of(text: str, header: str) -> str:
    """The cells of a column of a table, joined: from its header to where the next begins."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if header in line.split())
    begin = lines[start].index(header)
    end = re.compile(r"\S").search(lines[start], begin + len(header))
    assert end is not None
    return "".join(line[begin : end.start()].strip() for line in lines[start + 1 :])


@pytest.mark.parametrize("columns", [80, 120])
def test_folded_table_has_every_tensor_name_whole(
    columns: int, cli: Callable[..., Any], golden: Path, tmp_path: Path
) -> None:
    source = golden / "spec_rnn_full_anchor_sharded_bf16/checkpoint"
    arguments = ("to-dense", source, tmp_path / "out", "--dry-run")
    names = [step["source"] for step in cli(*arguments, "--json").json["tensors"]]
    text = cli(*arguments, env={"COLUMNS": str(columns)}).out
    column = column_of(text.partition("Tensors")[2].partition("Config keys")[0], "source")
    assert column == "".join(names)


def on_terminal(*arguments: object, **env: str) -> str:
    """What the installed command writes to a terminal of 100 columns, both streams."""
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "100", **env}
    child = subprocess.Popen(
        [COMMAND, *map(str, arguments)], stdout=slave, stderr=slave, stdin=slave, env=environment
    )
    os.close(slave)
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux says EIO where the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    child.wait(timeout=60)
    return b"".join(parts).decode()


def test_terminal_has_colour_unless_no_color(golden: Path, draft: Callable[..., Path]) -> None:
    source = draft(cut("mask_token_id"), drop("norm.weight"))
    assert COLOUR.search(on_terminal("check", source))
    assert not COLOUR.search(on_terminal("check", source, NO_COLOR="1"))


def test_terminal_shows_progress_and_no_hostile_text(
    draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft(put(**{"\x1b[2Jkey[red]": "\u202e"}), rename("t2d", "mask_embedding"))
    text = on_terminal("to-dense", source, tmp_path / "out\x1b[2J")
    assert "copying" in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text


def test_no_escape_sequences_without_a_terminal(
    command: Callable[..., Any], golden: Path, tmp_path: Path
) -> None:
    source = golden / "spec_vanilla_reduced_anchor_bf16/checkpoint"
    for arguments in (("to-dense", source, tmp_path / "out"), ("inspect", source), ("--help",)):
        outcome = command(*arguments, TERM="xterm-256color")
        assert outcome.code == 0
        assert ESCAPE not in outcome.out + outcome.err


def test_names_of_other_scripts_survive_a_small_encoding(
    command: Callable[..., Any], draft: Callable[..., Path], tmp_path: Path
) -> None:
    source = draft().rename(tmp_path / "été-漢字")
    outcome = command("inspect", source, PYTHONIOENCODING="ascii")
    assert outcome.code == 0
    assert "\\xe9t\\xe9" in outcome.out
    utf8 = command("inspect", source, PYTHONIOENCODING="utf-8")
    assert "été-漢字" in utf8.out


def test_closed_pipe_is_no_traceback(golden: Path) -> None:
    source = golden / "spec_vanilla_reduced_anchor_bf16/checkpoint"
    script = f"{COMMAND} inspect {source} --json | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
