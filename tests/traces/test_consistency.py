"""A trace that contradicts itself is refused with where; one that a target wrote never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark_convert.errors import TraceError
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.consistency import check_consistency
from dspark_convert.traces.trace import TraceSequence, open_trace

from .helpers import make_header, make_sequence, write_trace

SAMPLED: dict[str, Any] = {"sampling": {"temperature": 0.7, "top_k": None, "top_p": None}}
SAMPLED["top_temperature"] = 0.7
FILTERED = {"sampling": {"temperature": 1.0, "top_k": 3, "top_p": 0.9}}
GREEDY = {"sampling": {"temperature": 0.0, "top_k": None, "top_p": None}}
Edit = Callable[[Tensor], Tensor]


def check(sequence: TraceSequence, header: TraceHeader) -> None:
    emitted = sequence.token_ids[sequence.first_generated :]
    check_consistency(sequence.numbers, emitted, header, "trace.safetensors", "seq.00000.")


@pytest.mark.parametrize("settings", [{}, SAMPLED, FILTERED, GREEDY])
@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"has_argmax": False},
        {"has_log_probs": False},
        {"top_log_probs": 0, "top_temperature": None},
        {"top_log_probs": 1},
        {"top_log_probs": 50},
    ],
)
def test_what_a_target_says_agrees(settings: dict[str, Any], kept: dict[str, Any]) -> None:
    header = make_header(**{**settings, **kept})
    for seed in range(20):
        check(make_sequence(header, header.sequences[0], seed), header)


def put(position: int, value: float) -> Edit:
    def edit(values: Tensor) -> Tensor:
        values = values.clone()
        values[position] = value
        return values

    return edit


def swapped(values: Tensor) -> Tensor:
    return values.flip(-1)


INVALID, OTHER = "trace-probability-invalid", "trace-inconsistent"
CONTRADICTIONS: list[tuple[dict[str, Any], str, Edit, str, str]] = [
    ({}, "log_probs", lambda x: x - 0.7, OTHER, "log_probs"),
    ({}, "log_probs", lambda x: x * 0, OTHER, "log_probs"),
    ({}, "log_probs", put(2, 0.5), INVALID, "log_probs"),
    ({}, "log_probs", put(2, float("nan")), INVALID, "log_probs"),
    ({}, "tail_mass", lambda x: x * 0 - 5, INVALID, "tail_mass"),
    ({}, "tail_mass", put(2, 1.5), INVALID, "tail_mass"),
    ({}, "tail_mass", lambda x: x * 0, OTHER, "tail_mass"),
    ({}, "top_log_probs", lambda x: x * 0, OTHER, "tail_mass"),
    ({}, "top_log_probs", lambda x: x - 0.7, OTHER, "tail_mass"),
    ({}, "top_log_probs", lambda x: x * 0 - torch.inf, OTHER, "tail_mass"),
    ({}, "top_log_probs", swapped, OTHER, "top_log_probs"),
    ({}, "top_ids", lambda x: x * 0 + x[:, :1], OTHER, "top_ids"),
    ({}, "top_ids", swapped, OTHER, "argmax_ids"),
    ({}, "argmax_ids", lambda x: (x + 1) % 50, OTHER, "argmax_ids"),
    ({}, "top2_gap", put(2, -1.0), OTHER, "top2_gap"),
    ({}, "top2_gap", put(2, float("nan")), OTHER, "top2_gap"),
    (GREEDY, "argmax_ids", lambda x: x * 0, OTHER, "argmax_ids"),
    (GREEDY, "argmax_ids", put(2, 3), OTHER, "argmax_ids"),
    (GREEDY, "tail_mass", lambda x: x * 0 - 5, INVALID, "tail_mass"),
    (FILTERED, "log_probs", lambda x: x - 0.7, OTHER, "log_probs"),
]


@pytest.mark.parametrize(("settings", "name", "edit", "code", "blamed"), CONTRADICTIONS)
def test_a_contradiction_is_refused_with_where(
    settings: dict[str, Any], name: str, edit: Edit, code: str, blamed: str
) -> None:
    header = make_header(**settings)
    sequence = make_sequence(header, header.sequences[0])
    damaged = replace(sequence, **{name: edit(getattr(sequence, name))})
    with pytest.raises(TraceError, match=code) as caught:
        check(damaged, header)
    (finding,) = caught.value.findings
    assert (finding.file, finding.tensor) == ("trace.safetensors", f"seq.00000.{blamed}")
    assert "at generated token" in str(finding.found)
    assert finding.hint


@pytest.mark.current  # which token shows it depends on the numbers that PyTorch draws
def test_the_first_place_is_named() -> None:
    header = make_header()
    sequence = make_sequence(header, header.sequences[0])
    assert sequence.log_probs is not None
    log_probs = sequence.log_probs.clone()
    log_probs[4:] -= 0.7
    with pytest.raises(TraceError) as caught:
        check(replace(sequence, log_probs=log_probs), header)
    assert str(caught.value.findings[0].found).endswith("at generated token 4")


def test_a_token_that_is_not_listed_must_fit_beside_those_that_are() -> None:
    header = make_header(top_log_probs=1)
    for seed in range(50):
        sequence = make_sequence(header, header.sequences[0], seed)
        assert sequence.log_probs is not None
        assert sequence.top_ids is not None
        unlisted = sequence.top_ids[:, 0] != sequence.token_ids[sequence.first_generated :]
        if not unlisted.any():
            continue
        check(sequence, header)
        claimed = torch.where(unlisted, torch.tensor(-0.05), sequence.log_probs)
        with pytest.raises(TraceError, match="trace-inconsistent"):
            check(replace(sequence, log_probs=claimed), header)
        return
    raise AssertionError("no seed gives a token that is not the most likely one")


def test_an_imported_greedy_text_may_differ_at_ties_and_not_everywhere() -> None:
    header = make_header(**GREEDY, recorded_by="vllm", top_log_probs=0, top_temperature=None)
    sequence = make_sequence(header, header.sequences[0])
    assert sequence.argmax_ids is not None
    check(replace(sequence, argmax_ids=put(2, 3)(sequence.argmax_ids)), header)
    with pytest.raises(TraceError, match="trace-inconsistent"):
        check(replace(sequence, argmax_ids=(sequence.argmax_ids + 1) % 50), header)


def test_a_given_text_need_not_be_the_targets_choice(path: Path) -> None:
    header = make_header(**GREEDY, text_origin="given", has_log_probs=False)
    sequence = make_sequence(header, header.sequences[0])
    text = torch.randint(0, 50, sequence.token_ids.shape, generator=torch.Generator())
    check(replace(sequence, token_ids=text), header)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_features_that_are_not_finite_are_the_fault_of_the_trace(path: Path, bad: float) -> None:
    header = make_header()
    sequences = [make_sequence(header, entry) for entry in header.sequences]
    write_trace(path, header)
    assert open_trace(path)[0].features_of((1, 3))[0].isfinite().all()
    sequences[0].features[2, 1, 3] = bad
    assert sequences[0].features_of((-1, 3))
    with pytest.raises(TraceError, match="trace-not-finite"):
        sequences[0].features_of((-1, 1))
