"""Run a target over texts, either ones that it writes itself or given ones.

Shapes: R rows, T tokens of a text, P of its prompt, Q tokens of one pass, L layers, H target
hidden, K largest probabilities, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspark_convert.runtime.decode import check_prompts
from dspark_convert.runtime.sampling import (
    SamplingOptions,
    compute_probabilities,
    draw_inverse_cdf,
    require_generator,
)
from dspark_convert.runtime.target import Target, TargetOutput
from dspark_convert.traces.file import not_finite
from dspark_convert.traces.trace import TraceSequence

_CHUNK = 256
"""Tokens of a given text in one pass, which bounds the logits that are held."""


@dataclass(frozen=True)
class TextInput:
    """A prompt, and for a given text what follows it."""

    id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How texts are generated, and what is kept of them."""

    layer_ids: tuple[int, ...]
    max_generated: int
    """Tokens after the prompt: up to the limit, and those kept past it."""
    sampling: SamplingOptions
    stop_token_ids: frozenset[int]
    top_log_probs: int
    feature_dtype: torch.dtype


@torch.no_grad()
def sample_texts(
    target: Target,
    prompts: Sequence[TextInput],
    settings: TextSettings,
    *,
    batch_size: int,
    generator: torch.Generator | None = None,
) -> Iterator[TraceSequence]:
    """Let the target continue every prompt, token by token; a text ends with a stop token.

    At temperature 0 the text is that of ``decode_plain``. Above, each prompt has random numbers of
    its own, so texts do not depend on ``batch_size``. ``generator`` lives on the CPU.

    Raises:
        UsageError: ``prompt-empty``, ``prompt-token-unknown``, ``generator-required``.
        TraceError: ``trace-not-finite`` when the target's logits overflowed.
    """
    check_prompts([prompt.prompt_ids for prompt in prompts], target.vocab_size)
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        yield from _sample_batch(target, batch, settings, generator)


@torch.no_grad()
def read_texts(
    target: Target, texts: Sequence[TextInput], settings: TextSettings
) -> Iterator[TraceSequence]:
    """Let the target read given texts; responses end at a stop token or at the limit.

    Raises ``UsageError``: ``prompt-empty``, ``prompt-token-unknown``.
    """
    check_prompts([text.prompt_ids for text in texts], target.vocab_size)
    check_prompts([text.response_ids for text in texts], target.vocab_size)
    return (_read_text(target, text, settings) for text in texts)


def cut_response(
    response_ids: Sequence[int], stop_token_ids: frozenset[int], limit: int | None = None
) -> tuple[int, ...]:
    """A response up to its first stop token, which it keeps, and to at most ``limit``."""
    for index, token_id in enumerate(response_ids[:limit]):
        if token_id in stop_token_ids:
            return tuple(response_ids[: index + 1])
    return tuple(response_ids[:limit])


def describe_tokens(
    logits_RV: Tensor, p_RV: Tensor, token_ids_R: Tensor, settings: TextSettings
) -> dict[str, Tensor]:
    """What a trace keeps of one position of every row, by field of ``TraceSequence``.

    ``p_RV`` is the distribution of the token at the settings. If it is greedy, its largest
    probabilities say nothing, so those at temperature 1 are kept.
    """
    largest_logits = logits_RV.float().topk(2).values
    described = {
        "log_probs": p_RV.gather(1, token_ids_R[:, None]).squeeze(1).log(),
        "argmax_ids": logits_RV.argmax(-1),
        "top2_gap": largest_logits[:, 0] - largest_logits[:, 1],
    }
    if settings.top_log_probs:
        if settings.sampling.greedy:
            p_RV = compute_probabilities(logits_RV, SamplingOptions(temperature=1.0))
        largest = p_RV.topk(settings.top_log_probs)
        tail = p_RV.double().sum(-1) - largest.values.double().sum(-1)
        described["top_ids"] = largest.indices.int()
        described["top_log_probs"] = largest.values.log()
        described["tail_mass"] = tail.clamp(min=0).float()
    return {name: tensor.cpu() for name, tensor in described.items()}


