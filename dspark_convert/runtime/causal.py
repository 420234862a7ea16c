"""The target adapter for transformers' causal language models, 4.57 and later.

Shapes: R rows, T prompt positions, Q new tokens, H target hidden, V target vocabulary,
F = tapped layers x H.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from dspark_convert.errors import CheckpointError, DialectError, Finding
from dspark_convert.runtime.library_errors import library_errors
from dspark_convert.runtime.target import TargetOutput

_LAYER_LISTS = ("layers", "h", "blocks")
_REWINDABLE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


class CausalTarget:
    """A causal language model of transformers, or the text side of a multimodal one."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.text_config = model.config.get_text_config()
        self.layers = find_decoder_layers(model)
        self.forward_arguments = frozenset(inspect.signature(model.forward).parameters)
        self._stop_token_ids = _stop_token_ids(model)
        _require_rewindable(model, self.text_config)

    @property
    def vocab_size(self) -> int:
        """Columns of the logits: the rows of the output head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def hidden_size(self) -> int:
        """Of the text model."""
        return int(self.text_config.hidden_size)

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers of the text model."""
        return len(self.layers)

    @property
    def device(self) -> torch.device:
        """The device of the input embedding; a model spread by ``device_map`` has others too."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The end-of-sequence ids of the generation config."""
        return self._stop_token_ids

    def start(self, layer_ids: Sequence[int]) -> CausalSession:
        """A session that taps these layers."""
        return CausalSession(self, layer_ids)

    @contextmanager
    def tap(self, layer_ids: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Record the residual streams of a forward pass.

        Hooks see what a layer really returns; transformers' own ``hidden_states`` hold the normed
        state in place of the last layer's.
        """
        recorded: dict[int, Tensor] = {}

        def record(layer_id: int, output: Any) -> None:
            recorded[layer_id] = output[0] if isinstance(output, tuple) else output

        handles = []
        for layer_id in layer_ids:
            if layer_id == -1:
                # The input of layer 0, since some models scale the embedding on the way to it.
                handles.append(
                    self.layers[0].register_forward_pre_hook(
                        lambda _, args, kwargs: record(-1, args or kwargs["hidden_states"]),
                        with_kwargs=True,
                    )
                )
            else:
                handles.append(
                    self.layers[layer_id].register_forward_hook(
                        lambda _, __, output, layer_id=layer_id: record(layer_id, output)
                    )
                )
        try:
            yield recorded
        finally:
            for handle in handles:
                handle.remove()


class CausalSession:
    """Rows of different lengths in one ``DynamicCache``, aligned at their ends.

    Row r occupies the last columns of the cache, after ``padding[r]`` columns that the attention
    mask hides. When rows accept different numbers of tokens, ``keep`` moves the shorter rows to
    the right, so cache columns stay contiguous in every row and sliding windows stay exact.
    """

    def __init__(self, target: CausalTarget, layer_ids: Sequence[int]) -> None:
        self.target = target
        self.layer_ids = tuple(layer_ids)
        # Without a config no layer drops what has left its window: it may have to come back.
        self.cache = DynamicCache()
        self.columns = 0
        self.appended = 0
        self._set_padding([])

    def prefill(self, token_ids_RT: Tensor, lengths: Sequence[int]) -> TargetOutput:
        """Start the rows; see ``TargetSession``."""
        self._set_padding([token_ids_RT.shape[1] - length for length in lengths])
        padded = move_right(token_ids_RT, self._padding_R, dim=1)
        output = self._forward(padded, logits_to_keep=1)
        features = move_right(output.features, -self._padding_R, dim=1)
        return TargetOutput(output.logits, features)

    def extend(self, token_ids_RQ: Tensor) -> TargetOutput:
        """Append tokens; see ``TargetSession``."""
        return self._forward(token_ids_RQ, logits_to_keep=token_ids_RQ.shape[1])

    def keep(self, counts: Sequence[int]) -> None:
        """Forget rejected tokens; see ``TargetSession``."""
        moves = [max(counts) - count for count in counts]
        padding = [before + move for before, move in zip(self.padding, moves, strict=True)]
        end, start = self.columns - self.appended + max(counts), min(padding)
        # One upload for all layers: each waits for everything that was queued before it.
        moves_R = self._upload(moves)

        def keep_columns(held: Tensor) -> Tensor:
            held = held[:, :, :end]
            if any(moves):
                held = move_right(held, moves_R.to(held.device), dim=2)
            return held[:, :, start:]

        self._edit_cache(keep_columns)
        self._set_padding([columns - start for columns in padding])
        self.columns, self.appended = end - start, 0

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows; see ``TargetSession``."""
        self._edit_cache(lambda held: held[list(rows)])
        self._set_padding([self.padding[row] for row in rows])

    def _set_padding(self, padding: list[int]) -> None:
        """Hidden columns at the left of each row: on the host, and uploaded once, int64 [R]."""
        self.padding = padding
        self._padding_R = self._upload(padding)

    def _upload(self, counts: Sequence[int]) -> Tensor:
        return torch.tensor(counts, dtype=torch.int64, device=self.target.device)

    def _edit_cache(self, edit: Callable[[Tensor], Tensor]) -> None:
        """Replace keys and values [R, heads, columns, head dim] of every layer."""
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.keys, layer.values = edit(layer.keys), edit(layer.values)

    def _forward(self, token_ids: Tensor, *, logits_to_keep: int) -> TargetOutput:
        target, appended = self.target, token_ids.shape[1]
        with library_errors(_cannot_run), target.tap(self.layer_ids) as recorded:
            output = target.model(input_ids=token_ids, **self._arguments(token_ids, logits_to_keep))
        self.columns, self.appended = self.columns + appended, appended
        logits = output.logits[:, -logits_to_keep:].to(target.device)
        tapped = [recorded[layer_id].to(target.device) for layer_id in self.layer_ids]
        return TargetOutput(logits, torch.cat(tapped, -1) if tapped else logits[..., :0])

    def _arguments(self, token_ids: Tensor, logits_to_keep: int) -> dict[str, Any]:
        """Which of mask, positions, cache and number of logits this model's forward takes."""
        accepted = self.target.forward_arguments
        end, device = self.columns + token_ids.shape[1], token_ids.device
        padding = self._padding_R[:, None]
        positions = torch.arange(self.columns, end, device=device) - padding
        mask = (torch.arange(end, device=device) >= padding).long() if any(self.padding) else None
        arguments = {
            "attention_mask": mask,
            "position_ids": positions.clamp(min=0),
            "logits_to_keep": logits_to_keep,
            # transformers 5.24 renamed the argument.
            "cache" if "cache" in accepted else "past_key_values": self.cache,
            "use_cache": True,
        }
        return {name: value for name, value in arguments.items() if name in accepted}


def move_right(x: Tensor, columns_R: Tensor, *, dim: int) -> Tensor:
    """Each row of ``x`` [R, ...] moved by its own number of columns along ``dim``.

    Negative numbers move left. Columns that nothing moves into hold copies of others.
    """
    size = x.shape[dim]
    source = torch.arange(size, device=x.device) - columns_R[:, None]
    shape = [len(x), *(size if axis == dim else 1 for axis in range(1, x.dim()))]
    return torch.take_along_dim(x, source.clamp(0, size - 1).view(shape), dim)


def find_decoder_layers(model: Any) -> Sequence[nn.Module]:
    """The decoder layers of the text model, in order.

    Raises ``DialectError`` (``target-unsupported``) for a model without such a list.
    """
    decoder = model.get_decoder()
    for owner in (decoder, getattr(decoder, "model", None), model.base_model):
        for name in _LAYER_LISTS:
            layers = getattr(owner, name, None)
            if isinstance(layers, nn.ModuleList):
                return list(layers)
    raise DialectError(
        Finding(
            code="target-unsupported",
            message="no list of decoder layers was found, so no hidden states can be tapped",
            expected=f"a module list named {', '.join(_LAYER_LISTS)}",
            found=type(model).__name__,
        )
    )


def _stop_token_ids(model: Any) -> frozenset[int]:
    ids = getattr(model.generation_config, "eos_token_id", None)
    listed = [] if ids is None else ids if isinstance(ids, list | tuple | set) else [ids]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
        raise CheckpointError(
            Finding(
                code="target-unreadable",
                message="the end-of-sequence ids of the target are not token ids",
                key="eos_token_id",
                expected="a number, or a list of numbers",
                found=repr(ids)[:120],
                hint="correct generation_config.json or config.json of the target",
            )
        )
    return frozenset(listed)


def _cannot_run(description: str, hint: str | None) -> CheckpointError:
    return CheckpointError(
        Finding(
            code="target-not-runnable",
            message=f"the target was loaded but cannot be run: {description}",
            hint=hint
            or "compare its config.json with the published one; a model of transformers "
            "that generates text by itself will run here too",
        )
    )


def _require_rewindable(model: Any, text_config: Any) -> None:
    """Rejected tokens must be forgotten, which a recurrent state cannot do."""
    kinds = set(getattr(text_config, "layer_types", None) or ()) - _REWINDABLE_LAYERS
    if kinds or getattr(model, "_is_stateful", False):
        raise DialectError(
            Finding(
                code="target-not-rewindable",
                message="the target keeps a recurrent state, which cannot forget rejected tokens",
                key="layer_types",
                expected=", ".join(sorted(_REWINDABLE_LAYERS)),
                found=", ".join(sorted(kinds)) or type(model).__name__,
                hint="verify such a draft in the serving engine",
            )
        )
