"""Speculative decoding of a batch, and the plain loop that it must agree with.

    prefill    the target reads the prompts and draws a token, as in a round that proposes nothing
    round      draft a block after the anchor -> target reads anchor + drafted tokens -> accept
               -> forget what was rejected, in both caches

Counting follows the field (DeepSpec, eval loop): the token of the prefill belongs to no round; a
round starts while the rounds have committed fewer than ``max_new_tokens`` tokens and no stop token;
it commits the accepted tokens and one more; if a stop token among the accepted tokens ends a round,
the round counts up to that token.

Shapes: R rows still running, T prompt positions, N drafted tokens, Q = N + 1, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dspark_convert.errors import DraftError, Finding, Findings, UsageError
from dspark_convert.formats.target import validate_pairing
from dspark_convert.runtime.cache import ContextCache
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.drafting import Drafted, Drafter
from dspark_convert.runtime.progress import Outcome, Row, unpack_outcomes
from dspark_convert.runtime.records import DecodeOptions, DecodeResult, Observation, Observer
from dspark_convert.runtime.rejection import Acceptance, Uniforms, verify_greedy, verify_sampled
from dspark_convert.runtime.sampling import (
    compute_probabilities,
    draw_inverse_cdf,
    require_generator,
)
from dspark_convert.runtime.target import Target


@torch.no_grad()
def decode(
    target: Target,
    draft: DraftModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    generator: torch.Generator | None = None,
    observer: Observer | None = None,
) -> tuple[DecodeResult, ...]:
    """Decode a batch of prompts (token ids) speculatively; results in the order of the prompts.

    Greedy results do not depend on the batch. ``generator`` is needed at a temperature above 0, on
    the draft's device. ``observer`` sees the prefill and every round.

    Raises:
        UsageError: ``prompt-empty``, ``prompt-token-unknown``, and options that the draft cannot
            serve (see ``Drafter``).
        DraftError: the draft does not fit the target (see ``validate_pairing``).
    """
    check_pair(target, draft)
    check_prompts(prompts, target.vocab_size)
    if not prompts:
        return ()
    batch = _Batch(target, draft, prompts, options, generator, observer)
    batch.prefill(prompts)
    while batch.running:
        batch.run_round()
    return tuple(row.result(options) for row in batch.rows)


@torch.no_grad()
def decode_plain(
    target: Target,
    prompt: Sequence[int],
    options: DecodeOptions,
    *,
    generator: torch.Generator | None = None,
) -> tuple[int, ...]:
    """Decode one prompt token by token, without a draft: the oracle of ``decode``.

    ``generator`` is needed at a temperature above 0, on the target's device.
    """
    check_prompts([prompt], target.vocab_size)
    session = target.start(())
    output = session.prefill(torch.tensor([list(prompt)], device=target.device), [len(prompt)])
    token_ids: list[int] = []
    while True:
        logits = output.logits[:, -1]
        if options.sampling.greedy:
            token = logits.argmax(-1)
        else:
            uniform = Uniforms.draw(1, 0, require_generator(generator)).next_token
            token = draw_inverse_cdf(compute_probabilities(logits, options.sampling), uniform)
        token_ids.append(int(token))
        if len(token_ids) == options.max_new_tokens or token_ids[-1] in options.stop_token_ids:
            return tuple(token_ids)
        output = session.extend(token[:, None])


class _Batch:
    """The state of a decode run: rows, both caches, the drafter."""

    def __init__(
        self,
        target: Target,
        draft: DraftModel,
        prompts: Sequence[Sequence[int]],
        options: DecodeOptions,
        generator: torch.Generator | None,
        observer: Observer | None,
    ) -> None:
        self.target, self.draft, self.options = target, draft, options
        self.generator, self.observer = generator, observer
        self.rows = [Row(index, len(prompt)) for index, prompt in enumerate(prompts)]
        self.running = list(self.rows)
        self.drafter = Drafter(
            draft,
            options,
            target_vocab_size=target.vocab_size,
            rows=len(prompts),
            generator=generator,
        )
        self.session = target.start(draft.config.target_layer_ids)
        longest = max(row.prompt_length for row in self.rows)
        self.context = ContextCache(
            draft.config,
            rows=len(prompts),
            capacity=longest + options.max_new_tokens + self.drafter.num_tokens,
            device=draft.device,
            dtype=draft.dtype,
        )

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read the prompts and draw the token after each."""
        lengths = [row.prompt_length for row in self.rows]
        width = max(lengths)
        padded = [[*prompt, *([0] * (width - len(prompt)))] for prompt in prompts]
        output = self.session.prefill(torch.tensor(padded, device=self.target.device), lengths)
        self._remember(output.features, self._tensor([range(width)] * len(lengths)))
        nothing = self.drafter.draft_nothing(len(lengths))
        acceptance = self._verify(output.logits, nothing, [length - 1 for length in lengths])
        for row, token_id in zip(self.rows, acceptance.next_token_ids.tolist(), strict=True):
            row.token_ids.append(token_id)
        self._drop_finished()

    def run_round(self) -> None:
        """Draft, verify, commit and forget, for every running row."""
        positions = [row.anchor_position for row in self.running]
        anchor_positions = self._tensor(positions)[:, None]
        anchors = self._tensor([row.token_ids[-1] for row in self.running])[:, None]
        hidden = self.draft(self.context.view(max(positions)), anchors, anchor_positions)
        drafted = self.drafter(hidden[:, 0], anchors[:, 0])
        block = torch.cat((anchors, drafted.target_ids), 1)
        output = self.session.extend(block.to(self.target.device))
        offsets = torch.arange(block.shape[1], device=self.draft.device)
        self._remember(output.features, anchor_positions + offsets)
        outcomes = _to_host(drafted, self._verify(output.logits, drafted, positions))
        for row, outcome in zip(self.running, outcomes, strict=True):
            row.commit(outcome, self.options)
        self.session.keep([1 + outcome.accepted for outcome in outcomes])
        self._drop_finished()

    def _verify(self, logits_RQV: Tensor, drafted: Drafted, positions: Sequence[int]) -> Acceptance:
        """Accept or reject, and show the observer why."""
        logits, q, p = logits_RQV.to(self.draft.device), drafted.probabilities, None
        if q is None:
            acceptance = verify_greedy(logits.argmax(-1), drafted.target_ids, drafted.lengths)
        else:
            p = compute_probabilities(logits, self.options.sampling)
            rows, num_tokens = drafted.target_ids.shape
            uniforms = Uniforms.draw(rows, num_tokens, require_generator(self.generator))
            acceptance = verify_sampled(p, q, drafted.target_ids, drafted.lengths, uniforms)
        if self.observer is not None:
            self.observer(
                Observation(
                    prompts=tuple(row.prompt for row in self.running),
                    anchor_positions=tuple(positions),
                    target_logits=logits,
                    target_probabilities=p,
                    draft_probabilities=q,
                    draft_ids=drafted.target_ids,
                    lengths=drafted.lengths,
                    accepted=acceptance.accepted,
                    next_token_ids=acceptance.next_token_ids,
                )
            )
        return acceptance

    def _remember(self, features: Tensor, position_ids_RQ: Tensor) -> None:
        context = self.draft.compute_context(features.to(self.draft.device), position_ids_RQ)
        self.context.write(context, position_ids_RQ)

    def _drop_finished(self) -> None:
        going = [i for i, row in enumerate(self.running) if not row.finished(self.options)]
        if len(going) < len(self.running):
            self.running = [self.running[i] for i in going]
            self.session.select_rows(going)
            self.context.select_rows(going)

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=self.draft.device)


