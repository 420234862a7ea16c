"""From logits to probabilities and tokens.

Pure functions on tensors; the last dimension is the vocabulary (V) and any others are a batch.
Everything is computed in fp32, or in float64 if the input is float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark_convert.errors import Finding, UsageError

# Below this temperature a distribution is one-hot at its largest logit (DeepSpec, eval loop).
GREEDY_BELOW = 1e-5

_MAX_COUNT = 2**31 - 1  # of whatever an option counts, and the largest token id
_MAX_NEW_TOKENS = 10_000_000  # beyond the context of any model
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How a token is drawn: temperature, then the top k tokens, then the nucleus of mass p.

    ``top_k`` and ``top_p`` None: no filter. Raises ``UsageError`` for values that make no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        if not 0.0 <= self.temperature < float("inf"):
            raise option_out_of_range(
                "temperature", "a finite number, 0 or above", self.temperature
            )
        require_in_range("top_k", self.top_k, 1)
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise option_out_of_range("top_p", "above 0 and at most 1", self.top_p)

    @property
    def greedy(self) -> bool:
        """Whether the temperature counts as 0."""
        return self.temperature < GREEDY_BELOW


def compute_probabilities(logits: Tensor, options: SamplingOptions) -> Tensor:
    """Probabilities [..., V] of the next token; one-hot when greedy."""
    if options.greedy:
        return one_hot(logits.argmax(-1), logits.shape[-1], _wide(logits).dtype)
    scaled = scale_logits(logits, options.temperature)
    if options.top_k is not None:
        scaled = keep_top_k(scaled, options.top_k)
    if options.top_p is not None:
        scaled = keep_top_p(scaled, options.top_p)
    return scaled.softmax(-1)


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """``(logits - max) / temperature`` of logits [..., V], in fp32 or wider.

    The softmax is that of ``logits / temperature``. With the maximum at 0 nothing overflows to
    +inf, so a small temperature produces no NaN.
    """
    wide = _wide(logits)
    return (wide - wide.amax(-1, keepdim=True)) / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Logits [..., V] with -inf below the k-th largest; ties with it stay."""
    smallest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, float("-inf"))


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Logits [..., V] with -inf outside the smallest likeliest set whose mass reaches ``p``."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= p
    outside[..., 0] = False
    return logits.masked_fill(outside.scatter(-1, order, outside), float("-inf"))


def draw_gumbel(scaled_logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ids int64 [...] from ``softmax(scaled_logits)`` by the Gumbel-max trick.

    -inf is never drawn. Needs no normalisation and no host synchronisation.
    """
    noise = torch.empty_like(scaled_logits).exponential_(generator=generator)
    noise.clamp_(min=torch.finfo(noise.dtype).tiny)
    return (scaled_logits - noise.log()).argmax(-1)


def draw_inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The ids int64 [...] at which the running sum of ``weights`` [..., V] passes ``uniforms``.

    ``weights`` need not be normalised, only not all zero; ``uniforms`` [...] are in [0, 1). A pure
    function: equal uniforms give equal ids. A token without weight is never drawn.
    """
    mass = weights.double().cumsum(-1)
    total = mass[..., -1:].contiguous()
    drawn = torch.searchsorted(mass, uniforms.double()[..., None] * total, right=True)
    # Rounding, of a denormal product or of a sum that runs in parallel, can reach the total itself,
    # past the last token that has weight.
    last = torch.searchsorted(mass, total, right=False)
    return torch.minimum(drawn, last).squeeze(-1)


def one_hot(ids: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Probabilities [..., size] that put everything on ``ids`` [...]."""
    certain = torch.zeros(*ids.shape, size, dtype=dtype, device=ids.device)
    return certain.scatter_(-1, ids[..., None], 1.0)


def require_generator(generator: torch.Generator | None) -> torch.Generator:
    """The generator; ``UsageError`` without one, since the global one makes runs irreproducible."""
    if generator is None:
        raise UsageError(
            Finding(
                code="generator-required",
                message="sampling at a temperature above 0 needs an explicit torch.Generator",
                hint="pass generator=torch.Generator(device).manual_seed(seed)",
            )
        )
    return generator


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def require_in_range(name: str, value: int | None, least: int, most: int = _MAX_COUNT) -> None:
    """Raise ``UsageError`` (``option-out-of-range``) unless ``least <= value <= most``, or None."""
    if value is not None and not least <= value <= most:
        raise option_out_of_range(name, f"{least} to {most}", value)


def require_new_tokens(name: str, value: int | None) -> None:
    """Raise ``UsageError`` for a limit of new tokens that no model could reach."""
    require_in_range(name, value, 1, _MAX_NEW_TOKENS)


def require_seed(name: str, seed: int) -> None:
    """Raise ``UsageError`` for a seed that PyTorch or NumPy refuses."""
    require_in_range(name, seed, 0, _MAX_SEED)


def require_token_ids(name: str, ids: Iterable[int] | None) -> None:
    """Raise ``UsageError`` for ids that no vocabulary holds."""
    for token_id in ids or ():
        require_in_range(name, token_id, 0)


def option_out_of_range(name: str, expected: str, found: float) -> UsageError:
    """The error for an option whose value makes no sense."""
    return UsageError(
        Finding(
            code="option-out-of-range",
            message=f"{name} has a value that makes no sense",
            key=name,
            expected=expected,
            found=str(found),
        )
    )
