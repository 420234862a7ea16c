"""Temperature, filters, and the two ways to draw a token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_convert.errors import UsageError
from dspark_convert.runtime.sampling import (
    SamplingOptions,
    compute_probabilities,
    draw_gumbel,
    draw_inverse_cdf,
    require_generator,
    scale_logits,
)

LOGITS = torch.tensor([[2.0, 1.0, 1.0, -3.0, float("-inf")]])


def test_temperature_is_the_softmax_of_the_quotient() -> None:
    for temperature in (0.3, 1.0, 4.0):
        p = compute_probabilities(LOGITS, SamplingOptions(temperature=temperature))
        assert torch.allclose(p, (LOGITS / temperature).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_no_nan_as_the_temperature_goes_to_zero(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(7, 3, 50, generator=generator) * 30).to(dtype)
    logits[..., ::3] = float("-inf")
    logits[0, 0, 1] = logits[0, 0, 2] = logits[0, 0].max() + 1
    for temperature in (0.0, 1e-300, 1e-45, 1e-30, 1e-8, 2e-5, 1e-3, 0.1, 1.0, 1e30):
        p = compute_probabilities(logits, SamplingOptions(temperature=temperature))
        assert p.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        assert bool(p.isfinite().all())
        assert torch.allclose(p.sum(-1), torch.ones(7, 3, dtype=p.dtype))
        assert bool((p[..., ::3] == 0).all())
        if temperature >= 1e-5:
            scaled = scale_logits(logits, temperature)
            assert not bool(scaled.isnan().any())
            drawn = draw_gumbel(scaled, generator)
            assert bool((drawn % 3 != 0).all())
        if temperature <= 1e-3:
            best = logits.float().amax(-1, keepdim=True)
            likely = p * (logits.float() == best)
            assert torch.allclose(likely.sum(-1), torch.ones(7, 3, dtype=p.dtype), atol=1e-3)


def test_scaled_logits_never_overflow_upwards() -> None:
    for temperature in (1e-38, 1e-20):
        p = scale_logits(LOGITS * 50, temperature).softmax(-1)
        assert p.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]


def test_top_k_keeps_ties_and_top_p_the_smallest_sufficient_set() -> None:
    def kept(**options: object) -> list[bool]:
        options = {"temperature": 1.0, **options}
        return (compute_probabilities(LOGITS, SamplingOptions(**options))[0] > 0).tolist()  # type: ignore[arg-type]

    assert kept(top_k=1) == [True, False, False, False, False]
    assert kept(top_k=2) == [True, True, True, False, False]
    assert kept(top_k=100) == [True, True, True, True, False]
    mass = LOGITS.softmax(-1)[0]
    assert kept(top_p=float(mass[0]) - 1e-4) == [True, False, False, False, False]
    assert kept(top_p=float(mass[0]) + 1e-4) == [True, True, False, False, False]
    assert kept(top_p=1e-9) == [True, False, False, False, False]
    assert kept(top_p=1.0) == [True, True, True, True, False]
    # The nucleus is taken of what top k has left: 2, 1, 1 weigh 0.58, 0.21, 0.21.
    assert kept(top_k=2, top_p=0.57) == [True, False, False, False, False]


def test_filters_renormalise() -> None:
    p = compute_probabilities(LOGITS, SamplingOptions(temperature=1.0, top_k=2))
    assert torch.allclose(p[0, :3], LOGITS[0, :3].softmax(-1))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_inverse_cdf_draws_the_token_at_that_share_of_the_mass(
    weights: list[int], uniform: float
) -> None:
    drawn = int(
        draw_inverse_cdf(torch.tensor(weights).double(), torch.tensor(uniform, dtype=torch.float64))
    )
    assert weights[drawn] > 0
    total = sum(weights)
    assert sum(weights[:drawn]) <= uniform * total * (1 + 1e-12)
    assert uniform * total * (1 - 1e-12) <= sum(weights[: drawn + 1])


def test_inverse_cdf_never_leaves_the_support_at_its_ends() -> None:
    weights = torch.tensor([[0.0, 1e-30, 0.7, 0.3, 0.0]]).expand(3, 5)
    uniforms = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert draw_inverse_cdf(weights, uniforms).tolist() == [1, 2, 3]
    # The smallest number there is, times 0.9, rounds to itself.
    smallest = torch.tensor([0.0, 5e-324, 0.0], dtype=torch.float64)
    assert int(draw_inverse_cdf(smallest, torch.tensor(0.9))) == 1


@pytest.mark.parametrize("draw", ["gumbel", "inverse"])
def test_draws_follow_the_distribution(draw: str) -> None:
    generator = torch.Generator().manual_seed(5)
    n = 20_000
    p = LOGITS.softmax(-1)[0]
    if draw == "gumbel":
        drawn = draw_gumbel(scale_logits(LOGITS, 1.0).expand(n, 5), generator)
    else:
        uniforms = torch.rand(n, dtype=torch.float64, generator=generator)
        drawn = draw_inverse_cdf(p.expand(n, 5), uniforms)
    counts = torch.bincount(drawn, minlength=5)
    assert counts[4] == 0
    statistic = float(((counts[:4] - n * p[:4]) ** 2 / (n * p[:4])).sum())
    assert statistic < 3 + 5 * math.sqrt(6)
    other = LOGITS[0, [1, 0, 2, 3]].softmax(-1)
    assert float(((counts[:4] - n * other) ** 2 / (n * other)).sum()) > 1000


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_meaningless_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingOptions(**options)  # type: ignore[arg-type]
    assert caught.value.code == "option-out-of-range"
    assert caught.value.findings[0].key in options


def test_the_global_generator_is_never_used() -> None:
    with pytest.raises(UsageError) as caught:
        require_generator(None)
    assert caught.value.code == "generator-required"