def _to_host(drafted: Drafted, acceptance: Acceptance) -> list[Outcome]:
    """The outcome of a round, in one copy."""
    columns = (
        drafted.lengths[:, None],
        acceptance.accepted[:, None],
        acceptance.next_token_ids[:, None],
        drafted.target_ids,
    )
    return unpack_outcomes(torch.cat(columns, 1), drafted.confidence)


def check_pair(target: Target, draft: DraftModel) -> None:
    """Raise ``DraftError`` for a draft that does not fit the target (see ``validate_pairing``)."""
    config = {
        "hidden_size": target.hidden_size,
        "num_hidden_layers": target.num_hidden_layers,
        "vocab_size": target.vocab_size,
    }
    findings = Findings()
    validate_pairing(draft.config, config, target.vocab_size, findings)
    findings.raise_errors(DraftError)


def check_prompts(prompts: Iterable[Sequence[int]], vocab_size: int) -> None:
    """Raise ``UsageError`` (``prompt-empty``, ``prompt-token-unknown``) unless a target of this
    many tokens can read the texts.
    """
    for index, token_ids in enumerate(prompts):
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
        if token_ids and not unknown:
            continue
        raise UsageError(
            Finding(
                code="prompt-token-unknown" if token_ids else "prompt-empty",
                message=f"text {index} cannot be run through the target",
                expected=f"token ids from 0 to {vocab_size - 1}" if token_ids else "a token",
                found=str(unknown[:5]) if token_ids else "none",
                hint="tokenize texts with the target's own tokenizer",
            )
        )
