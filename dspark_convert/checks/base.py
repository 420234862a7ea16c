"""Every check in words: what it looks at, when it fails, what to do then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspark_convert.schemas.report import CheckId


@dataclass(frozen=True)
class Explanation:
    """The text behind ``dspark-verify explain ID``."""

    title: str
    looks_at: str
    fails_when: str
    what_to_do: str


CATALOG: Mapping[CheckId, Explanation] = {
    "structure": Explanation(
        title="Do the files make a complete, consistent draft?",
        looks_at="Config, safetensors headers and vocabulary tables, as `dspark-convert check` "
        "reads them: every tensor that the config implies, with its shape; layer ids, mask token, "
        "layout, heads. No model runs.",
        fails_when="Anything is missing, contradictory or out of range. Serving engines rarely "
        "notice: they serve uninitialised memory.",
        what_to_do="Each finding names the file, key or tensor and the option that overrules it.",
    ),
    "pairing": Explanation(
        title="Does the draft belong to this target?",
        looks_at="Hidden size, depth, layer ids and vocabulary of the draft against the target's "
        "config, and the two tokenizers where both folders have one.",
        fails_when="A size differs, a layer id is beyond the target's depth, or the tokenizers "
        "give different ids. Skipped without a target.",
        what_to_do="Give the target that the draft was trained for, or correct the draft's config "
        "with `dspark-convert to-dense --set`.",
    ),
    "parity": Explanation(
        title="Does the converted draft compute what the original computes?",
        looks_at="Both drafts propose blocks from the same random contexts; logits and confidence "
        "are compared bit by bit. Tensors that neither stores come from the target, or one seeded "
        "random tensor stands in for both. Needs --source.",
        fails_when="Any output differs in any bit.",
        what_to_do="Convert again; if it still differs, the conversion is wrong: report it.",
    ),
    "lossless-greedy": Explanation(
        title="Is greedy speculative output the target's own?",
        looks_at="At temperature 0, the output of speculative decoding against a plain loop over "
        "the target, token by token.",
        fails_when="They part at a position where the target was not undecided. Where its two "
        "largest logits lie within a few ULP of its dtype, batching alone can tip the choice: "
        "that is reported as a tie.",
        what_to_do="A failure is a fault of the decoder or the target's cache, never of the "
        "draft's weights: report it. `--engine plain` tells whether it is the fast decoder's.",
    ),
    "lossless-sampling": Explanation(
        title="Does sampled speculative output follow the target's distribution?",
        looks_at="At a temperature above 0: the exact law of a committed token, computed in "
        "float64 from the real p and q of visited positions; and a seeded chi-square test of what "
        "was drawn: each drafted token against q, its verdict against min(1, p/q), and the token "
        "after them against the residual or p.",
        fails_when="The law differs from p by more than 1e-9, something was drawn that has no "
        "probability, or the chi-square test rejects at the stated significance.",
        what_to_do="As for lossless-greedy: report it.",
    ),
    "acceptance": Explanation(
        title="How many tokens does a round commit?",
        looks_at="A decode run over the prompts, or a replay of a trace (--trace), which computes "
        "what such runs come to on average, given their texts. Accepted length: committed tokens "
        "per round, "
        "the bonus token included, pooled over prompts; the prefill's token belongs to no round. "
        "Acceptance at position k is conditional on the k-1 tokens before it; survival is the "
        "share of all rounds whose first k tokens stand, which engines report as per-position "
        "acceptance rate. The interval is a bootstrap over prompts.",
        fails_when="The interval lies below --min-accepted-length or --min-acceptance; without a "
        "threshold, when the accepted length is below 1.1, where a draft only costs. When the "
        "interval holds the threshold the check is inconclusive and says how many prompts would "
        "decide.",
        what_to_do="Accepted lengths near 1 usually mean a misread draft: wrong layout, "
        "vocabulary table or target layers. `dspark-verify diagnose` tries the other "
        "readings; --worst N shows the texts; --source compares with the original.",
    ),
    "confidence": Explanation(
        title="Can the confidence head be believed?",
        looks_at="The head's probability for each drafted token whose fate is known, against what "
        "happened: expected calibration error over 10 bins, and the area under the ROC curve "
        "(0.5: no better than chance).",
        fails_when="Rejected tokens rank above accepted ones beyond noise. Skipped without a "
        "confidence head.",
        what_to_do="Do not serve with a confidence threshold; check that the head was converted "
        "with its Markov input (confidence_head_with_markov).",
    ),
}


def explain(check_id: CheckId) -> str:
    """The text of one check, as paragraphs."""
    entry = CATALOG[check_id]
    return (
        f"{check_id}: {entry.title}\n\n{entry.looks_at}\n\n"
        f"Fails when: {entry.fails_when}\n\nWhat to do: {entry.what_to_do}\n"
    )
