"""Options that several commands of ``dspark-verify`` share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class DraftSamplingOption(str, enum.Enum):
    """``--draft-sampling`` as users write it."""

    sample = "sample"
    greedy = "greedy"


class EngineOption(str, enum.Enum):
    """``--engine`` as users write it."""

    auto = "auto"
    plain = "plain"
    fast = "fast"


class TextOriginOption(str, enum.Enum):
    """``--text-origin`` as users write it."""

    greedy = "greedy"
    given = "given"


Draft = Annotated[
    str,
    typer.Argument(
        metavar="DRAFT",
        help="Folder of the draft, or a repository of the Hub: OWNER/NAME, "
        "hf://OWNER/NAME@REVISION.",
    ),
]
Target = Annotated[str | None, typer.Option(metavar="REPO_OR_DIR", help="The target model.")]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A recorded trace, or a folder of them, in place of the target."
    ),
]
TargetWeights = Annotated[
    str | None,
    typer.Option(
        metavar="REPO_OR_DIR",
        help="With --trace: the target model, for tensors that the draft lacks.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON lines or plain text; a small set is bundled."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(help="Tokens to decode after each prompt; 128, or what a trace has."),
]
StopTokenIds = Annotated[
    str | None,
    typer.Option(metavar="ID,ID", help="Default: the target's generation config; '' for none."),
]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; the default, unless a trace has another.")
]
TopK = Annotated[int | None, typer.Option(help="Of the target's sampling.")]
TopP = Annotated[float | None, typer.Option(help="Of the target's sampling.")]
DraftSampling = Annotated[
    DraftSamplingOption,
    typer.Option(help="How drafts are drawn above temperature 0; vLLM's default is greedy."),
]
NumSpeculativeTokens = Annotated[
    int | None, typer.Option(help="At most what a block proposes, the default.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Engine = Annotated[
    EngineOption,
    typer.Option(
        help="What decodes or replays; auto is fast on a GPU where it can be, else plain."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="auto (as stored), float32, bfloat16 or float16.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let code of the target's folder run.")
]
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
AsJson = Annotated[bool, typer.Option("--json", help="Print the report to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
