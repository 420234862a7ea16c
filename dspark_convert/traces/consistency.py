"""Whether the stored numbers of a text agree with each other, as those of one target must.

A trace vouches for probabilities that nobody computes again, so every number that follows from
another is held against it: a draft must not pass or fail because of a trace that was damaged or
edited.

Shapes: L generated tokens of a text, K largest probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.file import RECORD_AGAIN, trace_error

PROBABILITY_TOLERANCE = 1e-3
"""Absolute, of probabilities and of logarithms of probabilities: fp32 sums over a vocabulary."""

MIN_AGREEMENT_OF_A_TEXT = 0.5
"""Of imported greedy texts. Their target ran in another engine, whose argmax may differ at ties;
agreement over all texts is checked when they are imported."""

Fault = tuple[str, str, str, str]
"""Code, tensor, what is wrong, and what was found at the first place."""


def check_consistency(
    numbers: dict[str, Tensor | None],
    emitted_L: Tensor,
    header: TraceHeader,
    file: str,
    prefix: str,
) -> None:
    """Raise for the first contradiction between the tensors of one text.

    Args:
        numbers: ``log_probs`` [L], ``top_ids``, ``top_log_probs`` [L, K], ``tail_mass`` [L],
            ``argmax_ids`` and ``top2_gap`` [L]; None where the trace does not hold them.
        emitted_L: the generated tokens, int64 [L].
        header: of the trace.
        file: name of the file, for the message.
        prefix: of the names of the tensors of the text.

    Raises:
        TraceError: ``trace-probability-invalid`` for a number that cannot be a probability;
            ``trace-inconsistent`` for two that contradict each other. The tensor and the position
            are named.
    """
    for code, tensor, message, found in _faults(numbers, emitted_L, header):
        raise trace_error(
            code, message, file=file, tensor=prefix + tensor, found=found, hint=RECORD_AGAIN
        )


def _faults(
    numbers: dict[str, Tensor | None], emitted_L: Tensor, header: TraceHeader
) -> Iterator[Fault]:
    yield from _invalid_probabilities(numbers)
    yield from _invalid_gaps(numbers["top2_gap"])
    log_probs_L, argmax_L = numbers["log_probs"], numbers["argmax_ids"]
    if argmax_L is not None:
        yield from _other_choices(argmax_L, emitted_L, header)
    top_ids_LK, top_LK, tail_L = (numbers[n] for n in ("top_ids", "top_log_probs", "tail_mass"))
    if top_ids_LK is None or top_LK is None or tail_L is None:
        return
    yield from _unordered_candidates(top_ids_LK, top_LK)
    yield from _wrong_totals(top_LK, tail_L)
    if argmax_L is not None:
        yield from _other_first_candidates(top_ids_LK, top_LK, argmax_L)
    if log_probs_L is not None and header.top_temperature == header.sampling.temperature:
        yield from _other_log_probs(log_probs_L, emitted_L, top_ids_LK, top_LK, tail_L)


def _invalid_probabilities(numbers: dict[str, Tensor | None]) -> Iterator[Fault]:
    """Logarithms are at most 0, masses lie between 0 and 1, but for rounding; nothing is NaN."""
    limits = {"log_probs": (-torch.inf, 0.0), "top_log_probs": (-torch.inf, 0.0)}
    for name, (least, most) in {**limits, "tail_mass": (0.0, 1.0)}.items():
        values = numbers[name]
        if values is None:
            continue
        slack = PROBABILITY_TOLERANCE
        wrong = ~((values >= least - slack) & (values <= most + slack))
        yield from _first(
            wrong,
            "trace-probability-invalid",
            name,
            "a stored value cannot be a probability",
            lambda index, values=values: f"{float(values.flatten()[index]):g}",  # type: ignore[misc]
        )


def _invalid_gaps(gap_L: Tensor | None) -> Iterator[Fault]:
    if gap_L is not None:
        yield from _first(
            ~((gap_L >= 0) & gap_L.isfinite()),
            "trace-inconsistent",
            "top2_gap",
            "the gap between the two largest logits is negative or not finite",
            lambda index: f"{float(gap_L[index]):g}",
        )


def _other_choices(argmax_L: Tensor, emitted_L: Tensor, header: TraceHeader) -> Iterator[Fault]:
    """A greedy text is made of the target's own choices."""
    if header.text_origin != "target" or header.sampling.temperature > 0:
        return
    differs = argmax_L != emitted_L
    if header.recorded_by == "vllm":
        share = 1 - float(differs.double().mean())
        if share >= MIN_AGREEMENT_OF_A_TEXT:
            return
    yield from _first(
        differs,
        "trace-inconsistent",
        "argmax_ids",
        "the text is greedy, and not made of the target's choices",
        lambda index: f"choice {int(argmax_L[index])}, token {int(emitted_L[index])}",
    )


