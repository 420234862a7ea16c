"""Does the draft belong to the target: sizes, layers, vocabulary, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dspark_convert.errors import Findings, PromptError
from dspark_convert.formats.target import TargetWeights, validate_pairing
from dspark_convert.schemas.draft import DraftConfig
from dspark_convert.schemas.report import CheckResult, PairingNumbers
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.tokenizer import load_tokenizer

Comparison = Literal["same", "different", "draft has none", "target has none"]


def check_pairing(
    draft: DraftConfig, draft_folder: Path, target: TargetWeights, tokenizer: Any | None
) -> CheckResult:
    """The ``pairing`` check; ``tokenizer`` is the target's, None when it has none."""
    findings = Findings()
    validate_pairing(draft, target.config, target.vocab_size, findings)
    comparison = _compare_tokenizers(draft_folder, tokenizer)
    errors = findings.of("error")
    numbers = PairingNumbers(findings=errors, tokenizer=comparison)
    if errors:
        reason, failed = "; ".join(str(error) for error in errors), True
    elif comparison == "different":
        reason, failed = "the draft's tokenizer gives other ids than the target's", True
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


def _compare_tokenizers(draft_folder: Path, target: Any | None) -> Comparison:
    if target is None:
        return "target has none"
    try:
        draft = load_tokenizer(draft_folder)
    except PromptError:
        return "different"
    if draft is None:
        return "draft has none"
    return "same" if draft.get_vocab() == target.get_vocab() else "different"
