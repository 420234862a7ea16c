"""The ways in which a draft may have been misread, as data: how to read it, and how to fix it.

An id names the reading that is tried, not the fault: a draft whose layer ids are stored one too
high does better under ``layer-ids-minus-1``. A reading is one row of ``HYPOTHESES``; it has the
weights of the draft as loaded, under another config, table or rule (``reread``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.runtime.attention import ContextKV
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.fast.transfer import upload_large
from dspark_convert.runtime.heads import MarkovHead
from dspark_convert.schemas.diagnosis import ReadingId
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.trace import TraceHeader
from dspark_convert.traces.trace import TraceSequence

COMMON_ROPE_BASES = (10_000.0, 1_000_000.0)
"""Defaults that readers fall back to: transformers' and vLLM's."""

MAX_MASKS = 8
"""How many other mask tokens are tried; more would only weaken the decision about each."""

Fix = str
EditText = Callable[[TraceSequence], TraceSequence]


@dataclass(frozen=True)
class TargetFacts:
    """What is known of the target besides the recorded texts; empty if no folder was given."""

    header: TraceHeader
    config: Mapping[str, Any] | None = None
    """The target's text config."""
    tensors: Mapping[str, Tensor] | None = None
    """Embedding and output head [rows, H] of the target, by canonical name."""
    norm: nn.Module | None = None
    """The target's final norm."""
    special_token_ids: tuple[int, ...] = ()
    """Candidates for a mask token, the likeliest first."""


@dataclass(frozen=True)
class Reading:
    """A draft that is ready to be replayed under one hypothesis."""

    draft: DraftModel
    fix: Fix | None
    """What to do if this reading is the right one: a command, or words."""
    edit_text: EditText = lambda sequence: sequence


class NotApplicableError(Exception):
    """The reading cannot be tried with this draft and what is known of its target; says why."""


ReadDraft = Callable[[DraftModel, TargetFacts], Sequence[Reading]]


@dataclass(frozen=True)
class Hypothesis:
    """One row of the table."""

    id: ReadingId
    looks_like: str
    """What the draft does if this reading is the right one and another was declared."""
    read: ReadDraft
    """Readings to try; several if the right value is not known. Raises ``NotApplicableError``."""


class ShiftedDraft(DraftModel):
    """A draft whose blocks start ``step`` positions after where they should.

    Only differences between positions matter to RoPE, so the context is moved the other way.
    """

    step = 0

    def project_context(self, input_RTH: Tensor, position_ids: Tensor) -> ContextKV:
        """See ``DraftModel.project_context``."""
        return super().project_context(input_RTH, position_ids - self.step)


