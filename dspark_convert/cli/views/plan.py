"""Conversion plans, drafts and what engines do with them, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dspark_convert.cli.console import literal, visible
from dspark_convert.cli.views.tables import facts_grid, plain_table
from dspark_convert.schemas.bundled import BundledDraft
from dspark_convert.schemas.draft import DraftConfig, Layout
from dspark_convert.schemas.engines import EnginesReport
from dspark_convert.schemas.inspection import CheckReport, Inspection
from dspark_convert.schemas.plan import ConversionPlan, EngineNote

_LAYOUT_WORDS = {
    Layout.ANCHOR_FIRST: "anchor-first: every slot predicts the next position",
    Layout.BONUS_ANCHOR: "1+N (bonus anchor): slot 0 is the anchor and is not sampled",
}
_VERDICT_STYLE = {"loads": "green", "refuses": "red", "silent": "yellow"}
_VERDICT_WORDS = {"loads": "loads", "refuses": "refuses", "silent": "silent fault"}


def plan_view(plan: ConversionPlan) -> RenderableType:
    """The whole plan: every tensor, every key, every file."""
    return Group(
        facts_grid(_plan_facts(plan)),
        _rows(
            "Tensors",
            ("action", "source", "result", "type", "reason"),
            (
                (
                    step.action,
                    step.source or "-",
                    step.name or "-",
                    f"{step.dtype} {list(step.shape)}",
                    step.reason,
                )
                for step in plan.tensors
            ),
        ),
        _rows(
            "Config keys",
            ("action", "source", "result", "reason"),
            (
                (step.action, step.source or "-", ", ".join(step.names) or "-", step.reason)
                for step in plan.keys
            ),
        ),
        _rows(
            "Other files",
            ("action", "file", "reason"),
            ((step.action, step.name, step.reason) for step in plan.side_files),
        ),
        engine_view(plan.engines),
    )


def summary_view(plan: ConversionPlan, output: str) -> RenderableType:
    """What a finished conversion did, on one screen."""
    facts = [("result", output), *_plan_facts(plan)]
    return Group(facts_grid(facts), engine_view(plan.engines))


def inspection_view(inspection: Inspection) -> RenderableType:
    """A draft as it lies on disk."""
    facts = [
        ("draft", inspection.name),
        ("dialect", inspection.dialect or "not recognised"),
        ("evidence", "; ".join(inspection.evidence) or "-"),
    ]
    if inspection.draft is not None:
        facts += _draft_facts(inspection.draft, inspection.layout_evidence or "")
    if inspection.bundled is not None:
        facts += _bundled_facts(inspection.bundled)
        return facts_grid(facts)
    facts += [
        ("vocabulary table", inspection.vocabulary_table or "not established"),
        ("weights", _weights_text(inspection)),
        ("not stored", _absent_text(inspection)),
    ]
    if inspection.not_understood:
        facts.append(("not understood", ", ".join(inspection.not_understood)))
    views: list[RenderableType] = [facts_grid(facts)]
    if inspection.engines:
        views.append(engine_view(inspection.engines))
    return Group(*views)


def _bundled_facts(draft: BundledDraft) -> list[tuple[str, str]]:
    dtypes = ", ".join(f"{dtype} {_size(count)}" for dtype, count in draft.dtypes.items())
    return [
        (
            "draft",
            f"bundled in a DeepSeek-{draft.generation.upper()} target: {draft.stages} stages",
        ),
        ("block", f"{draft.block_size} slots, mask token {draft.mask_token_id}"),
        ("target layers", ", ".join(map(str, draft.target_layer_ids))),
        ("Markov head", f"{draft.markov_head_type}, rank {draft.markov_rank}"),
        ("confidence head", "stored" if draft.confidence_head else "none"),
        ("experts", f"{draft.routed_experts} routed"),
        ("weights", f"{draft.tensors} tensors, {_size(draft.weight_bytes)}; {dtypes}"),
        ("conversion", "none: engines load it from this folder, under these names"),
    ]


def check_view(report: CheckReport) -> RenderableType:
    """The verdict in one line; the findings go to stderr."""
    counts = Counter(finding.severity for finding in report.findings)
    style = "green" if report.verdict == "pass" else "red"
    line = Text(report.verdict, style=f"bold {style}")
    line.append_text(
        literal(
            f"  {report.name}: {counts['error']} errors, {counts['warning']} warnings, "
            f"{counts['note']} notes"
        )
    )
    return line


def engine_view(notes: Iterable[EngineNote]) -> RenderableType:
    """Which engines can load the checkpoint, and what they silently get wrong."""
    table = plain_table("Engines", ("engine", "verdict", "because"))
    named: set[str] = set()
    for note in notes:
        table.add_row(
            literal("" if note.engine in named else f"{note.engine} {note.version}"),
            Text(_VERDICT_WORDS[note.verdict], style=_VERDICT_STYLE[note.verdict]),
            literal(note.reason),
        )
        named.add(note.engine)
    return table


def engines_view(report: EnginesReport) -> Iterator[RenderableType]:
    """What every engine does, and the commands that start it, ready to be copied."""
    tokens = f"{report.num_speculative_tokens} of a block of {report.block_size} slots"
    yield facts_grid(
        [
            ("draft", f"{report.name} ({report.dialect})"),
            ("layout", f"{_LAYOUT_WORDS[report.layout]} ({report.layout_evidence})"),
            ("speculative tokens", tokens),
        ]
    )
    for engine in report.engines:
        heading = literal(f"{engine.engine} {engine.version}  ", "bold")
        heading.append(_VERDICT_WORDS[engine.verdict], _VERDICT_STYLE[engine.verdict])
        yield Text()
        yield heading
        for note in engine.notes:
            yield Padding(literal(_note_text(note)), (0, 0, 0, 2))
        for line in engine.launch:
            yield Text(f"  $ {visible(line)}", no_wrap=True)


def _note_text(note: EngineNote) -> str:
    verdict = "avoided" if note.avoided_by_launch else _VERDICT_WORDS[note.verdict]
    way_out = f"; {note.way_out}" if note.way_out else ""
    return f"{verdict}: {note.reason}{way_out} [{note.evidence}]"


def _plan_facts(plan: ConversionPlan) -> list[tuple[str, str]]:
    actions = Counter(step.action for step in plan.tensors)
    keys = Counter(step.action for step in plan.keys)
    return [
        ("source", f"{plan.source.name} ({plan.dialect})"),
        *_draft_facts(plan.draft, plan.layout_evidence),
        ("tensors", ", ".join(f"{count} {action}" for action, count in actions.items())),
        ("config keys", ", ".join(f"{count} {action}" for action, count in keys.items())),
        ("weights", f"{len(plan.output_bytes)} files, {_size(sum(plan.output_bytes.values()))}"),
        *([("written for", plan.written_for)] if plan.written_for != "reference" else []),
        *([("vocabulary", "expanded")] if plan.vocabulary_expanded else []),
        *([("overrides", _overrides_text(plan))] if plan.overrides else []),
    ]


def _overrides_text(plan: ConversionPlan) -> str:
    return ", ".join(f"{key}={value}" for key, value in plan.overrides.items())


def _draft_facts(draft: DraftConfig, layout_evidence: str) -> list[tuple[str, str]]:
    tokens = draft.num_speculative_tokens
    return [
        ("layout", f"{_LAYOUT_WORDS[draft.layout]} ({layout_evidence})"),
        ("block", f"{draft.block_size} slots; serve with {tokens} speculative tokens"),
        ("vocabulary", _vocabulary_text(draft)),
        ("listens to", f"after target layers {list(draft.target_layer_ids)}"),
        ("decoder", _decoder_text(draft)),
        ("Markov head", _markov_text(draft)),
        ("confidence head", _confidence_text(draft)),
    ]


def _vocabulary_text(draft: DraftConfig) -> str:
    if draft.reduced_vocabulary:
        return f"reduced: {draft.draft_vocab_size} of {draft.vocab_size} tokens"
    if draft.draft_vocab_size > draft.vocab_size:
        return f"full, {draft.vocab_size} tokens padded to {draft.draft_vocab_size}"
    return f"full: {draft.vocab_size} tokens"


def _decoder_text(draft: DraftConfig) -> str:
    text = (
        f"{draft.num_hidden_layers} layers, hidden {draft.hidden_size}, "
        f"{draft.num_attention_heads}/{draft.num_key_value_heads} heads of {draft.head_dim}, "
        f"RoPE base {draft.rope_parameters['rope_theta']:,.10g} "
        f"({draft.rope_parameters['rope_type']})"
    )
    if draft.slides:
        kind = "bidirectional" if draft.sliding_window_non_causal else "causal"
        sliding = draft.layer_types.count("sliding_attention")
        text += f"; {sliding} layers slide over {draft.sliding_window}, {kind} in the block"
    return text


def _markov_text(draft: DraftConfig) -> str:
    return f"{draft.markov_head_type}, rank {draft.markov_rank}" if draft.markov_rank else "none"


def _confidence_text(draft: DraftConfig) -> str:
    if not draft.enable_confidence_head:
        return "none"
    return "with Markov input" if draft.confidence_head_with_markov else "without Markov input"


def _absent_text(inspection: Inspection) -> str:
    if inspection.absent is None:
        return "not established"
    return ", ".join(inspection.absent) or "nothing"


def _weights_text(inspection: Inspection) -> str:
    if not inspection.weight_files:
        return "not readable"
    dtypes = ", ".join(f"{dtype} {_size(count)}" for dtype, count in inspection.dtypes.items())
    return (
        f"{inspection.tensors} tensors in {len(inspection.weight_files)} files, "
        f"{inspection.parameters:,} parameters; {dtypes}"
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _rows(title: str, headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = plain_table(title, headers)
    for row in rows:
        table.add_row(*(literal(cell) for cell in row))
    return table
