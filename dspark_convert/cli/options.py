"""Options that several commands share, and the parsing of what users type for them.

Imports nothing heavy: both programs declare their commands with it before they know which one runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from dspark_convert.errors import Finding, UsageError

MAX_NEW_TOKENS = 128

# Of both programs --------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]

# Of dspark-convert -------------------------------------------------------------------------------

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Folder with config.json and safetensors files, or a Hub repository: OWNER/NAME or hf://OWNER/NAME@REVISION.",
    ),
]
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder to create.")]
Layout = Annotated[
    Literal["anchor-first", "bonus-anchor"] | None,
    typer.Option("--layout", help="Override what the source says about its block layout."),
]
TableMeaning = Annotated[
    Literal["offsets", "absolute"] | None,
    typer.Option("--d2t", help="Read the vocabulary table this way, whatever it looks like."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, for instance mask_token_id=151669. Repeatable.",
    ),
]
WrittenFor = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="<{engines}>",
        help="Write the spelling that this engine reads; refuse what it cannot run.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an empty folder or an earlier result.")
]
VerifyBytes = Annotated[bool, typer.Option("--verify-bytes", help="Compare every copied byte.")]

# Of dspark-verify --------------------------------------------------------------------------------

Draft = Annotated[
    str,
    typer.Argument(
        metavar="DRAFT",
        help="Folder of the draft, or a Hub repository: OWNER/NAME or hf://OWNER/NAME@REVISION.",
    ),
]
JudgedDraft = Annotated[
    Path, typer.Option("--for", metavar="DRAFT", help="The draft that the trace will judge.")
]
Target = Annotated[str | None, typer.Option(metavar="REPO_OR_DIR", help="The target model.")]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A recorded trace, or a folder of traces, in place of the target."
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON lines or plain text. Default: a small bundled set."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens to decode after each prompt. Default: 128, or the limit of the trace."
    ),
]
StopTokenIds = Annotated[
    str | None,
    typer.Option(metavar="ID,ID", help="Default: the target's generation config; '' for none."),
]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy. Default: 0, or the temperature of the trace.")
]
TopK = Annotated[int | None, typer.Option(help="For the target's sampling.")]
TopP = Annotated[float | None, typer.Option(help="For the target's sampling.")]
DraftSampling = Annotated[
    Literal["sample", "greedy"],
    typer.Option(help="How draft tokens are drawn above temperature 0; vLLM's default is greedy."),
]
NumSpeculativeTokens = Annotated[
    int | None, typer.Option(help="Default: as many as a block proposes, which is also the most.")
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Decoder = Annotated[
    Literal["auto", "plain", "fast"],
    typer.Option(
        "--decoder",
        "--engine",
        help="What decodes or replays; auto is fast on a GPU if possible, else plain. --engine is "
        "the former name of this option.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="auto (as stored), float32, bfloat16 or float16.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow code in the target's folder to run.")
]
TraceOutput = Annotated[Path, typer.Option(metavar="FILE", help="The trace, a safetensors file.")]
MaxSize = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Refuse a larger trace: 500MB, 2GiB, ...")
]
OverwriteTrace = Annotated[bool, typer.Option("--overwrite", help="Replace an existing trace.")]
JUnit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, for CI.")
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write GitHub Markdown.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with plots; needs matplotlib."),
]
ReportAsJson = Annotated[bool, typer.Option("--json", help="Print the report to stdout.")]
HeaderAsJson = Annotated[bool, typer.Option("--json", help="Print the header to stdout.")]


def name_engines(text: str) -> str:
    """``text`` with every value of ``--for`` in place of ``{engines}``.

    The table of engines takes longer to import than a help text should.
    """
    if "{engines}" not in text:
        return text
    from dspark_convert.engines import written_for

    return text.replace("{engines}", "|".join(written_for()))


# What is typed -----------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_MAX_SIZE_LENGTH = 64
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def stated(**options: object) -> frozenset[str]:
    """The names of the options that the user gave."""
    return frozenset(name for name, value in options.items() if value is not None)


def parse_ids(text: str, option: str, *, code: str = "ids-invalid") -> tuple[int, ...]:
    """Comma-separated ids; raises ``UsageError`` (``code``) for anything else."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise usage_error(code, f"{option} must be a list of numbers", text, "1,2") from None


def parse_stop_token_ids(
    text: str | None, *, code: str = "stop-token-ids-invalid"
) -> frozenset[int] | None:
    """The ids of ``--stop-token-ids``; None: the target's own. Raises as ``parse_ids``."""
    return None if text is None else frozenset(parse_ids(text, "--stop-token-ids", code=code))


def parse_size(text: str | None) -> int | None:
    """Bytes of ``500MB``, ``2GiB`` or a plain number; K, M, G and T are decimal, Ki, Mi... binary.

    Raises ``UsageError`` (``size-invalid``).
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > _MAX_SIZE_LENGTH:
        expected = "500MB, 2GiB, ..."
        raise usage_error("size-invalid", "--max-size must be a number of bytes", text, expected)
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])


def parse_fractions(text: str | None) -> tuple[float, ...]:
    """The values of ``--min-acceptance``; raises ``UsageError`` (``min-acceptance-invalid``)."""
    if text is None:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0.0 <= value <= 1.0 for value in values):
        message, expected = "--min-acceptance must be a list of fractions", "0.6,0.4"
        raise usage_error("min-acceptance-invalid", message, text, expected)
    return values


def usage_error(code: str, message: str, found: str, expected: str) -> UsageError:
    """The error for an option whose value makes no sense."""
    return UsageError(Finding(code=code, message=message, found=found, expected=expected))
