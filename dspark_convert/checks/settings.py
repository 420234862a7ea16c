"""What a report says about its origin: the draft, the target, and every setting."""

from __future__ import annotations

import torch
import transformers

from dspark_convert import __version__
from dspark_convert.checkpoint.names import display_name
from dspark_convert.checks.context import CheckContext
from dspark_convert.conversion.inspection import describe
from dspark_convert.formats.identity import identify_weights
from dspark_convert.schemas.report import VerifiedDraft, VerifiedTarget, VerifySettings
from dspark_convert.traces.prompts import BUNDLED


def describe_draft(context: CheckContext) -> VerifiedDraft:
    """The draft, as far as it can be read."""
    examination = context.examination
    inspection = describe(context.options.draft, examination)
    checkpoint = examination.checkpoint
    return VerifiedDraft(
        name=inspection.name,
        dialect=inspection.dialect,
        config_sha256=checkpoint.config_sha256 if checkpoint else None,
        weights=context.draft_weights,
        config=inspection.draft,
    )


def describe_target(context: CheckContext) -> VerifiedTarget | None:
    """The target; None if there is none, or the draft is too broken to be compared with one."""
    if not context.passed("structure"):
        return None
    if context.trace is not None:
        recorded = context.trace.header.target
        return VerifiedTarget(
            name=recorded.name,
            config_sha256=recorded.config_sha256,
            weights=recorded.weights,
            architecture="not recorded",
            dtype=recorded.dtype,
            device="not loaded",
        )
    if context.target_weights is None:
        return None
    checkpoint = context.target_weights.checkpoint
    architectures = checkpoint.config.get("architectures") or ["unknown"]
    loaded = context.drafted is not None
    return VerifiedTarget(
        name=display_name(checkpoint.folder),
        config_sha256=checkpoint.config_sha256,
        weights=identify_weights(checkpoint),
        architecture=str(architectures[0]),
        dtype=str(context.target.model.dtype).removeprefix("torch.") if loaded else "not loaded",
        device=str(context.device) if loaded else "not loaded",
    )


def describe_settings(context: CheckContext) -> VerifySettings:
    """Everything that a second run needs to repeat this one."""
    options, decode, drafted = context.options, context.options.decode, context.drafted
    texts = options.trace or options.prompts
    return VerifySettings(
        prompts=texts.name if texts else BUNDLED,
        trace=options.trace.name if options.trace else None,
        num_prompts=drafted.num_texts if drafted else 0,
        max_new_tokens=decode.max_new_tokens,
        stop_token_ids=tuple(sorted(drafted.stop_token_ids)) if drafted else None,
        temperature=decode.temperature,
        top_k=decode.top_k,
        top_p=decode.top_p,
        draft_sampling=decode.draft_sampling,
        num_speculative_tokens=decode.num_speculative_tokens,
        confidence_threshold=decode.confidence_threshold,
        seed=options.seed,
        batch_size=options.batch_size,
        device=str(context.device),
        engine=drafted.decoder if drafted else None,
        engine_reason=drafted.decoder_reason if drafted else None,
        dtype=options.machine.dtype,
        min_accepted_length=options.min_accepted_length,
        min_acceptance=options.min_acceptance,
        source=display_name(options.source) if options.source else None,
        versions={
            "dspark-convert": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )
