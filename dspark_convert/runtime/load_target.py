"""Load a target model with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from dspark_convert.checkpoint.files import require_model_documents
from dspark_convert.errors import CheckpointError, Finding
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.library_errors import library_errors
from dspark_convert.runtime.rope import TRANSFORMERS_MAJOR


def load_target(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
) -> CausalTarget:
    """Load a target model with transformers, from safetensors only.

    Args:
        path: a folder (or whatever else ``from_pretrained`` takes).
        device: where it goes, unless ``device_map`` spreads it.
        dtype: of the weights; None takes that of the checkpoint.
        device_map: passed on; needs the accelerate library.
        trust_remote_code: whether code of the checkpoint may run.

    Raises:
        CheckpointError: ``target-unreadable``, ``target-tensor-missing``,
            ``target-needs-transformers-5``, and those of ``require_model_documents``.
        DialectError: ``target-unsupported``, ``target-not-rewindable``.
    """

    def refuse(description: str, hint: str | None) -> CheckpointError:
        return CheckpointError(
            Finding(
                code="target-unreadable",
                message=f"transformers cannot load the target: {description}",
                file=str(path),
                hint=hint or "give the folder of a causal language model stored as safetensors",
            )
        )

    if Path(path).is_dir():
        require_model_documents(Path(path))
    with library_errors(refuse):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        if TRANSFORMERS_MAJOR < 5:
            adopt_rope_parameters(config.get_text_config(), path)
        model, information = _auto_class(config).from_pretrained(
            path,
            config=config,
            dtype="auto" if dtype is None else dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
        _require_complete(information["missing_keys"], path)
        return CausalTarget(model if device_map is not None else model.to(device))


def adopt_rope_parameters(text_config: Any, path: Path | str) -> None:
    """Copy ``rope_parameters`` into the keys that transformers 4 reads, since it ignores that one.

    A config saved by version 5 keeps the rotary base nowhere else, so version 4 would silently run
    with its own default. Parameters that differ by type of layer cannot be expressed for it.
    """
    parameters = dict(getattr(text_config, "rope_parameters", None) or {})
    if any(isinstance(value, dict) for value in parameters.values()):
        raise CheckpointError(
            Finding(
                code="target-needs-transformers-5",
                message="transformers 4 cannot use RoPE parameters that differ by type of layer",
                file=str(path),
                key="rope_parameters",
                found=", ".join(sorted(parameters)),
                hint="install transformers 5",
            )
        )
    if parameters:
        text_config.rope_theta = parameters.pop("rope_theta", text_config.rope_theta)
        scaled = parameters.get("rope_type", "default") != "default"
        text_config.rope_scaling = parameters if scaled else None


def _auto_class(config: Any) -> Any:
    """Multimodal models that are not causal models to transformers have a class of their own."""
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    multimodal = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if multimodal and not causal else AutoModelForCausalLM


def _require_complete(missing: Sequence[str], path: Path | str) -> None:
    if missing:
        raise CheckpointError(
            *(
                Finding(
                    code="target-tensor-missing",
                    message="the target lacks a tensor, and transformers made one up",
                    file=str(path),
                    tensor=name,
                    hint="complete the download of the target",
                )
                for name in sorted(missing)
            )
        )
