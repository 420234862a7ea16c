"""What a trace holds, as a table."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType

from dspark_convert.cli.views.tables import facts_grid
from dspark_convert.schemas.trace import TraceHeader


def trace_view(header: TraceHeader, path: Path) -> RenderableType:
    """The file, whose texts it holds, and of which layers."""
    generated = sum(entry.num_tokens - entry.first_generated for entry in header.sequences)
    sampling = header.sampling
    origin = "given" if header.text_origin == "given" else f"temperature {sampling.temperature:g}"
    return facts_grid(
        [
            ("trace", str(path)),
            ("target", f"{header.target.name} ({header.target.dtype})"),
            ("texts", f"{len(header.sequences)}, {generated} tokens after the prompts, {origin}"),
            ("layers", ", ".join(map(str, header.layer_ids))),
        ]
    )
