"""What checks share: each thing is read, loaded or run once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checks.acceptance import AcceptanceSettings
from dspark_convert.checks.decode_run import DecodeRun
from dspark_convert.checks.options import VerifyOptions
from dspark_convert.checks.replay_run import ReplayRun
from dspark_convert.formats.identity import identify_weights
from dspark_convert.formats.read import DraftSource, Examination, examine
from dspark_convert.formats.target import TargetWeights, find_target_weights
from dspark_convert.replay.replay import ReplayOptions
from dspark_convert.runtime import CausalTarget, DraftModel, load_target
from dspark_convert.runtime.drafting import count_tokens
from dspark_convert.runtime.dtypes import FLOAT_DTYPES
from dspark_convert.runtime.fast import choose_steps
from dspark_convert.runtime.load import load_source
from dspark_convert.runtime.records import Progress
from dspark_convert.schemas.identity import WeightsIdentity
from dspark_convert.schemas.report import CheckId, CheckResult
from dspark_convert.traces.plan import choose_stop_token_ids
from dspark_convert.traces.prompts import encode_prompts, read_prompts
from dspark_convert.traces.tokenizer import load_tokenizer
from dspark_convert.traces.trace import Trace, open_trace, require_draft, require_target


@dataclass(frozen=True)
class Drafted:
    """What ran the draft, and on how many texts."""

    decoder: Literal["plain", "fast"]
    decoder_reason: str | None
    num_texts: int
    stop_token_ids: frozenset[int]


class CheckContext:
    """Options and inputs of one verification, and the results of its checks so far.

    Raises ``UsageError`` for options that make no sense, and what ``open_trace`` raises.
    """

    options: VerifyOptions
    """With a trace, the options of its recording."""
    trace: Trace | None
    results: dict[CheckId, CheckResult]
    drafted: Drafted | None
    """None until the draft has been run."""

    def __init__(self, options: VerifyOptions, on_progress: Progress) -> None:
        options.check()
        machine = options.machine
        self.device, self.dtype = machine.torch_device(), machine.torch_dtype()
        self.trace = None if options.trace is None else open_trace(options.trace)
        if self.trace is not None:
            options = replace(options, decode=options.follow_trace(self.trace.header))
        self.options, self.on_progress = options, on_progress
        self.results, self.drafted = {}, None
        self._loaded: dict[torch.dtype, DraftModel] = {}

    def passed(self, check_id: CheckId) -> bool:
        """Whether a check has run and passed."""
        result = self.results.get(check_id)
        return result is not None and result.verdict == "pass"

    @property
    def given_texts(self) -> bool:
        """Whether there are only texts that the target did not write."""
        return self.trace is not None and self.trace.header.text_origin == "given"

    @cached_property
    def examination(self) -> Examination:
        """The draft as far as it can be read."""
        return examine(self.options.draft)

    @property
    def source(self) -> DraftSource:
        """The draft, with nothing wrong."""
        source = self.examination.source
        assert source is not None, "the structure passed"
        return source

    @cached_property
    def draft_weights(self) -> WeightsIdentity | None:
        """Which weights the draft has; None if it cannot be opened."""
        checkpoint = self.examination.checkpoint
        return None if checkpoint is None else identify_weights(checkpoint)

    @cached_property
    def target_weights(self) -> TargetWeights | None:
        """The folder of the target, whether it will run or only supplies tensors."""
        folder = self.options.target or self.options.target_weights
        return None if folder is None else find_target_weights(folder)

    @cached_property
    def tokenizer(self) -> Any | None:
        """The tokenizer in the target's folder; None without one."""
        folder = self.options.target or self.options.target_weights
        if folder is None:
            return None
        return load_tokenizer(folder, trust_remote_code=self.options.machine.trust_remote_code)

    def load(
        self,
        source: DraftSource,
        *,
        dtype: torch.dtype | None = None,
        stand_ins: Mapping[str, Tensor] | None = None,
        loaded: Mapping[StoredTensor, Tensor] | None = None,
    ) -> DraftModel:
        """See ``load_source``; the draft itself is loaded once in each dtype."""
        lent = set(stand_ins or ()) - source.tensors.keys() if self.target_weights is None else ()
        own, dtype = source is self.source and not lent, dtype or FLOAT_DTYPES[source.config.dtype]
        if own and dtype in self._loaded:
            return self._loaded[dtype]
        draft = load_source(
            source,
            device=self.device,
            dtype=dtype,
            target=self.target_weights,
            stand_ins=stand_ins,
            loaded=loaded,
        )
        if own:
            self._loaded[dtype] = draft
        return draft

    @cached_property
    def draft(self) -> DraftModel:
        """The draft, ready to draft for the target or for the target of the trace.

        Raises ``TraceError`` (``trace-other-target``, and see ``require_draft``), and what
        ``load_source`` raises.
        """
        if self.trace is None:
            return self.load(self.source, dtype=self.dtype)
        if self.target_weights is not None:
            require_target(self.trace, self.target_weights)
        config = self.source.config
        require_draft(self.trace, config)
        return self.load(self.source, dtype=self.dtype, stand_ins=self.trace.lent_to(config))

    @cached_property
    def target(self) -> CausalTarget:
        """The target, loaded to be run."""
        options = self.options
        assert options.target is not None, "a target was given"
        return load_target(
            options.target,
            device=self.device,
            dtype=self.dtype,
            trust_remote_code=options.machine.trust_remote_code,
        )

    def settle_acceptance(self) -> AcceptanceSettings:
        """The thresholds for acceptance; raises ``UsageError`` (``option-out-of-range``)."""
        return self.options.acceptance_settings(count_tokens(self.draft, self.options.decode))

    @cached_property
    def decode_run(self) -> DecodeRun:
        """All prompts, decoded by target and draft."""
        prompts = read_prompts(self.options.prompts)
        token_ids = encode_prompts(prompts, self.tokenizer)
        target, draft = self.target, self.draft
        self.settle_acceptance()  # refuses before anything is decoded
        names = [prompt.id for prompt in prompts]
        assert self.target_weights is not None, "a target was given"
        stop = choose_stop_token_ids(self.options.stop_token_ids, self.target_weights)
        options = replace(self.options, decode=replace(self.options.decode, stop_token_ids=stop))
        run = DecodeRun(options, target, draft, names, token_ids, self.on_progress)
        self.drafted = Drafted(run.decoder.name, run.decoder.reason, len(names), stop)
        return run

    @cached_property
    def replay_options(self) -> ReplayOptions:
        """How the texts of the trace are replayed."""
        assert self.trace is not None, "a trace was given"
        steps, decode = choose_steps(self.draft, self.options.decoder), self.options.decode
        self.drafted = Drafted(steps.name, steps.reason, len(self.trace), decode.stop_token_ids)
        vocab_size = self.trace.header.target.vocab_size
        return ReplayOptions(decode=decode, target_vocab_size=vocab_size, steps=steps)

    @cached_property
    def replay_run(self) -> ReplayRun:
        """All texts of the trace, which the target wrote, replayed through the draft."""
        assert self.trace is not None, "a trace was given"
        options = self.replay_options
        self.settle_acceptance()  # refuses before anything is replayed
        return ReplayRun(self.draft, self.trace, options, on_progress=self.on_progress)

    @property
    def run(self) -> DecodeRun | ReplayRun:
        """Texts that the target wrote, with what happened to the draft's tokens in them."""
        return self.decode_run if self.trace is None else self.replay_run

    def use_draft(self) -> object:
        """Run the draft on whatever texts there are."""
        return self.replay_options if self.given_texts else self.run
