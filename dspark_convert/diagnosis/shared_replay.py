"""Readings of one draft replayed on a text; whatever they have in common is computed once.

    text --edit, features of the layers, fc--> input --RoPE, positions--> context --block--> hidden

Readings are grouped by what each stage produces: first by input, then by context, then by the
layers that their blocks go through, where ``score_blocks`` runs them side by side. Two readings are
assumed to produce the same only if everything they are made of is the same, except for a short list
of what the stage does not look at. So anything nobody thought of keeps them apart, which only costs
time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from torch import Tensor

from dspark_convert.diagnosis.readings import Reading
from dspark_convert.replay.replay import (
    AnchoredText,
    PendingReplays,
    Questions,
    Replay,
    ReplayOptions,
    anchor_text,
    ask,
    project_input,
    read_input,
    start_replays,
)
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.traces.trace import TraceSequence

# Fields of the config, and modules, in which readings differ and which a stage does not look at.
_NOT_IN_HIDDEN = frozenset({"layout", "markov_rank", "lm_head", "markov_head"})
_NOT_IN_LAYERS = _NOT_IN_HIDDEN | {"embed_tokens", "mask_token_id"}
_NOT_IN_CONTEXT = _NOT_IN_LAYERS | {"layer_types", "sliding_window_non_causal"}
_NOT_IN_INPUT = _NOT_IN_CONTEXT | {"rope_parameters"}

# Readings, by their indices, that run through the same layers; those of one context; contexts of
# one input.
_Layers = list[int]
_Context = list[_Layers]
_Input = list[_Context]
_Started = tuple[_Layers, PendingReplays]


class SharedReplay:
    """Replays all readings of a draft, one text after another."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.readings = tuple(readings)
        self._inputs: list[_Input] = [
            [_group(context, self._layers_key) for context in _group(members, self._context_key)]
            for members in _group(range(len(readings)), self._input_key)
        ]

    @property
    def backbones(self) -> list[list[int]]:
        """Indices of the readings that share the hidden states of their blocks."""
        return [
            backbone
            for input_ in self._inputs
            for context in input_
            for layers in context
            for backbone in _group(layers, self._hidden_key)
        ]

    def replay(
        self, sequence: TraceSequence, options: ReplayOptions, *, stride: int = 1
    ) -> Iterator[tuple[int, Replay]]:
        """The index and replay of every reading, equal to what ``replay_sequence`` gives it alone.

        The order is such that only one input and one context need to be held at a time. The next
        replays are started before the previous ones are looked at, so that a GPU has work. The
        options are those for the reading with the most tokens; see ``start_replays`` for others.

        Raises ``UsageError``: see ``anchor_text``.
        """
        ahead: _Started | None = None
        for started in self._start(sequence, options, stride):
            if ahead is not None:
                yield from zip(ahead[0], ahead[1].wait(), strict=True)
            ahead = started
        if ahead is not None:
            yield from zip(ahead[0], ahead[1].wait(), strict=True)

    def _start(
        self, sequence: TraceSequence, options: ReplayOptions, stride: int
    ) -> Iterator[_Started]:
        for contexts in self._inputs:
            yield from self._share_input(contexts, sequence, options, stride)

    def _share_input(
        self, contexts: _Input, sequence: TraceSequence, options: ReplayOptions, stride: int
    ) -> Iterator[_Started]:
        first = self.readings[contexts[0][0][0]]
        num_tokens = self._most_tokens(options)
        edited = first.edit_text(sequence)
        text = anchor_text(edited, options, num_tokens=num_tokens, stride=stride)
        questions = ask(text, options, first.draft.device, num_tokens=num_tokens)
        input_TH = read_input(first.draft, text, options)
        for context in contexts:
            yield from self._share_context(context, input_TH, text, questions, options)

    def _share_context(
        self,
        context: _Context,
        input_TH: Tensor,
        text: AnchoredText,
        questions: Questions,
        options: ReplayOptions,
    ) -> Iterator[_Started]:
        projected = project_input(self.readings[context[0][0]].draft, input_TH, options)
        for members in context:
            drafts = [self.readings[index].draft for index in members]
            yield members, start_replays(drafts, projected, text, questions, options)

    def _most_tokens(self, options: ReplayOptions) -> int:
        most = max(reading.draft.config.num_speculative_tokens for reading in self.readings)
        return min(most, options.decode.num_speculative_tokens or most)

    def _input_key(self, index: int) -> Hashable:
        reading = self.readings[index]
        compute = type(reading.draft).compute_context_input
        return reading.edit_text, compute, _made_of(reading.draft, _NOT_IN_INPUT)

    def _context_key(self, index: int) -> Hashable:
        draft = self.readings[index].draft
        return _own_kind(draft), _made_of(draft, _NOT_IN_CONTEXT)

    def _layers_key(self, index: int) -> Hashable:
        draft = self.readings[index].draft
        return _own_kind(draft), _made_of(draft, _NOT_IN_LAYERS)

    def _hidden_key(self, index: int) -> Hashable:
        draft = self.readings[index].draft
        return _own_kind(draft), _made_of(draft, _NOT_IN_HIDDEN)


def _group(indices: Sequence[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Items with the same key together, in the order in which the keys first occur."""
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())


def _own_kind(draft: DraftModel) -> Hashable:
    """None for a plain draft; another class runs in its own way."""
    return None if type(draft) is DraftModel else draft


def _made_of(draft: DraftModel, without: frozenset[str]) -> Hashable:
    """The config and the modules with their weights, except for some fields and modules.

    Weights are the same if they share memory, as ``reread`` leaves them. Buffers follow from the
    config and the vocabulary.
    """
    config = draft.config.model_dump_json(exclude=set(without))
    parts = tuple(
        (name, type(part), *map(_address, part.parameters(recurse=False)))
        for child, module in draft.named_children()
        if child not in without
        for name, part in module.named_modules(prefix=child)
    )
    return config, parts


def _address(weight: Tensor) -> Hashable:
    return weight.device, weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