def _unordered_candidates(top_ids_LK: Tensor, top_LK: Tensor) -> Iterator[Fault]:
    ordered_LK = top_ids_LK.sort(-1).values
    yield from _first(
        (ordered_LK[:, 1:] == ordered_LK[:, :-1]).any(-1),
        "trace-inconsistent",
        "top_ids",
        "a token is listed twice among the most likely",
        lambda index: str(top_ids_LK[index].tolist()[:8]),
    )
    yield from _first(
        (top_LK[:, 1:] > top_LK[:, :-1] + PROBABILITY_TOLERANCE).any(-1),
        "trace-inconsistent",
        "top_log_probs",
        "the most likely tokens are not listed most likely first",
        lambda index: str([round(x, 4) for x in top_LK[index].tolist()[:8]]),
    )


def _wrong_totals(top_LK: Tensor, tail_L: Tensor) -> Iterator[Fault]:
    total_L = top_LK.double().exp().sum(-1) + tail_L.double()
    yield from _first(
        (total_L - 1).abs() > PROBABILITY_TOLERANCE,
        "trace-inconsistent",
        "tail_mass",
        "the most likely tokens and all others together do not have probability 1",
        lambda index: f"{float(total_L[index]):g}",
    )


def _other_first_candidates(
    top_ids_LK: Tensor, top_LK: Tensor, argmax_L: Tensor
) -> Iterator[Fault]:
    """The target's choice is the most likely token, or as likely as that."""
    of_choice_L = _log_probs_among(argmax_L, top_ids_LK, top_LK)
    yield from _first(
        ~(of_choice_L >= top_LK[:, 0] - PROBABILITY_TOLERANCE),
        "trace-inconsistent",
        "argmax_ids",
        "the target's choice is not the most likely token",
        lambda index: f"choice {int(argmax_L[index])}, most likely {int(top_ids_LK[index, 0])}",
    )


def _other_log_probs(
    log_probs_L: Tensor, emitted_L: Tensor, top_ids_LK: Tensor, top_LK: Tensor, tail_L: Tensor
) -> Iterator[Fault]:
    """The emitted token has the probability of its entry, or one that the others leave room for."""
    listed_L = (top_ids_LK == emitted_L[:, None]).any(-1)
    entry_L = _log_probs_among(emitted_L, top_ids_LK, top_LK)
    same_L = (entry_L == log_probs_L) | ((entry_L - log_probs_L).abs() <= PROBABILITY_TOLERANCE)
    room_L = torch.minimum(tail_L, top_LK[:, -1].exp())
    fits_L = log_probs_L.exp() <= room_L + PROBABILITY_TOLERANCE
    yield from _first(
        ~torch.where(listed_L, same_L, fits_L),
        "trace-inconsistent",
        "log_probs",
        "the probability of the emitted token is not the one that is listed for it",
        lambda index: (
            f"log p {float(log_probs_L[index]):g}, listed "
            f"{float(entry_L[index]):g}, others {float(tail_L[index]):g} together"
        ),
    )


def _log_probs_among(ids_L: Tensor, top_ids_LK: Tensor, top_LK: Tensor) -> Tensor:
    """The listed log p of one token of each position, -inf where it is not listed."""
    here_LK = top_ids_LK == ids_L[:, None]
    return top_LK.masked_fill(~here_LK, -torch.inf).amax(-1)


def _first(
    wrong: Tensor, code: str, tensor: str, message: str, found: Callable[[int], str]
) -> Iterator[Fault]:
    """The fault at the first place that is ``wrong``, if there is one."""
    if not bool(wrong.any()):
        return
    index = int(wrong.flatten().byte().argmax())
    per_position = wrong[0].numel() if wrong.dim() > 1 else 1
    yield code, tensor, message, f"{found(index)} at generated token {index // per_position}"
