"""``dspark.toml``: what a release must reach."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dspark_convert.schemas.base import OwnDocument
from dspark_convert.schemas.report import CheckId

Limit = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
FileName = Annotated[
    str,
    Field(min_length=1, pattern=r"^[^\x00]+$", description="relative to the folder of this file"),
]


class Baseline(OwnDocument):
    """An earlier report, and how far below its accepted length a draft may fall."""

    report: FileName
    max_drop: Limit | None = Field(default=None, description="committed tokens per round")
    max_drop_standard_errors: Limit | None = Field(
        default=None, description="of the difference, paired by prompt"
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Baseline:
        if self.max_drop is None and self.max_drop_standard_errors is None:
            raise ValueError("a baseline needs max_drop, max_drop_standard_errors, or both")
        return self


class Limits(OwnDocument):
    """Thresholds of one run."""

    min_accepted_length: Limit | None = Field(
        default=None, description="committed tokens per round, the bonus token included"
    )
    min_acceptance: tuple[Fraction, ...] | None = Field(
        default=None, description="entry k-1: token k, given that the k-1 before it were accepted"
    )
    required_checks: tuple[CheckId, ...] | None = Field(
        default=None, description="these must pass; skipped counts as failed"
    )
    baseline: Baseline | None = None


class PromptSet(Limits):
    """Prompts, or a trace of them, with thresholds that replace those of the whole file."""

    prompts: FileName | None = None
    trace: FileName | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> PromptSet:
        if (self.prompts is None) == (self.trace is None):
            raise ValueError("a prompt set needs either prompts or trace")
        return self


class GateFile(Limits):
    """``dspark.toml`` in full."""

    schema_version: Literal[1] = 1
    prompt_sets: dict[str, PromptSet] = Field(default_factory=dict)
