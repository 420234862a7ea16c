"""The target model as a draft sees it: its text config, embedding and output head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_convert.checkpoint.folder import Checkpoint, StoredTensor, open_checkpoint
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.errors import DraftError, Finding, Findings
from dspark_convert.formats.dialects.shared import LAYER_COUNTING, PLAIN_LAYER_IDS
from dspark_convert.formats.quantisation import QUANTISED_DTYPES
from dspark_convert.formats.rules import Place, dotted
from dspark_convert.formats.tensors import EMBEDDING, LM_HEAD
from dspark_convert.schemas.draft import DraftConfig

_PREFIXES = (
    *("model.", "model.language_model.", "language_model.model.", "language_model."),
    *("backbone.", "language_model.backbone.", ""),
)
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    EMBEDDING: ("embeddings.weight", "word_embeddings.weight"),
}
"""Names of a tensor in other families: Mamba hybrids such as Nemotron, Ling."""
_QUANTISED_SUFFIXES = ("weight_packed", "qweight", "weight_scale", "weight_scale_inv", "scales")


@dataclass(frozen=True)
class TargetWeights:
    """What a draft may borrow from its target.

    ``config`` is the text model's config, even if a multimodal config nests it. ``embed_tokens``
    and ``lm_head`` are [target vocabulary rows, target hidden size]; with tied heads both are the
    same stored tensor.
    """

    checkpoint: Checkpoint
    config: Mapping[str, Any]
    embed_tokens: StoredTensor
    lm_head: StoredTensor

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.embed_tokens.shape[0]

    def supply(self, name: str) -> StoredTensor:
        """The target's tensor for a tensor that the draft lacks."""
        return {EMBEDDING: self.embed_tokens, LM_HEAD: self.lm_head}[name]


def find_target_weights(folder: Path) -> TargetWeights:
    """Open a target checkpoint and find its embedding and head; no tensor data is read.

    Raises:
        CheckpointError: the folder is not a readable checkpoint.
        DraftError: ``target-config-invalid``, ``target-tensor-missing``,
        ``target-tensor-quantised``.
    """
    checkpoint = open_checkpoint(folder)
    config = _text_config(checkpoint)
    embed_tokens = _find(checkpoint, EMBEDDING)
    lm_head = _find(checkpoint, LM_HEAD)
    if lm_head is None and config.get("tie_word_embeddings", _tied_by_wrapper(checkpoint)):
        lm_head = embed_tokens
    if embed_tokens is None or lm_head is None:
        absent = EMBEDDING if embed_tokens is None else LM_HEAD
        _refuse_packed(checkpoint, absent)
        raise DraftError(
            Finding(
                code="target-tensor-missing",
                message="the target's checkpoint does not store a tensor that the draft borrows",
                file=checkpoint.folder.name,
                tensor=absent,
                expected=", ".join(_names_of(absent)),
                hint="give the folder of the target model for which the draft was trained",
            )
        )
    for tensor in (embed_tokens, lm_head):
        if tensor.dtype in QUANTISED_DTYPES:
            raise _quantised(tensor, tensor.name)
    return TargetWeights(checkpoint, config, embed_tokens, lm_head)


