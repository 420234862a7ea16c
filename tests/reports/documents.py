"""Reports to write: small, and hostile in every text that comes from a file."""

from __future__ import annotations

from typing import Any

from dspark_convert.schemas.report import VerifyReport

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title><img src=http://evil.invalid/x onerror=alert(1)>",
    "\" onload='alert(1)",
    "a | b | c",
    "`code` **bold** _it_ ~~gone~~ [link](http://evil.invalid) ![i](http://evil.invalid/i.png)",
    "http://evil.invalid www.evil.invalid mail@evil.invalid @octocat #1 :smile: $x^2$",
    "line\n\n# heading\n| new | row |",
    "\x1b[2J\x1b]0;title\x07\x00\x0b\x9b31m",
    "\u202eright\u2066to left\u200b",
    "\ufffe\uffff\U0001ffff",
    "]]> <!-- --> &amp; &#0; <![CDATA[",
    "C:\\path\\\\ \\| \\`",
)


def acceptance(
    length: float = 2.0, rounds: tuple[tuple[int, ...], ...] = ((0, 2), (1, 1)), **changes: Any
) -> dict[str, Any]:
    """The numbers of a draft of two tokens; ``rounds`` are the accepted ones of each prompt."""
    accepted = [count for prompt in rounds for count in prompt]
    histogram = tuple(accepted.count(count) for count in (0, 1, 2))
    first, both = histogram[1] + histogram[2], histogram[2]
    several = len(rounds) > 1
    return {
        "accepted_length": length,
        "interval95": (length - 0.1, length + 0.1) if several else None,
        "threshold": 1.1,
        "rounds": len(accepted),
        "committed": length * len(accepted),
        "drafted": 8,
        "accepted": sum(accepted),
        "acceptance_by_position": (first / len(accepted), both / first if first else None),
        "acceptance_interval95": ((0.5, 1.0) if several else None, None),
        "survival_by_position": (first / len(accepted), both / len(accepted)),
        "histogram": histogram,
        "accepted_length_by_num_speculative_tokens": (1.75, 2.0),
        "mass_outside_draft_vocabulary": 0.0,
        "prompts_needed": None,
        "warnings": (),
        "prompts": tuple(
            {"id": str(row), "accepted_per_round": accepted} for row, accepted in enumerate(rounds)
        ),
        **changes,
    }


OF_OTHER_CHECKS: dict[str, dict[str, Any]] = {
    "structure": {"errors": 0, "warnings": 0, "notes": 0, "findings": ()},
    "pairing": {"findings": (), "tokenizer": "same"},
    "parity": {
        "contexts": 1,
        "compared": ("base_logits",),
        "different": (),
        "max_abs_difference": 0.0,
        "stand_ins": (),
    },
    "lossless-greedy": {
        "prompts": 2,
        "tokens": 8,
        "identical": 2,
        "tie_ulp": 8.0,
        "differences": (),
    },
}
CONFIDENCE = {
    "tokens": 3,
    "accepted": 2,
    "expected_calibration_error": 0.1,
    "auc": 0.75,
    "auc_standard_error": 0.2,
    "by_position": ({"position": 1, "tokens": 3, "mean_confidence": 0.6, "acceptance": 2 / 3},),
    "reliability": (
        {"low": 0.0, "high": 0.5, "tokens": 1, "mean_confidence": 0.25, "acceptance": 0.0},
        {"low": 0.5, "high": 1.0, "tokens": 2, "mean_confidence": 0.75, "acceptance": 1.0},
    ),
}


def report(text: str = "draft", **changes: Any) -> VerifyReport:
    """A report of every verdict in which ``text`` stands wherever files have their say."""
    verdicts = changes.pop("verdicts", {})
    numbers = {"acceptance": acceptance(warnings=(text,)), "confidence": CONFIDENCE}
    numbers |= OF_OTHER_CHECKS | changes.pop("numbers", {})
    settings = changes.pop("settings", {})
    verdict = changes.pop("verdict", "fail")
    found = {
        "structure": "pass",
        "pairing": "pass",
        "parity": "skipped",
        "lossless-greedy": "inconclusive",
        "lossless-sampling": "skipped",
        "acceptance": "fail",
        "confidence": "pass",
        **verdicts,
    }
    return VerifyReport.model_validate(
        {
            "tool_version": "0",
            "verdict": verdict,
            "draft": {"name": text, "dialect": "dense", "config_sha256": "a", "config": None},
            "target": {
                "name": text,
                "config_sha256": "t",
                "architecture": text,
                "dtype": "float32",
                "device": "cpu",
            },
            "settings": {
                "prompts": text,
                "num_prompts": 2,
                "max_new_tokens": 8,
                "stop_token_ids": (),
                "temperature": 0.0,
                "top_k": None,
                "top_p": None,
                "draft_sampling": "sample",
                "num_speculative_tokens": None,
                "confidence_threshold": None,
                "seed": 0,
                "batch_size": 8,
                "device": "cpu",
                "engine": "plain",
                "engine_reason": text,
                "dtype": "auto",
                "min_accepted_length": None,
                "min_acceptance": (),
                "source": None,
                "versions": {text: text},
                **settings,
            },
            "checks": tuple(
                {
                    "id": name,
                    "verdict": verdict,
                    "reason": text,
                    "numbers": None if verdict == "skipped" else numbers.get(name),
                }
                for name, verdict in found.items()
            ),
            "gate": {
                "file": text,
                "prompt_set": text,
                "baseline": text,
                "verdict": verdict,
                "rules": ({"rule": "required-check:parity", "verdict": verdict, "reason": text},),
            },
            "example": {
                "id": text,
                "first": text,
                "rounds": ({"accepted": text, "bonus": text},),
            },
            "worst": (
                {
                    "id": text,
                    "accepted_length": 1.5,
                    "spans": ({"text": text, "kind": "accepted", "probability": 1.0},),
                },
            ),
            "seconds": {"acceptance": 1.25},
            **changes,
        }
    )
