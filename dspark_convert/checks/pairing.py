"""Whether the draft belongs to the target: sizes, layers, vocabulary, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dspark_convert.checks.base import SOUND_DRAFT, TARGET, Check
from dspark_convert.errors import Findings, PromptError
from dspark_convert.formats.target import TargetWeights, validate_pairing
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.numbers import PairingNumbers
from dspark_convert.schemas.report import CheckResult
from dspark_convert.schemas.trace import TraceHeader

if TYPE_CHECKING:
    from dspark_convert.checks.context import CheckContext

Comparison = Literal["same", "different", "draft has none", "target has none"]


def check_pairing(
    draft: DraftConfig, draft_folder: Path, target: TargetWeights, tokenizer: Any | None
) -> CheckResult:
    """The ``pairing`` check; ``tokenizer`` is the target's, None if it has none."""
    findings = Findings()
    validate_pairing(draft, target.config, target.vocab_size, findings)
    comparison = _compare_tokenizers(draft_folder, tokenizer)
    errors = findings.of("error")
    numbers = PairingNumbers(findings=errors, tokenizer=comparison)
    if errors:
        reason, failed = "; ".join(str(error) for error in errors), True
    elif comparison == "different":
        reason, failed = "the draft's tokenizer gives different ids from the target's", True
    else:
        reason, failed = f"sizes and layers fit; tokenizer: {comparison}", False
    return CheckResult(
        id="pairing", verdict="fail" if failed else "pass", reason=reason, numbers=numbers
    )


def check_trace_pairing(draft: DraftConfig, header: TraceHeader) -> CheckResult:
    """The ``pairing`` check against the target of a trace."""
    target = header.target
    sizes = target.model_dump(include={"hidden_size", "num_hidden_layers", "vocab_size"})
    findings = Findings()
    validate_pairing(draft, sizes, target.vocab_size, findings)
    errors = findings.of("error")
    return CheckResult(
        id="pairing",
        verdict="fail" if errors else "pass",
        reason="; ".join(map(str, errors)) or "sizes and layers fit those of the trace's target",
        numbers=PairingNumbers(findings=errors, tokenizer="not compared"),
    )


def _check(context: CheckContext) -> CheckResult:
    config = context.source.config
    if context.trace is not None:
        return check_trace_pairing(config, context.trace.header)
    target = context.target_weights
    assert target is not None, "a target or a trace was given"
    return check_pairing(config, context.options.draft, target, context.tokenizer)


def _compare_tokenizers(draft_folder: Path, target: Any | None) -> Comparison:
    from dspark_convert.traces.tokenizer import load_tokenizer

    if target is None:
        return "target has none"
    try:
        draft = load_tokenizer(draft_folder)
    except PromptError:
        return "different"
    if draft is None:
        return "draft has none"
    return "same" if draft.get_vocab() == target.get_vocab() else "different"


PAIRING = Check(
    id="pairing",
    title="Does the draft belong to this target?",
    looks_at="Hidden size, depth, layer ids and vocabulary of the draft against the target's "
    "config, and the two tokenizers if both folders have one.",
    fails_when="A size differs, a layer id is beyond the target's depth, or the tokenizers "
    "give different ids. Skipped without a target.",
    what_to_do="Give the target that the draft was trained for, or correct the draft's config "
    "with `dspark-convert to-dense --set`.",
    needs=(SOUND_DRAFT, TARGET),
    run=_check,
)
