"""Write the pages of this folder that follow from the code; ``PAGES`` lists them.

python docs/generate.py            # write them
python docs/generate.py --check    # exit with 1 if one does not match the code
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from dspark_convert.checks import CHECKS
from dspark_convert.cli import convert, verify
from dspark_convert.cli.options import name_engines
from dspark_convert.engines import ENGINES
from dspark_convert.engines.base import VERDICTS, Claim
from dspark_convert.formats.arithmetic import ARITHMETIC, ArithmeticKey
from dspark_convert.formats.decoders import DECODERS, DEFAULT_DECODER
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.quantisation import SCHEMES, Scheme
from dspark_convert.formats.rules import REQUIRED, FieldRule, dotted
from dspark_convert.formats.unsupported import UNSUPPORTED

DOCS = Path(__file__).parent
_NOTICE = "<!-- Written by docs/generate.py; do not edit. -->"
_VERDICT_WORDS = {"refuses": "refuses", "silent": "silent fault", "loads": "loads, but"}


def render_checks() -> str:
    """One section for each check, with the text of ``dspark-verify explain``."""
    lines = [
        "# Checks",
        _NOTICE,
        "`dspark-verify check` gives each of these checks a verdict: `pass`, `fail`, "
        "`inconclusive`, or `skipped` with the reason. `dspark-verify explain ID` prints the "
        "same text.",
    ]
    for check in CHECKS.values():
        lines += [
            f"## `{check.id}`",
            f"**{check.title}**",
            check.looks_at,
            f"*Fails when:* {check.fails_when}",
            f"*What to do:* {check.what_to_do}",
        ]
    return "\n\n".join(lines) + "\n"


def render_cli() -> str:
    """Every command of both programs, with its arguments and options."""
    sections = ["# Command line", _NOTICE, *_program(convert.app), *_program(verify.app)]
    return "\n\n".join(sections) + "\n"


def render_engines() -> str:
    """What each engine does with a draft: the claims, as `dspark-convert engines` applies them."""
    sections = [
        "# Engines",
        _NOTICE,
        "What each engine does with a DSpark draft, read in the source of the version named. "
        "`dspark-convert engines DRAFT` says which of these apply to your draft, with the evidence "
        "and the command that starts the engine; `dspark-convert to-dense --for ENGINE` writes the "
        "spelling that the engine reads.",
        "A *silent fault* is the dangerous kind: the draft loads and the output is correct, but "
        "the accepted length is lower than it should be. N is the number of tokens that a round "
        "drafts, B the block size.",
    ]
    for engine in ENGINES.values():
        claims = sorted(engine.claims, key=lambda claim: VERDICTS.index(claim.verdict))
        sections.append(f"## {engine.name} {engine.version}")
        decoders = ", ".join([DEFAULT_DECODER.name, *engine.decoders])
        schemes = ", ".join(engine.schemes) or "none"
        sections.append(f"Decoders: {decoders}. Quantisation schemes: {schemes}.")
        sections.append(_table(("verdict", "because", "what to do"), map(_claim_row, claims)))
    return "\n\n".join(sections) + "\n"


def render_dialects() -> str:
    """What is read and what is refused by name: dialects, decoders, quantisation schemes."""
    sections = [
        "# Dialects, decoders and quantisation",
        _NOTICE,
        "Everything that `dspark-convert` recognises. [Formats](formats.md) explains how the "
        "dialects differ; `dspark-convert inspect DRAFT` says what a draft is.",
        "## Dialects",
        "The fields of a draft, and the keys that may hold each of them. Keys in bold are the ones "
        "that are written. Two keys that disagree about a field are refused. A field without a "
        "key is refused, takes the default given, or follows from the other keys and the tensors.",
    ]
    for dialect in DIALECTS.values():
        sections.append(f"### {dialect.title}")
        sections.append(f"Recognised by: {dialect.mark}.")
        header = ("field", "keys", "default")
        sections.append(_table(header, map(_field_row, dialect.rules)))
    sections.append("## Decoders")
    sections.append(
        "The layers of a draft. The first decoder is assumed unless a config says otherwise."
    )
    rows = (
        (row.name, ", ".join(row.architectures), ", ".join(row.model_types))
        for row in DECODERS.values()
    )
    sections.append(_table(("decoder", "`architectures`", "`model_type`"), rows))
    sections.append("## Keys that change what is computed")
    sections.append(
        "Keys that some trainer or engine reads as mathematics and no table above has. They are "
        "looked for at the top level, in the object of the decoder, in its RoPE parameters, and in "
        "`dflash_config`, `dspark_config` and `eagle_config`. A value that is not harmless is "
        "refused (`key-unsupported`), or left out of what is written if the key is the target's "
        "and no trainer of drafts obeys it (`key-inherited`). Other keys whose names look "
        "mathematical are listed by `dspark-convert inspect` as not understood."
    )
    header = ("keys", "a reader of them", "read by", "harmless", "otherwise")
    sections.append(_table(header, map(_arithmetic_row, ARITHMETIC)))
    sections.append("## Quantised weights")
    sections.append("Weights that are quantised in any other way are refused: `quantised-draft`.")
    header = ("scheme", "what it does", "result")
    sections.append(_table(header, map(_scheme_row, SCHEMES.values())))
    sections.append("## Recognised and refused")
    sections.append("DSpark drafts that are refused by name: `unsupported-dialect`.")
    refused = ((row.name, row.what, row.served_by) for row in UNSUPPORTED)
    sections.append(_table(("draft", "how it differs", "served by"), refused))
    return "\n\n".join(sections) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "checks.md": render_checks,
    "cli.md": render_cli,
    "engines.md": render_engines,
    "dialects.md": render_dialects,
}


def _field_row(rule: FieldRule) -> tuple[str, ...]:
    keys = [
        f"**`{dotted(place.path)}`**" if place.written else f"`{dotted(place.path)}`"
        for place in rule.places
    ]
    if rule.default is REQUIRED:
        absent = "refused"
    else:
        absent = "-" if rule.default is None else f"`{json.dumps(rule.default)}`"
    return rule.field, ", ".join(keys), absent


def _arithmetic_row(row: ArithmeticKey) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in row.names)
    otherwise = "left out" if row.inherited else "refused"
    return names, row.does, row.read_by, row.harmless_values, otherwise


def _scheme_row(scheme: Scheme) -> tuple[str, ...]:
    refused = f"refused (`unsupported-dialect`); served by {scheme.served_by}"
    return scheme.name, scheme.what, "copied as it is" if scheme.companions else refused


def _claim_row(claim: Claim) -> tuple[str, ...]:
    said = {"n": "N", "block": "B", "elsewhere": "serve it with an engine that runs it"}
    reason, way_out = claim.reason.format(**said), claim.way_out.format(**said)
    return _VERDICT_WORDS[claim.verdict], reason, way_out or "-"


@dataclass(frozen=True)
class _Parameter:
    """One argument or option of a command, as declared."""

    names: tuple[str, ...]
    value: str | None
    """The placeholder for its value; None for a flag."""
    is_argument: bool
    help: str
    default: str


def _program(app: typer.Typer) -> Iterator[str]:
    yield f"## {app.info.name}"
    yield str(app.info.help)
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.name is not None
        parameters = list(_parameters(command.callback))
        arguments = [x for x in parameters if x.is_argument]
        options = [x for x in parameters if not x.is_argument]
        usage = (str(app.info.name), command.name, *(str(x.value) for x in arguments))
        yield f"### {app.info.name} {command.name}"
        yield str(inspect.getdoc(command.callback))
        yield f"```\n{' '.join(usage)}{' [OPTIONS]' if options else ''}\n```"
        if arguments:
            yield _table(("argument", "meaning"), ((f"`{x.value}`", x.help) for x in arguments))
        if options:
            rows = ((_spell(option), option.help, option.default) for option in options)
            yield _table(("option", "meaning", "default"), rows)


def _parameters(callback: Callable[..., Any]) -> Iterator[_Parameter]:
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, declared = get_args(hints[name])
        # Typer takes the first name where other frameworks take the default.
        names = [declared.default] if declared.default is not ... else []
        names += declared.param_decls or ()
        yield _Parameter(
            names=tuple(names) or (f"--{name.replace('_', '-')}",),
            value=None if kind is bool else _show_value(declared.metavar) or _describe(kind),
            is_argument=isinstance(declared, ArgumentInfo),
            help=declared.help or "",
            default=_show_default(parameter.default),
        )


def _show_default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    return "" if default is None or default is False else f"`{default}`"


def _show_value(metavar: str | None) -> str | None:
    """The placeholder for a value, as the page shows it."""
    return None if metavar is None else name_engines(metavar).strip("<>")


def _describe(kind: Any) -> str:
    """What a value of a type looks like: its choices, or what kind of number or text."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is not None:  # ... | None
        (kind,) = (part for part in get_args(kind) if part is not type(None))
        return _describe(kind)
    return {int: "INTEGER", float: "NUMBER", str: "TEXT"}[kind]


def _spell(option: _Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in option.names)
    return names if option.value is None else f"{names} `{option.value}`"


def _table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headers, tuple("---" for _ in headers), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that differ."""
    drifted = []
    for name, render in PAGES.items():
        page, text = DOCS / name, render()
        if arguments != ["--check"]:
            page.write_text(text, encoding="utf-8")
        elif not page.is_file() or page.read_text(encoding="utf-8") != text:
            drifted.append(name)
    if drifted:
        sys.stderr.write(f"out of date: {', '.join(drifted)}; run docs/generate.py\n")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
