"""Is speculative output the target's own: token by token if greedy, in distribution if sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_convert.checks.base import DECODING, DRAFTING, TEMPERATURE, Check
from dspark_convert.replay.intervals import chi_square_of_uniform, chi_square_tail
from dspark_convert.schemas.numbers import (
    GreedyDifference,
    LosslessGreedyNumbers,
    LosslessSamplingNumbers,
)
from dspark_convert.schemas.report import CheckResult, Verdict

if TYPE_CHECKING:
    import torch

    from dspark_convert.checks.context import CheckContext
    from dspark_convert.checks.observer import RunObserver
    from dspark_convert.runtime import DecodeOptions, DecodeResult, Target

TIE_ULP = 8.0
"""A gap between two logits of up to this many ULP can come from batching alone."""

MAX_LAW_ERROR = 1e-9
SIGNIFICANCE = 1e-6
CHI_SQUARE_BINS = 20
MIN_DRAWS = 10 * CHI_SQUARE_BINS


def check_greedy(
    target: Target,
    prompts: Sequence[Sequence[int]],
    prompt_ids: Sequence[str],
    results: Sequence[DecodeResult],
    options: DecodeOptions,
) -> CheckResult:
    """The ``lossless-greedy`` check on a finished greedy run."""
    from dspark_convert.runtime import decode_plain

    differences, tokens = [], 0
    for prompt, prompt_id, result in zip(prompts, prompt_ids, results, strict=True):
        plain = decode_plain(target, prompt, options)
        tokens += len(plain)
        if plain != result.token_ids:
            difference = _first_difference(target, prompt, prompt_id, result.token_ids, plain)
            differences.append(difference)
    numbers = LosslessGreedyNumbers(
        prompts=len(prompts),
        tokens=tokens,
        identical=len(prompts) - len(differences),
        tie_ulp=TIE_ULP,
        differences=tuple(differences),
    )
    verdict, reason = _decide_greedy(numbers)
    return CheckResult(id="lossless-greedy", verdict=verdict, reason=reason, numbers=numbers)


def check_sampling(observer: RunObserver, temperature: float) -> CheckResult:
    """The ``lossless-sampling`` check on a finished run at a temperature above 0."""
    values = observer.uniform_values.numpy()
    statistic = chi_square_of_uniform(values, CHI_SQUARE_BINS) if len(values) else None
    numbers = LosslessSamplingNumbers(
        temperature=temperature,
        positions=observer.positions,
        max_law_error=observer.max_law_error,
        tokens=len(values),
        impossible=observer.impossible,
        chi_square=statistic,
        degrees_of_freedom=CHI_SQUARE_BINS - 1,
        p_value=None if statistic is None else chi_square_tail(statistic, CHI_SQUARE_BINS - 1),
        significance=SIGNIFICANCE,
    )
    verdict, reason = _decide_sampling(numbers)
    return CheckResult(id="lossless-sampling", verdict=verdict, reason=reason, numbers=numbers)


def ulp(value: float, dtype: torch.dtype) -> float:
    """The distance from ``value`` to the next number of ``dtype``."""
    import torch

    exponent = math.floor(math.log2(abs(value))) if value else 0
    return float(torch.finfo(dtype).eps * 2.0**exponent)


def _first_difference(
    target: Target,
    prompt: Sequence[int],
    prompt_id: str,
    speculative: Sequence[int],
    plain: Sequence[int],
) -> GreedyDifference:
    import torch

    pairs = zip(speculative, plain, strict=False)
    shorter = min(len(speculative), len(plain))
    position = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter - 1)
    read = [*prompt, *plain[:position]]
    tokens = torch.tensor([read], device=target.device)
    logits = target.start(()).prefill(tokens, [len(read)]).logits[0, -1]
    first, second = logits.float().topk(2).values.tolist()
    gap_in_ulp = (first - second) / ulp(first, logits.dtype)
    return GreedyDifference(
        prompt=prompt_id,
        position=position,
        speculative_token_id=speculative[position],
        plain_token_id=plain[position],
        top2_gap=first - second,
        gap_in_ulp=gap_in_ulp,
        tie=gap_in_ulp <= TIE_ULP and speculative[position] != plain[position],
    )


def _decide_greedy(numbers: LosslessGreedyNumbers) -> tuple[Verdict, str]:
    real = [difference for difference in numbers.differences if not difference.tie]
    if real:
        first = real[0]
        return "fail", (
            f"prompt {first.prompt} differs at new token {first.position}, where the target "
            f"decides by {first.gap_in_ulp:.0f} ULP"
        )
    if not numbers.tokens:
        return "inconclusive", "no token was decoded"
    ties = len(numbers.differences)
    said = f"{numbers.identical} of {numbers.prompts} prompts identical, {numbers.tokens} tokens"
    return "pass", f"{said}; {ties} diverge at ties" if ties else said


def _decide_sampling(numbers: LosslessSamplingNumbers) -> tuple[Verdict, str]:
    if numbers.max_law_error is not None and numbers.max_law_error > MAX_LAW_ERROR:
        return (
            "fail",
            f"the distribution of a committed token is off by {numbers.max_law_error:.1e}",
        )
    if numbers.impossible:
        return "fail", f"{numbers.impossible} of {numbers.tokens} draws had probability zero"
    if numbers.p_value is not None and numbers.p_value < SIGNIFICANCE:
        return "fail", f"tokens do not follow p and q: chi-square p = {numbers.p_value:.1e}"
    if numbers.p_value is None or numbers.tokens < MIN_DRAWS or not numbers.positions:
        return "inconclusive", f"{numbers.tokens} draws; the test needs {MIN_DRAWS}"
    return "pass", (
        f"distribution off by at most {numbers.max_law_error:.1e} at {numbers.positions} "
        "positions; "
        f"chi-square p = {numbers.p_value:.3f} over {numbers.tokens} draws"
    )


def _check_greedy(context: CheckContext) -> CheckResult:
    """At temperature 0, whatever the temperature of the run."""
    run = context.decode_run
    options, results = run.run_greedily()
    return check_greedy(run.target, run.token_ids, run.names, results, options)


def _check_sampling(context: CheckContext) -> CheckResult:
    run = context.decode_run
    return check_sampling(run.observer, run.options.temperature)


LOSSLESS_GREEDY = Check(
    id="lossless-greedy",
    title="Is greedy speculative output the target's own?",
    looks_at="At temperature 0, the output of speculative decoding is compared with a plain loop "
    "over the target, token by token.",
    fails_when="The two diverge at a position where the target's choice was clear. If its two "
    "largest logits lie within a few ULP of its dtype, batching alone can tip the choice: that is "
    "reported as a tie.",
    what_to_do="A failure is a fault of the decoder or the target's cache, never of the "
    "draft's weights: report it. `--decoder plain` tells whether it is the fast decoder's.",
    needs=(*DRAFTING, DECODING),
    run=_check_greedy,
)

LOSSLESS_SAMPLING = Check(
    id="lossless-sampling",
    title="Does sampled speculative output follow the target's distribution?",
    looks_at="At a temperature above 0: the exact distribution of a committed token, computed in "
    "float64 from the real p and q of visited positions; and a seeded chi-square test of what was "
    "drawn: each drafted token against q, its acceptance against min(1, p/q), and the token after "
    "them against the residual or p.",
    fails_when="The distribution differs from p by more than 1e-9, something of probability zero "
    "was drawn, or the chi-square test rejects at the stated significance.",
    what_to_do="As for lossless-greedy: report it.",
    needs=(*DRAFTING, DECODING, TEMPERATURE),
    run=_check_sampling,
)