def validate_pairing(
    draft: DraftConfig,
    config: Mapping[str, Any],
    target_rows: int,
    findings: Findings,
    *,
    layer_ids: Place = PLAIN_LAYER_IDS,
) -> None:
    """Check a draft against its target's text config; ``layer_ids`` is the key of its file.

    Codes: ``target-hidden-size-mismatch``, ``target-depth-mismatch``, ``layer-ids-invalid``,
    ``target-vocabulary-mismatch``.
    """
    hidden = config.get("hidden_size")
    wanted = draft.target_hidden_size or draft.hidden_size
    if hidden != wanted:
        _mismatch("target-hidden-size-mismatch", "hidden_size", wanted, hidden, findings)
    depth = config.get("num_hidden_layers")
    if not isinstance(depth, int):
        _mismatch("target-depth-mismatch", "num_hidden_layers", "a number", depth, findings)
    else:
        validate_depth(draft, depth, findings, layer_ids)
    if draft.num_target_layers not in (None, depth):
        way_out = ""
        if draft.num_target_layers == len(draft.target_layer_ids):
            way_out = f", or --set num_target_layers={depth} if it counts the captured layers"
        _mismatch(
            "target-depth-mismatch",
            "num_hidden_layers",
            draft.num_target_layers,
            depth,
            findings,
            way_out,
        )
    # Padded embeddings are common on either side; a draft that knows fewer tokens is not.
    vocab = config.get("vocab_size", target_rows)
    if isinstance(vocab, int) and draft.vocab_size < min(vocab, target_rows):
        _mismatch("target-vocabulary-mismatch", "vocab_size", draft.vocab_size, vocab, findings)


def validate_depth(draft: DraftConfig, depth: int, findings: Findings, layer_ids: Place) -> None:
    """Check that layer ids are in -1 .. depth - 1; reported in the counting of ``layer_ids``."""
    beyond = [layer_id for layer_id in draft.target_layer_ids if layer_id >= depth]
    if beyond:
        findings.error(
            "layer-ids-invalid",
            "the draft reads layers that the target does not have",
            file=CONFIG_FILE,
            key=dotted(layer_ids.path),
            expected=" .. ".join(str(bound) for bound in layer_ids.write([-1, depth - 1])),
            found=layer_ids.write(beyond),
            hint="give the target that the draft was trained for, or "
            f"--set target_layer_ids=[...] ({LAYER_COUNTING})",
        )


def _text_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    nested = checkpoint.config.get("text_config")
    config = nested if isinstance(nested, dict) else checkpoint.config
    if not isinstance(config.get("hidden_size"), int):
        raise DraftError(
            Finding(
                code="target-config-invalid",
                message="the target's config gives no hidden_size",
                file=CONFIG_FILE,
                key="hidden_size",
                hint="give the folder of a causal language model",
            )
        )
    return config


def _tied_by_wrapper(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.config.get("tie_word_embeddings", False))


def _find(checkpoint: Checkpoint, name: str) -> StoredTensor | None:
    for full in _names_of(name):
        tensor = checkpoint.tensors.get(full)
        if tensor is not None and len(tensor.shape) == 2:
            return tensor
    return None


def _names_of(name: str) -> list[str]:
    """Every name under which targets store a tensor, the commonest spelling first."""
    spellings = (name, *_OTHER_NAMES.get(name, ()))
    return [prefix + spelling for spelling in spellings for prefix in _PREFIXES]


def _refuse_packed(checkpoint: Checkpoint, absent: str) -> None:
    """Say so if a tensor is not found because it is stored under a quantiser's names."""
    for name in _names_of(absent):
        stem = name.removesuffix("weight")
        stored = [stem + suffix for suffix in _QUANTISED_SUFFIXES]
        packed = next((x for x in stored if x in checkpoint.tensors), None)
        if packed is not None:
            raise _quantised(checkpoint.tensors[packed], name)


def _quantised(tensor: StoredTensor, wanted: str) -> DraftError:
    return DraftError(
        Finding(
            code="target-tensor-quantised",
            message="the target stores a quantised tensor where the draft borrows a plain one",
            file=tensor.file,
            tensor=tensor.name,
            expected=f"{wanted} in F32, F16 or BF16",
            found=tensor.dtype,
            hint="give the unquantised target, from which this one was made",
        )
    )


def _mismatch(
    code: str, key: str, wanted: object, found: object, findings: Findings, way_out: str = ""
) -> None:
    findings.error(
        code,
        "draft and target do not fit together",
        file=CONFIG_FILE,
        key=key,
        expected=f"{wanted}, as the draft requires",
        found=f"{found} in the target",
        hint=f"give the target that the draft was trained for{way_out}",
    )
