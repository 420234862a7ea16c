"""One decoding round on the device, from anchors to the next anchors, as one CUDA graph.

Everything that a round reads or writes lies in tensors allocated once: the caches, and for each row
its anchor and the anchor's position. The host launches rounds and reads their results later.

Shapes: R rows, N drafted tokens of a round, Q = N + 1, V target vocabulary, D draft vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.drafting import (
    check_threshold,
    confidence_of,
    count_tokens,
    proposed_lengths,
)
from dspark_convert.runtime.fast.models import StaticDraft, StaticTarget
from dspark_convert.runtime.fast.runners import compile_function
from dspark_convert.runtime.fast.sampling import BlockSampler, NarrowChoice, soften, verify_narrow
from dspark_convert.runtime.fast.transfer import Download
from dspark_convert.runtime.progress import Outcome, unpack_outcomes
from dspark_convert.runtime.propose import Chain, ChooseToken, GreedyChoice, run_chain
from dspark_convert.runtime.records import DecodeOptions
from dspark_convert.runtime.rejection import Acceptance, Uniforms, verify_greedy
from dspark_convert.runtime.sampling import (
    compute_probabilities,
    draw_gumbel,
    require_generator,
)

# Runs before a capture: libraries allocate their workspaces, and layers are compiled.
WARM_UPS = 2
# More shapes than PyTorch compiles by default before it silently falls back to not compiling.
MOST_SHAPES = 64


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a round was decided on: logits of the target [R, Q, V] and, biased, of the draft
    [R, N, D].
    """

    target_logits: Tensor
    draft_logits: Tensor


@dataclass(frozen=True, slots=True)
class RoundOutput:
    """The result of a round, on the device: integers [R, 2 + 1 + N] and confidences [R, N].

    Columns: proposed length, accepted tokens, next token, drafted tokens. ``evidence`` is kept only
    if the rounds are observed.
    """

    counts: Tensor
    confidence: Tensor | None
    evidence: Evidence | None


class PendingRound:
    """A round's output on its way to the host; the next round overwrites that on the device."""

    def __init__(self, output: RoundOutput) -> None:
        self.output = output
        self._download = Download({"counts": output.counts, "confidence": output.confidence})

    def wait(self) -> list[Outcome]:
        """The outcome of every row; waits for this round only, not for later ones."""
        results = self._download.wait()
        counts = results["counts"]
        assert counts is not None
        return unpack_outcomes(counts, results["confidence"])


