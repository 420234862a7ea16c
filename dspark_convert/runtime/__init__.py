"""The reference decoder, in PyTorch: the draft, sampling, rejection, the decode loop, the target.

Importing it without PyTorch or transformers raises ``DependencyError``, which names the extra to
install.
"""

from __future__ import annotations

from dspark_convert.errors import DependencyError, Finding

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise DependencyError(
        Finding(
            code="dependency-missing",
            message=f"the reference decoder needs {error.name}, which is not installed",
            hint='pip install "dspark-convert[verify]"',
        )
    ) from error

from dspark_convert.runtime.cache import ContextCache
from dspark_convert.runtime.causal import CausalTarget
from dspark_convert.runtime.decode import decode, decode_plain
from dspark_convert.runtime.draft import DraftModel
from dspark_convert.runtime.load import load_draft
from dspark_convert.runtime.load_target import load_target
from dspark_convert.runtime.propose import BlockProposal, propose_block
from dspark_convert.runtime.records import (
    DecodeOptions,
    DecodeResult,
    Observation,
    Observer,
    Round,
)
from dspark_convert.runtime.replay import (
    BlockScores,
    compute_text_context,
    compute_text_input,
    score_blocks,
)
from dspark_convert.runtime.sampling import SamplingOptions
from dspark_convert.runtime.target import Target, TargetOutput, TargetSession
from dspark_convert.runtime.vocabulary import DraftVocabulary, ProposalBuffer

__all__ = [
    "BlockProposal",
    "BlockScores",
    "CausalTarget",
    "ContextCache",
    "DecodeOptions",
    "DecodeResult",
    "DraftModel",
    "DraftVocabulary",
    "Observation",
    "Observer",
    "ProposalBuffer",
    "Round",
    "SamplingOptions",
    "Target",
    "TargetOutput",
    "TargetSession",
    "compute_text_context",
    "compute_text_input",
    "decode",
    "decode_plain",
    "load_draft",
    "load_target",
    "propose_block",
    "score_blocks",
]
