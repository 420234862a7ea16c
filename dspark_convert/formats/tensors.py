"""The tensors of a draft: canonical names, and what a loader expects of each.

``expected_tensors`` is derived from the config alone, never from the checkpoint at hand, so that
comparing the two finds what is missing, extra or misshapen.

Shapes: H hidden size, V target vocabulary, D draft vocabulary, r Markov rank, F feature columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.errors import Findings
from dspark_convert.formats.decoders import decoder_of
from dspark_convert.formats.decoders.base import INTEGERS, TensorSpec
from dspark_convert.schemas.draft import DraftConfig

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"
VOCABULARY_TABLE = "draft_id_to_target_id"
VOCABULARY_MASK = "t2d"
STORED_TABLE = "d2t"

MARKOV_W1, MARKOV_W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE_WEIGHT = "confidence_head.proj.weight"
CONFIDENCE_BIAS = "confidence_head.proj.bias"

RENAMES: tuple[tuple[str, str], ...] = (
    ("model.", ""),
    ("encoder.fc.", "fc."),
    ("encoder.output_norm_enc.", "hidden_norm."),
)
"""Prefixes that other writers use, applied in order."""

DROPPED: Mapping[str, str] = {
    VOCABULARY_MASK: "training-time mask; the offset table holds the same information",
    "mask_embedding": "left over from training; loaders look up the mask token",
    "verifier_norm.weight": "belongs to the target model",
    "verifier_lm_head.weight": "belongs to the target model",
    "rotary_emb.inv_freq": "computed from the config",
}

FUSED = ("qkv_proj", "gate_up_proj", "kv_proj")


@dataclass(frozen=True)
class NamedTensors:
    """Stored tensors under canonical names, and those that do not belong to a draft."""

    kept: Mapping[str, StoredTensor]
    dropped: Mapping[str, StoredTensor]
    mask: StoredTensor | None
    second_table: StoredTensor | None
    """The table under its other name, if a checkpoint stores both."""


def canonical_name(stored: str) -> str:
    """The canonical name of a stored tensor; ``d2t`` becomes the reference name."""
    name = stored
    for prefix, replacement in RENAMES:
        if name.startswith(prefix):
            name = replacement + name.removeprefix(prefix)
    return VOCABULARY_TABLE if name == STORED_TABLE else name


def name_tensors(stored: Iterable[StoredTensor], findings: Findings) -> NamedTensors:
    """Give stored tensors their canonical names; two with the same one are ``tensor-duplicate``."""
    kept: dict[str, StoredTensor] = {}
    dropped: dict[str, StoredTensor] = {}
    second_table: StoredTensor | None = None
    prefixed = []
    for tensor in sorted(stored, key=lambda tensor: tensor.name):
        name = canonical_name(tensor.name)
        if name not in (tensor.name, VOCABULARY_TABLE) or tensor.name.startswith("model."):
            prefixed.append(tensor.name)
        place = dropped if name in DROPPED else kept
        if name not in place:
            place[name] = tensor
        elif name == VOCABULARY_TABLE and second_table is None:
            second_table = tensor
        else:
            findings.error(
                "tensor-duplicate",
                f"two stored tensors are both {name}",
                file=tensor.file,
                tensor=tensor.name,
                found=f"{place[name].name} and {tensor.name}",
                hint="remove the one that does not belong to the draft",
            )
    if prefixed:
        findings.note(
            "prefix-normalised",
            f"{len(prefixed)} tensor names carry another writer's prefix; it is removed (vLLM "
            "refuses such names)",
            tensor=prefixed[0],
        )
    return NamedTensors(kept, dropped, dropped.get(VOCABULARY_MASK), second_table)


def expected_tensors(config: DraftConfig) -> dict[str, TensorSpec]:
    """Every tensor that a draft of this config has, by canonical name.

    ``embed_tokens.weight`` [V, H] may be absent (the target's is used); ``lm_head.weight`` [D, H]
    only when its rows are the target's, D = V.
    """
    hidden, vocab, draft_vocab = config.hidden_size, config.vocab_size, config.draft_vocab_size
    specs = {
        EMBEDDING: TensorSpec((vocab, hidden), required=False),
        LM_HEAD: TensorSpec((draft_vocab, hidden), required=draft_vocab != vocab),
    }
    specs |= decoder_of(config).tensors(config)
    specs |= _head_tensors(config)
    if config.reduced_vocabulary:
        specs[VOCABULARY_TABLE] = TensorSpec((draft_vocab,), INTEGERS)
    return specs


def verifiers_tensors(config: DraftConfig) -> tuple[str, ...]:
    """What speculators reads from the verifier: the embedding, and a head with the same rows."""
    own_head = config.draft_vocab_size != config.vocab_size
    return (EMBEDDING,) if own_head else (EMBEDDING, LM_HEAD)


def _head_tensors(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden, rank = config.hidden_size, config.markov_rank
    specs: dict[str, TensorSpec] = {}
    if rank:
        specs[MARKOV_W1] = TensorSpec((config.vocab_size, rank))
        specs[MARKOV_W2] = TensorSpec((config.draft_vocab_size, rank))
        if config.markov_head_type == "gated":
            specs["markov_head.gate_proj.weight"] = TensorSpec((rank, hidden + rank))
            specs["markov_head.gate_proj.bias"] = TensorSpec((rank,))
        elif config.markov_head_type == "rnn":
            specs["markov_head.joint_proj.weight"] = TensorSpec((3 * rank, 2 * rank + hidden))
            specs["markov_head.joint_proj.bias"] = TensorSpec((3 * rank,))
    if config.enable_confidence_head:
        columns = hidden + rank * config.confidence_head_with_markov
        specs[CONFIDENCE_WEIGHT] = TensorSpec((1, columns))
        specs[CONFIDENCE_BIAS] = TensorSpec((1,), required=False)
    return specs
