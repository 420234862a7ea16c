"""The last step of a target, without the target: final norm and output head on a hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from dspark_convert.errors import TraceError
from dspark_convert.formats.target import TargetWeights
from dspark_convert.runtime.library_errors import library_errors
from dspark_convert.runtime.load import read_weight
from dspark_convert.traces.file import trace_error

_CHUNK = 256
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TargetHead:
    """Chooses the next token from a hidden state that left the last decoder layer."""

    norm: nn.Module
    weight: Tensor
    """[V, H]."""

    @torch.no_grad()
    def choose(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Argmax, int64 [n], and the gap of the two largest logits, fp32 [n], of hidden [n, H].

        Models that cap or scale their logits do so monotonically: the choice is the same.
        """
        chosen, gaps = [], []
        for part in torch.split(hidden, _CHUNK):
            logits = self.norm(part) @ self.weight.T
            largest = logits.float().topk(2).values
            chosen.append(logits.argmax(-1))
            gaps.append(largest[:, 0] - largest[:, 1])
        return torch.cat(chosen), torch.cat(gaps)


def load_target_head(
    weights: TargetWeights, dtype: torch.dtype, *, trust_remote_code: bool = False
) -> TargetHead:
    """Read the final norm and output head of a target, in ``dtype``, and nothing else.

    Raises ``TraceError`` (``target-head-unsupported``).
    """
    norm = load_final_norm(weights, dtype, trust_remote_code=trust_remote_code)
    return TargetHead(norm, read_weight(weights.lm_head, _CPU).to(dtype))


def load_final_norm(
    weights: TargetWeights, dtype: torch.dtype, *, trust_remote_code: bool = False
) -> nn.Module:
    """Read what a target does to the hidden states that leave its last layer, in ``dtype``.

    If the folder needs code that may not run, that is an error: transformers must not ask on
    stdout.

    Raises ``TraceError`` (``target-head-unsupported``).
    """
    folder = weights.checkpoint.folder
    with library_errors(lambda description, hint: _unsupported(description)):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=trust_remote_code
            )
        decoder = model.get_decoder()
    norm = getattr(decoder, "norm", None)
    if not isinstance(norm, nn.Module):
        raise _unsupported(f"{type(decoder).__name__} has no module named norm")
    beside = weights.embed_tokens.name.split(".")[:-2]
    prefix = ".".join([*beside, "norm."])
    tensors = {}
    for name, parameter in norm.state_dict().items():
        stored = weights.checkpoint.tensors.get(prefix + name)
        if stored is None or stored.shape != tuple(parameter.shape):
            raise _unsupported(f"the checkpoint has no matching tensor {prefix}{name}")
        tensors[name] = read_weight(stored, _CPU).to(dtype)
    norm.load_state_dict(tensors, assign=True)
    return norm


def _unsupported(reason: str) -> TraceError:
    return trace_error(
        "target-head-unsupported",
        f"the target's choices cannot be computed from its last layer: {reason}",
        hint="record a trace of this target with dspark-verify record",
    )
