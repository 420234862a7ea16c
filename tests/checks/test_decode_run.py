"""Which decoder runs the prompts, what the report says of it, and that it is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402 - the modules below need PyTorch
from torch import Tensor

from dspark_convert.checks.decode_run import choose_decoder
from dspark_convert.checks.options import DecoderOption
from dspark_convert.checks.run import VerifyOptions, verify
from dspark_convert.runtime import DecodeOptions, rejection
from dspark_convert.runtime.fast import sampling
from dspark_convert.runtime.machine import Machine
from dspark_convert.runtime.records import Progress
from dspark_convert.runtime.rejection import compute_residual
from dspark_convert.schemas.report import CheckResult, VerifyReport
from tests.conftest import mostly_slow
from tests.diagnosis.helpers import TINY
from tests.runtime.helpers import bigram_pair, chain_pair

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def check(
    decode: DecodeOptions, on_progress: Progress = lambda *news: None, **changes: Any
) -> VerifyReport:
    """A check of a tiny draft of few tokens a prompt."""
    options: dict[str, Any] = {
        "draft": TINY / "draft_1plusN_reduced",
        "target": TINY / "target",
        "prompts": TINY / "prompts.jsonl",
        "stop_token_ids": frozenset(),
        "batch_size": 7,
        "machine": Machine(device="cpu", dtype="float32"),
        **changes,
    }
    return verify(VerifyOptions(decode=decode, **options), on_progress=on_progress)


def results(report: VerifyReport) -> dict[str, CheckResult]:
    return {result.id: result for result in report.checks}


# The choice


@pytest.mark.parametrize(
    ("asked", "device", "chosen", "reason"),
    [
        ("auto", CUDA, "fast", None),
        ("auto", CPU, "plain", "the device is cpu"),
        ("plain", CUDA, "plain", None),
        ("fast", CPU, "fast", None),
    ],
)
def test_auto_is_fast_on_a_gpu(
    asked: DecoderOption, device: torch.device, chosen: str, reason: str | None
) -> None:
    choice = choose_decoder(asked, *bigram_pair(), device)
    assert (choice.name, choice.reason) == (chosen, reason)


def test_auto_is_plain_for_a_target_that_the_fast_one_does_not_know() -> None:
    target, draft = chain_pair(6)
    choice = choose_decoder("auto", target, draft, CUDA)  # type: ignore[arg-type]
    assert choice.name == "plain"
    assert choice.reason == "the target is not a causal model of transformers"


# What a run comes to


@pytest.fixture(scope="module")
def plain() -> VerifyReport:
    return check(DecodeOptions(max_new_tokens=12))


def test_the_fast_decoder_gives_the_report_of_the_plain_one(plain: VerifyReport) -> None:
    news: list[tuple[str, int, int]] = []
    fast = check(
        DecodeOptions(max_new_tokens=12), lambda *entry: news.append(entry), decoder="fast"
    )
    one, other = results(plain), results(fast)
    assert one.keys() == other.keys()
    for check_id in one.keys() - {"confidence"}:  # confidences differ in their last bits
        assert one[check_id] == other[check_id]
    assert one["confidence"].verdict == other["confidence"].verdict
    assert one["lossless-greedy"].verdict == "pass"
    assert (plain.example, plain.target) == (fast.example, fast.target)
    assert (plain.settings.engine, plain.settings.engine_reason) == ("plain", "the device is cpu")
    assert (fast.settings.engine, fast.settings.engine_reason) == ("fast", None)
    assert news == [("decoding", done, 24) for done in range(1, 25)]


def test_the_plain_decoder_needs_no_reason_when_it_was_asked_for() -> None:
    report = check(DecodeOptions(max_new_tokens=1), decoder="plain")
    assert (report.settings.engine, report.settings.engine_reason) == ("plain", None)


@pytest.mark.parametrize("decoder", ["auto", "fast"])
def test_without_decoding_there_is_no_decoder(decoder: DecoderOption) -> None:
    draft = TINY / "draft_1plusN_reduced"
    report = check(
        DecodeOptions(max_new_tokens=1), decoder=decoder, target=None, prompts=None, source=draft
    )
    assert results(report)["acceptance"].verdict == "skipped"
    assert (report.settings.engine, report.settings.engine_reason) == (None, None)


# Sampling


@pytest.mark.parametrize("draft_sampling", mostly_slow(["sample", "greedy"], fast=["sample"]))
def test_a_sampled_run_of_the_fast_decoder_is_lossless(draft_sampling: str) -> None:
    options = DecodeOptions(
        max_new_tokens=16,
        temperature=0.7,
        draft_sampling=draft_sampling,  # type: ignore[arg-type]
    )
    news: list[tuple[str, int, int]] = []
    report = check(options, lambda *entry: news.append(entry), decoder="fast")
    assert results(report)["lossless-sampling"].verdict == "pass"
    assert results(report)["lossless-greedy"].verdict == "pass"
    for what in ("decoding", "decoding greedily"):
        assert [entry[1:] for entry in news if entry[0] == what] == [(n, 24) for n in range(1, 25)]


def swapped_residual(p: Tensor, q: Tensor) -> Tensor:
    return compute_residual(q, p)


def residual_without_q(p: Tensor, q: Tensor) -> Tensor:
    return p


def every_token_stands(stands_RN: Tensor, lengths_R: Tensor) -> Tensor:
    return lengths_R


OTHER_LAWS = [
    (engine, *law)
    for engine in ("plain", "fast")
    for law in (
        ("compute_residual", swapped_residual, "had probability zero"),
        ("compute_residual", residual_without_q, "had probability zero"),
        ("count_leading", every_token_stands, "do not follow p and q"),
    )
]


@pytest.mark.parametrize(
    ("decoder", "name", "fault", "reason"),
    mostly_slow(OTHER_LAWS, fast=[OTHER_LAWS[1], OTHER_LAWS[3], OTHER_LAWS[5]]),
)
def test_a_round_of_another_law_fails(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Callable[..., Tensor],
    reason: str,
    decoder: DecoderOption,
) -> None:
    """The observer takes p and q from the logits, so a faulty round does not vouch for itself."""
    monkeypatch.setattr(rejection if decoder == "plain" else sampling, name, fault)
    report = check(DecodeOptions(max_new_tokens=8, temperature=0.7), decoder=decoder)
    result = results(report)["lossless-sampling"]
    assert result.verdict == "fail"
    assert reason in result.reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_tiny_pair_passes_on_a_gpu(temperature: float, dtype: str) -> None:
    decode = DecodeOptions(max_new_tokens=24, temperature=temperature)
    fast = check(decode, machine=Machine(device="cuda", dtype=dtype))
    assert (fast.settings.engine, fast.settings.engine_reason) == ("fast", None)
    judged = results(fast)
    assert judged["lossless-greedy"].verdict == "pass", judged["lossless-greedy"].reason
    if temperature:
        assert judged["lossless-sampling"].verdict == "pass", judged["lossless-sampling"].reason
    elif dtype == "float32":
        plain = check(decode, machine=Machine(device="cuda", dtype=dtype), decoder="plain")
        assert results(plain)["acceptance"].numbers == judged["acceptance"].numbers
