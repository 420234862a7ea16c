"""The header of a trace: what a recorded run of a target model was, and which tensors hold it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from dspark_convert.schemas.base import FloatName, OwnDocument
from dspark_convert.schemas.draft import MAX_LAYERS
from dspark_convert.schemas.identity import WeightsIdentity

MAX_SEQUENCES = 50_000
"""The most texts in one file: with more, no safetensors loader would read its header."""

TextOrigin = Literal["target", "given"]
LayerId = Annotated[int, Field(ge=-1, lt=MAX_LAYERS)]


class TraceTarget(OwnDocument):
    """The model that was run."""

    name: str
    config_sha256: str = Field(description="of the bytes of config.json")
    weights: WeightsIdentity | None = Field(
        default=None, description="null: recorded by a version before 0.2"
    )
    revision: str | None = Field(description="commit of the Hub cache folder; null: not known")
    tokenizer_sha256: str | None = Field(
        description="of the bytes of tokenizer.json; null: there is none"
    )
    hidden_size: PositiveInt
    vocab_size: PositiveInt = Field(description="rows of the output head")
    num_hidden_layers: PositiveInt
    dtype: str = Field(description="that the target ran in")


class TraceSampling(OwnDocument):
    """How the text was drawn; 0 is greedy."""

    temperature: float = Field(ge=0, allow_inf_nan=False)
    top_k: PositiveInt | None
    top_p: float | None = Field(gt=0, le=1)


class TraceSequenceEntry(OwnDocument):
    """One text: ``num_tokens`` tokens, of which the first ``first_generated`` are the prompt."""

    id: str
    num_tokens: PositiveInt
    first_generated: PositiveInt

    @model_validator(mode="after")
    def _has_a_text(self) -> TraceSequenceEntry:
        if self.first_generated >= self.num_tokens:
            raise ValueError("first_generated must be less than num_tokens")
        return self


class TraceHeader(OwnDocument):
    """A trace without its tensors.

    Positions count from the first prompt token. Anchors run over ``max_new_tokens`` positions from
    the first generated token on; the text goes on for ``extra_tokens`` (N + 1) more, unless a stop
    token ends it, so that the last round is complete.
    """

    schema_version: Literal[1] = 1
    tool: Literal["dspark-verify"] = "dspark-verify"
    tool_version: str
    recorded_by: Literal["dspark-verify", "vllm"]
    target: TraceTarget
    text_origin: TextOrigin = Field(
        description="target: sampled from it as `sampling` says; given: it only read the text, so "
        "nothing but agreement with its argmax may be reported"
    )
    sampling: TraceSampling
    max_new_tokens: PositiveInt
    extra_tokens: PositiveInt
    stop_token_ids: tuple[NonNegativeInt, ...]
    seed: int | None = Field(description="null: greedy, or not known")
    layer_ids: tuple[LayerId, ...] = Field(
        min_length=1, description="ascending; -1: embedding output, k: output of decoder layer k"
    )
    feature_dtype: FloatName
    has_log_probs: bool = Field(description="log p of every emitted token at `sampling`")
    has_argmax: bool = Field(description="the target's choice and the gap to its second choice")
    top_log_probs: NonNegativeInt = Field(description="K largest log p per position; 0: none")
    top_temperature: float | None = Field(
        gt=0,
        allow_inf_nan=False,
        description="temperature of the K largest: that of `sampling`, whose filters then apply "
        "too, or 1 without filters where the text is greedy; null: none",
    )
    has_embedding: bool
    has_lm_head: bool
    sequences: tuple[TraceSequenceEntry, ...] = Field(min_length=1, max_length=MAX_SEQUENCES)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TraceHeader:
        if list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise ValueError("layer_ids must ascend")
        if self.layer_ids[-1] >= self.target.num_hidden_layers:
            raise ValueError("layer_ids name a layer that the target does not have")
        if self.top_log_probs > self.target.vocab_size:
            raise ValueError("top_log_probs is larger than the vocabulary")
        if (self.top_temperature is None) != (self.top_log_probs == 0):
            raise ValueError("top_temperature belongs to top_log_probs")
        longest = self.max_new_tokens + self.extra_tokens
        if any(entry.num_tokens - entry.first_generated > longest for entry in self.sequences):
            raise ValueError("a sequence goes past max_new_tokens + extra_tokens")
        return self