class Rounds:
    """Rows of a supported target and a draft, decoding side by side.

    ``columns`` positions fit into a row; one that runs past them decodes nonsense in its own last
    columns, so its rounds have to be discarded. ``observed`` keeps the evidence of each round.
    Raises ``UsageError`` as ``Drafter`` does.
    """

    def __init__(
        self,
        target: CausalTarget,
        draft: DraftModel,
        options: DecodeOptions,
        *,
        rows: int,
        longest: int,
        generator: torch.Generator | None,
        observed: bool = False,
    ) -> None:
        check_threshold(draft, options)
        self.options, self.generator, self.observed = options, generator, observed
        self.draft_model = draft
        self.num_tokens = count_tokens(draft, options)
        self.vocabulary = draft.vocabulary.restrict(target.vocab_size)
        self.choose = self._build_choice()
        self.sampler = self._build_sampler(rows)
        on_gpu = draft.device.type == "cuda"
        self.soften = compile_function(soften) if on_gpu else soften
        # A round writes as far as the longer of block and verified tokens, from its anchor on.
        width = max(self.num_tokens + 1, draft.config.block_size)
        self.last_position = longest + options.max_new_tokens
        columns = self.last_position + width
        layer_ids = draft.config.target_layer_ids
        self.target = StaticTarget(target, layer_ids, rows=rows, columns=columns)
        self.draft = StaticDraft(draft, rows=rows, columns=columns)
        self.offsets = torch.arange(self.num_tokens + 1, device=draft.device)
        self.anchors = torch.zeros(rows, dtype=torch.int64, device=draft.device)
        self.positions = torch.zeros_like(self.anchors)
        self._run: Callable[[], RoundOutput] = self._round
        if on_gpu:
            self._run = self._capture()

    def admit(self, row: int, prompt: Sequence[int]) -> PendingRound:
        """Start a prompt in a row: a round of that row alone, which proposes nothing (N = 0)."""
        output = self.target.prefill(row, prompt)
        self.draft.store_prompt(row, output.features[0])
        logits = output.logits[:, -1]
        if self.options.sampling.greedy:
            token = logits.argmax(-1)
        else:
            p = compute_probabilities(logits, self.options.sampling)
            token = draw_gumbel(p.log(), require_generator(self.generator))
        self.anchors[row] = token[0]
        self.positions[row] = len(prompt)
        zero = torch.zeros_like(token)
        counts = torch.stack((zero, zero, token), 1)
        nothing = output.logits.new_empty(1, 0, self.vocabulary.draft_size)
        return PendingRound(RoundOutput(counts, None, self._keep(output.logits, nothing)))

    def start_round(self) -> PendingRound:
        """Launch a round of all rows."""
        return PendingRound(self._run())

    @torch.no_grad()
    def _round(self) -> RoundOutput:
        positions = self.positions[:, None] + self.offsets
        hidden = self.draft.run_block(self.anchors, self.positions)
        chain = self._run_chain(hidden)
        confidence = confidence_of(self.draft_model, chain)
        lengths = proposed_lengths(chain.target_ids, confidence, self.options)
        block = torch.cat((self.anchors[:, None], chain.target_ids), 1)
        output = self.target(block, positions)
        self.draft.remember(output.features, positions)
        acceptance = self._verify(output.logits, chain, lengths)
        self.anchors.copy_(acceptance.next_token_ids)
        self.positions.add_(acceptance.accepted + 1).clamp_(max=self.last_position)
        columns = (lengths, acceptance.accepted, acceptance.next_token_ids)
        counts = torch.cat((torch.stack(columns, 1), chain.target_ids), 1)
        drafted = chain.biased_logits[:, self.draft_model.first_predicting_slot :]
        return RoundOutput(counts, confidence, self._keep(output.logits, drafted))

    def _keep(self, target_logits: Tensor, draft_logits: Tensor) -> Evidence | None:
        return Evidence(target_logits, draft_logits) if self.observed else None

    def _build_choice(self) -> ChooseToken:
        if self.options.sampling.greedy or self.options.draft_sampling == "greedy":
            return GreedyChoice(self.vocabulary)
        generator = require_generator(self.generator)
        return NarrowChoice(self.vocabulary, self.options.temperature, generator)

    def _build_sampler(self, rows: int) -> BlockSampler | None:
        temperature = self.options.temperature
        if not isinstance(self.choose, NarrowChoice) or not BlockSampler.serves(temperature):
            return None
        return BlockSampler(
            self.draft_model,
            self.vocabulary,
            temperature,
            self.choose.generator,
            rows=rows,
            num_tokens=self.num_tokens,
        )

    def _run_chain(self, hidden_RBH: Tensor) -> Chain:
        if self.sampler is not None:
            return self.sampler.draw(hidden_RBH, self.anchors)
        return run_chain(
            self.draft_model,
            hidden_RBH,
            self.anchors,
            self.choose,
            num_tokens=self.num_tokens,
            vocabulary=self.vocabulary,
        )

    def _verify(self, logits_RQV: Tensor, chain: Chain, lengths: Tensor) -> Acceptance:
        options = self.options
        if options.sampling.greedy:
            return verify_greedy(logits_RQV.argmax(-1), chain.target_ids, lengths)
        filtered = options.top_k is not None or options.top_p is not None
        if self.sampler is not None and not filtered:
            return self.sampler.verify(logits_RQV, chain, lengths)
        generator, q = require_generator(self.generator), None
        if options.draft_sampling == "sample":
            drafted = chain.biased_logits[:, self.draft_model.first_predicting_slot :]
            q = self.soften(drafted, options.temperature)
        if filtered:
            p = compute_probabilities(logits_RQV, options.sampling)
        else:
            p = self.soften(logits_RQV, options.temperature)
        return verify_narrow(
            p,
            q,
            chain.target_ids,
            lengths,
            self.vocabulary,
            Uniforms.draw(len(lengths), self.num_tokens, generator),
            generator,
        )

    def _capture(self) -> Callable[[], RoundOutput]:
        """The round as a CUDA graph; its output is overwritten by the next one."""
        drawn = None if self.generator is None else self.generator.get_state()
        self._warm_up()
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            output = self._round()
        if self.generator is not None and drawn is not None:
            self.generator.set_state(drawn)

        def replay() -> RoundOutput:
            graph.replay()
            return output

        return replay

    def _warm_up(self) -> None:
        """Compile and allocate, on a stream of its own, as captures want it."""
        new_stream: Any = torch.cuda.Stream  # torch leaves it untyped
        stream = new_stream()
        stream.wait_stream(torch.cuda.current_stream())
        limit = torch._dynamo.config.patch(recompile_limit=MOST_SHAPES)
        with torch.cuda.stream(stream), limit, warnings.catch_warnings():
            # The compiler recommends TF32, which is not what was asked for, and reports on itself.
            warnings.simplefilter("ignore")
            for _ in range(WARM_UPS):
                self._round()
        torch.cuda.current_stream().wait_stream(stream)
