"""The parts of the draft model: names, attention, rotary embedding, heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dspark_convert.errors import DraftError, UsageError
from dspark_convert.formats.tensors import VOCABULARY_TABLE, expected_tensors
from dspark_convert.runtime.attention import compute_visibility
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.propose import propose_block, run_chain
from dspark_convert.runtime.rope import RotaryEmbedding, rotate
from dspark_convert.schemas.draft import DraftConfig

from .helpers import VARIANTS, golden_cases, golden_draft, make_config, make_draft

SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 3}
HEADS = [
    {"markov_head_type": "vanilla"},
    {"markov_head_type": "gated", "confidence_head_with_markov": False},
    {"markov_head_type": "rnn", "attention_bias": True},
    {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False},
]


@pytest.mark.parametrize("changes", HEADS)
def test_module_names_and_shapes_are_the_canonical_tensors(changes: dict[str, object]) -> None:
    config = make_config(draft_vocab_size=7, **changes)
    table = torch.zeros(7, dtype=torch.int64)
    with torch.device("meta"):
        draft = DraftModel(config, table)
    built = {name: tuple(tensor.shape) for name, tensor in draft.state_dict().items()}
    wanted = {name: spec.shape for name, spec in expected_tensors(config).items()}
    assert wanted.pop(VOCABULARY_TABLE) == (7,)
    assert built == wanted


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_anchors_of_a_text_in_one_pass_agree_with_one_at_a_time(variant: str) -> None:
    draft = golden_draft(variant)
    features = golden_cases(variant)[1]["context_hidden"]
    positions = torch.arange(1, len(features) + 1)
    anchors = (positions * 37) % draft.config.vocab_size
    context = draft.compute_context(features[None], torch.arange(len(features)))
    together = draft(context, anchors[None], positions[None])[0]
    for index, position in enumerate(positions.tolist()):
        alone = propose_block(draft, features[:position], anchors[index])
        assert float((together[index] - alone.backbone_hidden).abs().max()) < 1e-5


def test_full_layers_see_everything_before_the_anchor_and_the_whole_block() -> None:
    visible = compute_visibility(make_config(), "full_attention", torch.tensor([[2, 5]]), 6)
    assert visible.shape == (1, 2, 4, 10)
    assert visible[0, 0, :, :6].tolist() == [[True] * 2 + [False] * 4] * 4
    assert visible[0, 1, :, :6].tolist() == [[True] * 5 + [False]] * 4
    assert bool(visible[..., 6:].all())


@pytest.mark.parametrize("non_causal", [False, True])
def test_sliding_window_hangs_on_the_anchor(non_causal: bool) -> None:
    config = make_config(sliding_window_non_causal=non_causal, **SLIDING)
    visible = compute_visibility(config, "sliding_attention", torch.tensor([[5]]), 6)[0, 0]
    assert visible[:, :6].tolist() == [[False, False, True, True, True, False]] * 4
    block = torch.ones(4, 4, dtype=torch.bool)
    assert torch.equal(visible[:, 6:], block if non_causal else block.tril())


def test_stale_columns_behind_the_anchor_change_nothing() -> None:
    draft = make_draft(make_config(**SLIDING))
    features = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    anchors, positions = torch.tensor([[3]]), torch.tensor([[6]])

    def hidden(features: Tensor) -> Tensor:
        context = draft.compute_context(features, torch.arange(features.shape[1]))
        out: Tensor = draft(context, anchors, positions)
        return out

    stale = features.clone()
    stale[:, 6:] = 1e4
    assert torch.allclose(hidden(features[:, :6]), hidden(stale), atol=1e-6)
    stale[:, 5] = 1e4
    assert not torch.allclose(hidden(features[:, :6]), hidden(stale), atol=1e-2)


def rope(**parameters: object) -> RotaryEmbedding:
    return RotaryEmbedding(make_config(rope_parameters={"rope_theta": 10000.0, **parameters}))


def test_rope_types_have_the_frequencies_of_their_definitions() -> None:
    plain = 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    assert torch.allclose(rope(rope_type="default").inverse_frequency, plain)
    assert torch.allclose(rope().inverse_frequency, plain)
    linear = rope(rope_type="linear", factor=4.0)
    assert torch.allclose(linear.inverse_frequency, plain / 4)
    yarn = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
    assert yarn.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)
    cosine, sine = yarn(torch.tensor([0, 9]), torch.float32)
    assert torch.allclose(
        cosine.square() + sine.square(), torch.tensor((0.1 * math.log(4) + 1) ** 2)
    )
    assert yarn.inverse_frequency[0] == pytest.approx(float(plain[0]))
    assert yarn.inverse_frequency[-1] == pytest.approx(float(plain[-1]) / 4)
    llama3 = rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    assert llama3.inverse_frequency[0] == pytest.approx(float(plain[0]))
    assert llama3.inverse_frequency[-1] == pytest.approx(float(plain[-1]) / 8)


def test_rotation_depends_on_position_differences_only() -> None:
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    rotary = rope()

    def score(at_query: int, at_key: int) -> float:
        angles = [rotary(torch.tensor([at]), torch.float32) for at in (at_query, at_key)]
        return float((rotate(query, *angles[0]) * rotate(key, *angles[1])).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-2)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope-type-unsupported"),
        ({"rope_type": "linear"}, "rope-parameters-invalid"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_unusable_rope_parameters_are_refused(parameters: dict[str, object], code: str) -> None:
    with pytest.raises(DraftError) as caught:
        rope(**parameters)
    assert caught.value.code == code


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(DraftError) as caught:
        DraftModel(make_config(hidden_act="snake"))
    assert caught.value.code == "activation-unsupported"


@pytest.mark.parametrize("layout", ["anchor_first", "bonus_anchor"])
def test_first_drafted_token_is_conditioned_on_the_anchor_in_both_layouts(layout: str) -> None:
    draft = make_draft(make_config(layout=layout))
    proposal = propose_block(draft, torch.randn(3, 16), 5)
    first = draft.first_predicting_slot
    assert proposal.prev_token_ids[: first + 1].tolist() == [5] * (first + 1)
    assert torch.equal(proposal.prev_token_ids[first + 1 :], proposal.target_ids[first:-1])
    assert proposal.predicted_position[first:].tolist() == list(range(4, 8 - first))


def test_fewer_tokens_are_the_first_of_the_whole_block() -> None:
    for layout in ("anchor_first", "bonus_anchor"):
        draft = make_draft(make_config(layout=layout, markov_head_type="rnn"))
        hidden = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
        anchors = torch.tensor([1, 2])

        def choose(_: int, logits: Tensor) -> Tensor:
            return logits.argmax(-1)

        whole = run_chain(draft, hidden, anchors, choose)
        part = run_chain(draft, hidden, anchors, choose, num_tokens=2)
        assert torch.equal(part.target_ids, whole.target_ids[:, :2])


def test_padding_of_the_vocabulary_is_never_proposed() -> None:
    config = make_config(draft_vocab_size=16)
    draft = make_draft(config)
    assert draft.markov_head is not None
    draft.markov_head.markov_w2.weight.zero_()
    context = torch.randn(6, 3, 16, generator=torch.Generator().manual_seed(0))
    anchors = torch.arange(6)
    assert int(propose_block(draft, context, anchors).base_logits.argmax(-1).max()) >= 12
    for temperature in (0.0, 2.0):
        proposal = propose_block(
            draft,
            context,
            anchors,
            temperature=temperature,
            generator=torch.Generator().manual_seed(0),
        )
        assert proposal.proposal_logits.shape == (6, 4, 12)
        assert int(proposal.target_ids.max()) < 12
        assert bool((proposal.biased_logits[..., 12:] == float("-inf")).all())


def test_sampled_block_follows_its_own_logits() -> None:
    draft = make_draft(make_config())
    context = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).expand(4000, 3, 16)
    anchors = torch.full((4000,), 2)
    proposal = propose_block(
        draft, context, anchors, temperature=0.7, generator=torch.Generator().manual_seed(1)
    )
    q = (proposal.proposal_logits[0, 0] / 0.7).softmax(-1)
    counts = torch.bincount(proposal.target_ids[:, 0], minlength=12)
    statistic = float(((counts - 4000 * q) ** 2 / (4000 * q)).sum())
    assert statistic < 11 + 5 * math.sqrt(2 * 11)


def test_wrong_shapes_and_a_missing_generator_are_usage_errors() -> None:
    draft = make_draft(make_config())
    context = torch.zeros(2, 3, 16)
    for call in (
        lambda: propose_block(draft, context[..., :8], torch.tensor([1, 2])),
        lambda: propose_block(draft, context, torch.tensor([1])),
        lambda: propose_block(draft, context, torch.tensor([1, 2]), lengths=torch.tensor([3])),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "context-shape"
    with pytest.raises(UsageError) as caught:
        propose_block(draft, context[0], 1, temperature=1.0)
    assert caught.value.code == "generator-required"


def test_config_decides_about_the_vocabulary_table() -> None:
    config: DraftConfig = make_config(draft_vocab_size=7)
    with pytest.raises(AssertionError):
        DraftModel(config)