class LateMarkovHead(MarkovHead):
    """Conditions every slot on the token one place earlier; the first ones on the anchor.

    The state of a block is that of the inner head, followed by the embedding not yet used.
    """

    def __init__(self, inner: MarkovHead) -> None:
        nn.Module.__init__(self)
        self.inner = inner
        self.markov_w1, self.markov_w2 = inner.markov_w1, inner.markov_w2

    def mix(
        self, embedding: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """See ``MarkovHead.mix``."""
        inner_state, late = None, embedding
        if state is not None:
            inner_state, late = state.chunk(2, dim=-1)
        latent, inner_state = self.inner.mix(late, hidden, inner_state)
        if inner_state is None:
            inner_state = torch.zeros_like(embedding)
        return latent, torch.cat((inner_state, embedding), dim=-1)


def reread(
    draft: DraftModel,
    changes: Mapping[str, Any] | None = None,
    *,
    table: Tensor | None = None,
    weights: Mapping[str, Tensor] | None = None,
    kind: type[DraftModel] = DraftModel,
) -> DraftModel:
    """A draft that shares its weights with ``draft`` and is read in another way.

    It has no confidence head, since that says nothing about which tokens are drafted.

    Args:
        draft: the draft as it was loaded.
        changes: fields of its config.
        table: offsets int64 [D] in place of its vocabulary table.
        weights: tensors in place of its own, by canonical name.
        kind: the class of the result.
    """
    config = draft.config.model_copy(update={**(changes or {}), "enable_confidence_head": False})
    offsets = draft.vocabulary.draft_id_to_target_id if table is None else table
    with torch.device("meta"):
        reading = kind(config, offsets).requires_grad_(False).eval()
    stored = {**draft.state_dict(), **(weights or {})}
    reading.load_state_dict({name: stored[name] for name in reading.state_dict()}, assign=True)
    return reading.to(draft.device)


def _declared(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    return [Reading(reread(draft), None)]


def _other_layout(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    flip = {
        Layout.ANCHOR_FIRST: Layout.BONUS_ANCHOR,
        Layout.BONUS_ANCHOR: Layout.ANCHOR_FIRST,
    }
    other = flip[draft.config.layout]
    if draft.config.block_size == 1 and other is Layout.BONUS_ANCHOR:
        raise NotApplicableError("a block of one slot proposes nothing in the 1+N layout")
    fix = _convert(f"--layout {other.value.replace('_', '-')}")
    return [Reading(reread(draft, {"layout": other}), fix)]


def _shift_layers(step: int) -> ReadDraft:
    def read(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
        layer_ids = tuple(layer_id + step for layer_id in draft.config.target_layer_ids)
        depth = facts.header.target.num_hidden_layers
        if beyond := [layer_id for layer_id in layer_ids if not -1 <= layer_id < depth]:
            raise NotApplicableError(f"the target has no layer {beyond[0]}")
        if missing := sorted(set(layer_ids) - set(facts.header.layer_ids)):
            raise NotApplicableError(
                f"the trace lacks layers {', '.join(map(str, missing))}; record with --neighbours"
            )
        fix = _convert(f"--set target_layer_ids={json.dumps(layer_ids).replace(' ', '')}")
        return [Reading(reread(draft, {"target_layer_ids": layer_ids}), fix)]

    return read


def _normed_last_layer(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    last = facts.header.target.num_hidden_layers - 1
    if last not in draft.config.target_layer_ids:
        raise NotApplicableError("the draft does not read the target's last layer")
    norm = facts.norm
    if norm is None:
        raise NotApplicableError("the target's final norm is not known; give its folder")

    def edit(sequence: TraceSequence) -> TraceSequence:
        column, features = sequence.layer_ids.index(last), sequence.features.clone()
        with torch.no_grad():
            features[:, column] = norm(features[:, column].float()).to(features.dtype)
        return replace(sequence, features=features)

    advice = "train the draft again on hidden states before the final norm; no config key says this"
    return [Reading(reread(draft), advice, edit)]


def _absolute_table(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    stored = _require_table(draft)
    size = min(draft.config.vocab_size, facts.header.target.vocab_size)
    if (
        int(stored.min()) < 0
        or int(stored.max()) >= size
        or len(set(stored.tolist())) < len(stored)
    ):
        raise NotApplicableError("read as absolute ids, the table is out of range or ambiguous")
    offsets = stored - torch.arange(len(stored), device=stored.device)
    return [Reading(reread(draft, table=offsets), _convert("--d2t absolute"))]


def _without_markov(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    _require_markov(draft)
    return [
        Reading(
            reread(draft, {"markov_rank": 0}),
            "train the draft again with its Markov head, which now only misleads it",
        )
    ]


def _late_markov(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    _require_markov(draft)
    late = reread(draft)
    assert late.markov_head is not None
    late.markov_head = LateMarkovHead(late.markov_head)
    advice = (
        "train the Markov head again: slot k must see the token before the one that it predicts; "
        "no config key says this"
    )
    return [Reading(late, advice)]


def _other_mask(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    declared, size = draft.config.mask_token_id, draft.config.vocab_size
    known = (*facts.special_token_ids, *facts.header.stop_token_ids, size - 1, 0)
    candidates = [mask for mask in dict.fromkeys(known) if mask < size and mask != declared]
    if not candidates:
        raise NotApplicableError("no other token is likely to be the mask token")
    return [
        Reading(reread(draft, {"mask_token_id": mask}), _convert(f"--set mask_token_id={mask}"))
        for mask in candidates[:MAX_MASKS]
    ]


def _shift_block(step: int) -> ReadDraft:
    def read(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
        shifted = reread(draft, kind=ShiftedDraft)
        assert isinstance(shifted, ShiftedDraft)
        shifted.step = step
        where = "T + 1" if step > 0 else "T - 1"
        advice = f"a block must start at position T; this draft was trained to start at {where}"
        return [Reading(shifted, advice)]

    return read


def _other_rope_base(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    parameters = draft.config.rope_parameters
    theirs = [] if facts.config is None else [_rope_base(facts.config)]
    bases = dict.fromkeys(base for base in (*theirs, *COMMON_ROPE_BASES) if base is not None)
    return [
        Reading(
            reread(draft, {"rope_parameters": {**parameters, "rope_theta": base}}),
            _convert(f"--set rope_theta={base}"),
        )
        for base in bases
        if base != float(parameters["rope_theta"])
    ]


def _unscaled_rope(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    parameters = draft.config.rope_parameters
    if parameters.get("rope_type", "default") == "default":
        raise NotApplicableError("RoPE is not scaled")
    plain = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
    fix = _convert("""--set 'rope_scaling={"rope_type": "default"}'""")
    return [Reading(reread(draft, {"rope_parameters": plain}), fix)]


def _full_attention(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    if not draft.config.slides:
        raise NotApplicableError("no layer has a sliding window")
    types = ("full_attention",) * draft.config.num_hidden_layers
    fix = _convert(f"--set 'layer_types={json.dumps(types)}'")
    return [Reading(reread(draft, {"layer_types": types}), fix)]


def _causal_sliding(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    if not draft.config.slides or not draft.config.sliding_window_non_causal:
        raise NotApplicableError("no sliding layer sees its whole block")
    change = {"sliding_window_non_causal": False}
    return [Reading(reread(draft, change), "sliding_window_non_causal must be false")]


def _target_embedding(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    theirs = _tensor(facts, EMBEDDING)
    return [_with_tensor(draft, EMBEDDING, theirs)]


def _target_head(draft: DraftModel, facts: TargetFacts) -> list[Reading]:
    theirs = _tensor(facts, LM_HEAD)
    wanted = draft.vocabulary.target_ids.to(theirs.device)
    if draft.config.reduced_vocabulary and int(wanted.max()) < len(theirs):
        theirs = theirs[wanted]
    return [_with_tensor(draft, LM_HEAD, theirs)]


HYPOTHESES: tuple[Hypothesis, ...] = (
    Hypothesis("as-declared", "what the files say is right", _declared),
    Hypothesis("layout-other", "every token comes a position early or late", _other_layout),
    Hypothesis("layer-ids-minus-1", "a few percent lost: ids one too high", _shift_layers(-1)),
    Hypothesis("layer-ids-plus-1", "a few percent lost: ids one too low", _shift_layers(+1)),
    Hypothesis("last-layer-normed", "features came from after the final norm", _normed_last_layer),
    Hypothesis("d2t-absolute", "drafted tokens are unrelated to the text", _absolute_table),
    Hypothesis("markov-off", "the Markov bias misleads", _without_markov),
    Hypothesis("markov-late", "the second token and later ones suffer", _late_markov),
    Hypothesis("mask-other", "tokens are vague, later ones more so", _other_mask),
    Hypothesis("positions-plus-1", "later tokens suffer more than the first", _shift_block(+1)),
    Hypothesis("positions-minus-1", "later tokens suffer more than the first", _shift_block(-1)),
    Hypothesis("rope-base", "long contexts suffer more than short ones", _other_rope_base),
    Hypothesis("rope-unscaled", "all contexts suffer", _unscaled_rope),
    Hypothesis("sliding-full", "long contexts suffer more than short ones", _full_attention),
    Hypothesis("sliding-causal", "early tokens of a block suffer", _causal_sliding),
    Hypothesis("target-embedding", "the anchor is misunderstood", _target_embedding),
    Hypothesis("target-head", "drafted tokens are unrelated to the text", _target_head),
)
"""Every reading that is tried, ``as-declared`` first."""


def _convert(options: str) -> Fix:
    return f"dspark-convert to-dense DRAFT OUTPUT {options}"


def _require_table(draft: DraftModel) -> Tensor:
    table = draft.vocabulary.draft_id_to_target_id
    if table is None:
        raise NotApplicableError("the draft vocabulary is the target's")
    return table


def _require_markov(draft: DraftModel) -> None:
    if draft.markov_head is None:
        raise NotApplicableError("the draft has no Markov head")


def _rope_base(config: Mapping[str, Any]) -> float | None:
    """The RoPE base of a text config, as transformers 5 or 4 writes it."""
    parameters = config.get("rope_parameters")
    base = (parameters if isinstance(parameters, dict) else config).get("rope_theta")
    return float(base) if isinstance(base, (int, float)) and base > 0 else None


def _tensor(facts: TargetFacts, name: str) -> Tensor:
    if facts.tensors is None or name not in facts.tensors:
        raise NotApplicableError("the target's tensor is not known; give its folder")
    return facts.tensors[name]


def _with_tensor(draft: DraftModel, name: str, theirs: Tensor) -> Reading:
    own = draft.state_dict()[name]
    if theirs.shape != own.shape:
        raise NotApplicableError(f"the target's tensor is {list(theirs.shape)}")
    theirs = upload_large(theirs, own.device).to(own.dtype)
    if torch.equal(own, theirs):
        raise NotApplicableError("the draft already has the target's tensor")
    fix = f"remove {name} from the draft, then convert with --target"
    return Reading(reread(draft, weights={name: theirs}), fix)
