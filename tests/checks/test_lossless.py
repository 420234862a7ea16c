"""Losslessness and pairing must be able to fail: each verdict from inputs that earn it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from torch import Tensor

from dspark_convert.checks import observer as observe
from dspark_convert.checks.lossless import TIE_ULP, check_greedy, check_sampling, ulp
from dspark_convert.checks.observer import RunObserver, law_error
from dspark_convert.checks.pairing import check_pairing
from dspark_convert.formats.target import find_target_weights
from dspark_convert.runtime import DecodeOptions, DecodeResult, Observation, decode
from dspark_convert.schemas.numbers import LosslessGreedyNumbers
from tests.conftest import ROOT
from tests.runtime.helpers import golden_draft, golden_target

OPTIONS = DecodeOptions(max_new_tokens=12)
PROMPTS = [[7, 3, 11], [2, 9, 4, 30]]
NAMES = ["a", "b"]
FULL, REDUCED = "dense_gated_fp32", "spec_vanilla_reduced_anchor_bf16"


def run(options: DecodeOptions = OPTIONS) -> tuple[DecodeResult, ...]:
    return decode(golden_target(), golden_draft(FULL), PROMPTS, options)


def judge(results: tuple[DecodeResult, ...]) -> tuple[str, LosslessGreedyNumbers]:
    check = check_greedy(golden_target(), PROMPTS, NAMES, results, OPTIONS)
    assert isinstance(check.numbers, LosslessGreedyNumbers)
    return check.verdict, check.numbers


def test_the_output_of_the_loop_passes() -> None:
    verdict, numbers = judge(run())
    assert (verdict, numbers.identical, numbers.tokens) == ("pass", 2, 24)


@pytest.mark.parametrize("position", [0, 5, 11])
def test_one_other_token_fails_at_its_place(position: int) -> None:
    first, second = run()
    tokens = list(second.token_ids)
    tokens[position] = (tokens[position] + 1) % 320
    verdict, numbers = judge((first, replace(second, token_ids=tuple(tokens))))
    assert verdict == "fail"
    (difference,) = numbers.differences
    assert (difference.prompt, difference.position, difference.tie) == ("b", position, False)


def test_an_output_that_ends_early_fails() -> None:
    first, second = run()
    verdict, _ = judge((first, replace(second, token_ids=second.token_ids[:-1])))
    assert verdict == "fail"


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "pass"), (2.0, "fail")])
def test_a_tie_is_a_gap_of_few_ulp(
    factor: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = golden_target()
    forward = type(target.start(())).prefill

    def prefill(session: object, *arguments: object) -> object:
        output = forward(session, *arguments)
        logits = output.logits.clone()
        top = logits[0, -1].topk(2)
        gap = factor * TIE_ULP * ulp(float(top.values[0]), logits.dtype)
        logits[0, -1, top.indices[1]] = top.values[0] - gap
        return replace(output, logits=logits)

    results = run()
    tokens = list(results[0].token_ids)
    tokens[0] = (tokens[0] + 1) % 320
    monkeypatch.setattr(type(target.start(())), "prefill", prefill)
    assert judge((replace(results[0], token_ids=tuple(tokens)), results[1]))[0] == verdict


# Sampling ------------------------------------------------------------------------------------


def observation(p: Tensor, q: Tensor, tokens: Tensor) -> Observation:
    """Rows that drafted nothing: each committed one token, drawn from p or not."""
    rows = len(tokens)
    nothing = torch.zeros(rows, 0, dtype=torch.int64)
    return Observation(
        prompts=tuple(range(rows)),
        anchor_positions=(0,) * rows,
        target_logits=p.log(),
        target_probabilities=p,
        draft_probabilities=q,
        draft_ids=nothing,
        lengths=torch.zeros(rows, dtype=torch.int64),
        accepted=torch.zeros(rows, dtype=torch.int64),
        next_token_ids=tokens,
    )


def observed(tokens: Tensor, p: Tensor) -> RunObserver:
    """An observer that saw committed tokens of p, and one visited position."""
    observer = RunObserver(golden_draft(FULL), p.shape[-1], seed=0)
    rows = p.expand(len(tokens), 1, -1)
    observer(observation(rows, rows[:, :0], tokens))
    observer.positions = 1
    return observer


@pytest.mark.parametrize(
    ("law", "count", "verdict"),
    [("p", 2000, "pass"), ("uniform", 2000, "fail"), ("p", 50, "inconclusive")],
)
def test_committed_tokens_must_follow_p(law: str, count: int, verdict: str) -> None:
    generator = torch.Generator().manual_seed(3)
    p = torch.randn(320, generator=generator).mul(2).softmax(-1)
    drawn_from = p if law == "p" else torch.ones(320) / 320
    tokens = drawn_from.multinomial(count, replacement=True, generator=generator)
    observer = observed(tokens, p)
    observer._law_errors.append(torch.tensor(0.0, dtype=torch.float64))
    assert check_sampling(observer, 1.0).verdict == verdict


def drafted_round(
    p: Tensor, q: Tensor, drafted: Tensor, accepted: Tensor, following: Tensor
) -> Observation:
    """Rows of one drafted token each; p [R, 2, V] and q [R, 1, V]."""
    return replace(
        observation(p, q, following),
        draft_ids=drafted[:, None],
        lengths=torch.ones_like(drafted),
        accepted=accepted,
    )


FAULTS = (None, "drafted by p", "always accepted", "residual without q", "bonus by q")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_draw_must_follow_its_law(fault: str | None) -> None:
    rows, generator = 4000, torch.Generator().manual_seed(5)
    p = torch.randn(2, 60, generator=generator).softmax(-1)
    q = torch.randn(60, generator=generator).softmax(-1)

    def draw(law: Tensor) -> Tensor:
        return law.multinomial(rows, replacement=True, generator=generator)

    drafted = draw(p[0] if fault == "drafted by p" else q)
    stands = torch.rand(rows, generator=generator) * q[drafted] < p[0][drafted]
    if fault == "always accepted":
        stands = torch.ones_like(stands)
    residual = draw(p[0] if fault == "residual without q" else (p[0] - q).clamp(min=0))
    following = torch.where(stands, draw(q if fault == "bonus by q" else p[1]), residual)
    observer = RunObserver(golden_draft(FULL), 60, seed=0)
    every = p.expand(rows, 2, 60), q.expand(rows, 1, 60)
    observer(drafted_round(*every, drafted, stands.long(), following))
    result = check_sampling(observer, 1.0)
    assert result.verdict == ("pass" if fault is None else "fail")
    assert result.numbers.tokens == 3 * rows
    assert ("probability zero" in result.reason) == (fault == "residual without q")


def test_one_draw_that_cannot_be_is_enough() -> None:
    p, q = torch.tensor([[[0.5, 0.5, 0.0]] * 2]), torch.tensor([[[0.0, 0.6, 0.4]]])
    cases = {"drafted": (0, 0, 0), "accepted": (2, 1, 0), "residual": (1, 0, 1), "fine": (1, 1, 0)}
    for name, (drafted, accepted, following) in cases.items():
        observer = RunObserver(golden_draft(FULL), 3, seed=0)
        tensors = (torch.tensor([value]) for value in (drafted, accepted, following))
        observer(drafted_round(p, q, *tensors))
        assert observer.impossible == int(name != "fine"), name


def test_the_law_of_a_committed_token_is_p_and_a_broken_residual_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 5, 40, generator=generator).mul(3).softmax(-1)
    assert law_error(p, q) < 1e-12
    monkeypatch.setattr(observe, "compute_residual", lambda p, q: p)
    assert law_error(p, q) > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mass_outside_the_draft_vocabulary(temperature: float) -> None:
    draft, target = golden_draft(REDUCED), golden_target()
    ids = draft.map_draft_to_target(torch.arange(draft.config.draft_vocab_size))
    outside = torch.ones(target.vocab_size, dtype=torch.bool)
    outside[ids] = False
    masses: list[float] = []

    def remember(seen: Observation) -> None:
        for row, (length, accepted) in enumerate(
            zip(seen.lengths.tolist(), seen.accepted.tolist(), strict=True)
        ):
            for slot in range(min(length, accepted + 1)):
                p = (seen.target_logits[row, slot].double() / max(temperature, 1e-9)).softmax(-1)
                masses.append(float(p[outside].sum()))

    observer = RunObserver(draft, target.vocab_size, seed=0)
    options = replace(OPTIONS, temperature=temperature)
    for see in (remember, observer):
        generator = torch.Generator().manual_seed(1)
        decode(target, draft, PROMPTS, options, generator=generator, observer=see)
    assert 0 < observer.mass_outside == pytest.approx(sum(masses) / len(masses), abs=1e-5)


# Pairing -------------------------------------------------------------------------------------


class Tokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}


def test_pairing_passes_for_the_target_and_fails_for_another() -> None:
    golden = ROOT / "fixtures" / "golden"
    own, other = golden / "verifier_fp32", ROOT / "fixtures" / "tiny" / "target"
    config = golden_draft(FULL).config
    folder = golden / FULL / "checkpoint"
    assert check_pairing(config, folder, find_target_weights(own), None).verdict == "pass"
    assert check_pairing(config, folder, find_target_weights(other), None).verdict == "fail"


def test_pairing_fails_for_another_tokenizer() -> None:
    target = ROOT / "fixtures" / "tiny" / "target"
    weights = find_target_weights(target)
    config = golden_draft(FULL).config.model_copy(
        update={
            "hidden_size": weights.config["hidden_size"],
            "vocab_size": weights.vocab_size,
            "num_target_layers": weights.config["num_hidden_layers"],
        }
    )
    result = check_pairing(config, target, weights, Tokenizer())
    assert result.verdict == "fail"
    assert "different ids" in result.reason