@dataclass
class _Row:
    """One text under construction; ``features`` are [Q, L, H] of each pass."""

    source: TextInput
    token_ids: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    described: list[Mapping[str, Tensor]] = field(default_factory=list)

    def finished(self, settings: TextSettings) -> bool:
        full = len(self.token_ids) == settings.max_generated
        return full or self.token_ids[-1] in settings.stop_token_ids

    def sequence(self, settings: TextSettings) -> TraceSequence:
        described = {
            name: torch.cat([position[name] for position in self.described])
            for name in self.described[0]
        }
        prompt_ids = self.source.prompt_ids
        return TraceSequence(
            id=self.source.id,
            token_ids=torch.tensor([*prompt_ids, *self.token_ids]),
            first_generated=len(prompt_ids),
            layer_ids=settings.layer_ids,
            features=torch.cat(self.features),
            **described,
        )


def _sample_batch(
    target: Target,
    prompts: Sequence[TextInput],
    settings: TextSettings,
    generator: torch.Generator | None,
) -> list[TraceSequence]:
    rows = [_Row(prompt) for prompt in prompts]
    uniforms = _draw_uniforms(len(rows), settings, generator)
    session = target.start(settings.layer_ids)
    output = session.prefill(*_pad([row.source.prompt_ids for row in rows], target.device))
    for row, features in zip(rows, _features_of(output, settings), strict=True):
        row.features.append(features[: len(row.source.prompt_ids)])
    running = list(range(len(rows)))
    for step in range(settings.max_generated):
        token_ids = _choose([rows[i] for i in running], output, uniforms[running, step], settings)
        # The last token is read too, because its features belong to the text.
        output = session.extend(token_ids[:, None])
        for i, features in zip(running, _features_of(output, settings), strict=True):
            rows[i].features.append(features)
        going = [at for at, i in enumerate(running) if not rows[i].finished(settings)]
        if not going:
            break
        if len(going) < len(running):
            session.select_rows(going)
            output = TargetOutput(output.logits[going], output.features[going])
            running = [running[at] for at in going]
    return [row.sequence(settings) for row in rows]


def _choose(
    rows: Sequence[_Row], output: TargetOutput, uniforms_R: Tensor, settings: TextSettings
) -> Tensor:
    """Draw the next token of every row, int64 [R], and note what it was drawn from."""
    logits = output.logits[:, -1]
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise not_finite("logits", rows[0].source.id)
    p = compute_probabilities(logits, settings.sampling)
    if settings.sampling.greedy:
        token_ids = logits.argmax(-1)
    else:
        token_ids = draw_inverse_cdf(p, uniforms_R.to(p.device))
    described = describe_tokens(logits, p, token_ids, settings)
    for at, (row, token_id) in enumerate(zip(rows, token_ids.tolist(), strict=True)):
        row.token_ids.append(token_id)
        row.described.append({name: values[at : at + 1] for name, values in described.items()})
    return token_ids


def _read_text(target: Target, text: TextInput, settings: TextSettings) -> TraceSequence:
    response = cut_response(text.response_ids, settings.stop_token_ids, settings.max_generated)
    row = _Row(text, token_ids=list(response))
    session = target.start(settings.layer_ids)
    output = session.prefill(*_pad([text.prompt_ids], target.device))
    row.features.extend(_features_of(output, settings))
    before = output.logits[0]
    for start in range(0, len(response), _CHUNK):
        chunk = torch.tensor(response[start : start + _CHUNK], device=target.device)
        output = session.extend(chunk[None])
        row.features.extend(_features_of(output, settings))
        # The logits before a token, so one position behind the pass that read it.
        logits = torch.cat((before, output.logits[0, :-1]))
        p = compute_probabilities(logits, settings.sampling)
        row.described.append(describe_tokens(logits, p, chunk, settings))
        before = output.logits[0, -1:]
    return row.sequence(settings)


def _features_of(output: TargetOutput, settings: TextSettings) -> Tensor:
    """Features [R, Q, L, H] of a pass, on the host and in the dtype that is kept."""
    rows, columns = output.features.shape[:2]
    shaped = output.features.reshape(rows, columns, len(settings.layer_ids), -1)
    return shaped.to(settings.feature_dtype).cpu()


def _draw_uniforms(rows: int, settings: TextSettings, generator: torch.Generator | None) -> Tensor:
    """float64 [R, generated] in [0, 1); drawn row by row, whatever the batch."""
    shape = (rows, settings.max_generated)
    if settings.sampling.greedy:
        return torch.zeros(shape, dtype=torch.float64)
    return torch.rand(shape, dtype=torch.float64, generator=require_generator(generator))


def _pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int]]:
    lengths = [len(prompt) for prompt in prompts]
    padded = [[*prompt, *([0] * (max(lengths) - len(prompt)))] for prompt in prompts]
    return torch.tensor(padded, device=device), lengths
