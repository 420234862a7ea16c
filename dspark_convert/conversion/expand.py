"""``--expand-vocab``: a reduced draft as a full-vocabulary one that proposes the same tokens.

For engines without a vocabulary table. D draft, V target vocabulary, r Markov rank, H hidden size:

    lm_head     [D, H] -> [V, H]           rows go to their target ids, the others are zeros
    markov_w1   [V, r] -> [V, r + 1]       the new column is 1
    markov_w2   [D, r] -> [V, r + 1]       the new column is 0 for tokens of the draft vocabulary,
                                           ABSENT for all others: their only logit
    confidence  [1, H + r] -> [1, H + r + 1]                  a zero column
    gated       a zero row and a zero column: the gate of the new column is 1/2
    rnn         zero rows and columns inside each third; the new output bias makes tanh 1

A draft without a Markov head gets one of rank 1, which its confidence head does not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dspark_convert.checkpoint.folder import StoredTensor
from dspark_convert.checkpoint.names import CONFIG_FILE
from dspark_convert.conversion.assembled import Assembled, Index, raw_values
from dspark_convert.conversion.keys import ConvertedKeys
from dspark_convert.conversion.weights import Piece
from dspark_convert.errors import DraftError, Finding
from dspark_convert.formats.read import DraftSource
from dspark_convert.formats.tensors import (
    CONFIDENCE_WEIGHT,
    LM_HEAD,
    MARKOV_W1,
    MARKOV_W2,
    VOCABULARY_TABLE,
)
from dspark_convert.schemas.draft import DraftConfig

ABSENT = -30000.0
"""The logit of a token outside the draft vocabulary: no softmax gives it any mass, and float16
can hold it, half of it, and its sum with any other logit."""

SATURATED = 30.0
"""tanh of it is 1 in every dtype."""

_REASON = "--expand-vocab"
_CHANGED_KEYS = ("draft_vocab_size", "markov_rank", "markov_head_type")


def expanded_config(config: DraftConfig) -> DraftConfig:
    """The config of the expanded draft.

    Raises:
        DraftError: ``vocabulary-not-reduced``.
    """
    if not config.reduced_vocabulary:
        raise DraftError(
            Finding(
                code="vocabulary-not-reduced",
                message="there is nothing to expand: the draft vocabulary is not smaller than the "
                "target's",
                file=CONFIG_FILE,
                key="draft_vocab_size",
                expected=f"less than {config.vocab_size}",
                found=str(config.draft_vocab_size),
                hint="omit --expand-vocab",
            )
        )
    return config.model_copy(
        update={
            "draft_vocab_size": config.vocab_size,
            "markov_rank": config.markov_rank + 1,
            "markov_head_type": config.markov_head_type if config.markov_rank else "vanilla",
        }
    )


def expand_pieces(source: DraftSource, pieces: list[Piece]) -> list[Piece]:
    """The tensors of the expanded draft; the vocabulary table is left out."""
    shapes = _Shapes(source)
    expanded = [
        _expand(piece, shapes.makers[piece.name]) if piece.name in shapes.makers else piece
        for piece in pieces
        if piece.name != VOCABULARY_TABLE
    ]
    if source.config.markov_rank == 0:
        head = next(piece for piece in pieces if piece.name == LM_HEAD)
        expanded += [_added(name, make(head.dtype), head) for name, make in shapes.rank_one()]
    return expanded


def explain_keys(keys: ConvertedKeys) -> None:
    """Explain, in the account of keys, why these differ from the source."""
    keys.steps = [
        step.model_copy(update={"reason": f"changed by {_REASON}"})
        if (step.source or step.names[0]).rpartition(".")[2] in _CHANGED_KEYS
        else step
        for step in keys.steps
    ]


Maker = Callable[[StoredTensor], Assembled]


@dataclass(frozen=True)
class _Shapes:
    """How each tensor of a draft is expanded."""

    source: DraftSource

    @property
    def draft_rows(self) -> Index:
        """The draft id of every target id, int64 [V]; -1: outside the draft vocabulary."""
        table = self.source.table
        assert table is not None, "a reduced vocabulary was read with its table"
        rows = np.full(self.source.config.vocab_size, -1, dtype=np.int64)
        rows[table.target_ids] = np.arange(len(table.offsets), dtype=np.int64)
        return rows

    @property
    def makers(self) -> dict[str, Maker]:
        """By canonical name; tensors that are not named stay as they are."""
        config = self.source.config
        hidden, rank = config.hidden_size, config.markov_rank
        makers: dict[str, Maker] = {
            LM_HEAD: lambda t: _matrix(t, self.draft_rows, _plain(hidden)),
        }
        if not rank:
            return makers
        tail, thirds = _inserted(rank, rank), _inserted(3 * rank, rank, 2 * rank, 3 * rank)
        states = _inserted(2 * rank + hidden, rank, 2 * rank)
        wide = _inserted(hidden + rank, hidden + rank)
        return makers | {
            MARKOV_W1: lambda t: _matrix(t, _plain(config.vocab_size), tail, present=1.0),
            MARKOV_W2: lambda t: _matrix(t, self.draft_rows, tail, absent=ABSENT),
            CONFIDENCE_WEIGHT: lambda t: _matrix(
                t, _plain(1), wide if config.confidence_head_with_markov else _plain(hidden)
            ),
            "markov_head.gate_proj.weight": lambda t: _matrix(t, tail, wide),
            "markov_head.gate_proj.bias": lambda t: _matrix(t, _plain(1), tail),
            "markov_head.joint_proj.weight": lambda t: _matrix(t, thirds, states),
            "markov_head.joint_proj.bias": lambda t: _matrix(
                t, _plain(1), thirds, present=SATURATED
            ),
        }

    def rank_one(self) -> list[tuple[str, Callable[[str], Assembled]]]:
        """A Markov head in a given dtype that does nothing but silence absent tokens."""
        known = np.full(self.source.config.vocab_size, -1, dtype=np.int64)
        new = np.array([-1], dtype=np.int64)

        def first(dtype: str) -> Assembled:
            one = raw_values([1.0], dtype)
            return Assembled(dtype, None, known, new, one, one)

        def second(dtype: str) -> Assembled:
            values = raw_values([0.0], dtype), raw_values([ABSENT], dtype)
            return Assembled(dtype, None, self.draft_rows, new, *values)

        return [(MARKOV_W1, first), (MARKOV_W2, second)]


def _plain(count: int) -> Index:
    return np.arange(count, dtype=np.int64)


def _inserted(count: int, *places: int) -> Index:
    """0 .. count - 1 with a -1 before each of ``places``."""
    return np.insert(_plain(count), places, -1)


def _matrix(
    stored: StoredTensor, rows: Index, columns: Index, *, present: float = 0, absent: float = 0
) -> Assembled:
    """A stored matrix with new rows and columns; ``present`` and ``absent`` fill the last column.

    Every other new column, and every other column of a new row, is zero.
    """
    first = np.zeros(len(columns), dtype="<f4")
    second = first.copy()
    first[-1], second[-1] = present, absent
    dtype = stored.dtype
    return Assembled(
        dtype, stored, rows, columns, raw_values(first, dtype), raw_values(second, dtype)
    )


def _expand(piece: Piece, make: Maker) -> Piece:
    assert isinstance(piece.content, StoredTensor), "only stored tensors are expanded"
    content = make(piece.content)
    shape = (len(content.rows), len(content.columns))[2 - len(piece.shape) :]
    if shape == piece.shape:
        return piece
    return replace(
        piece, shape=shape, content=content, action="transformed", reason=_reason(piece.name)
    )


def _added(name: str, content: Assembled, beside: Piece) -> Piece:
    return Piece(
        name=name,
        dtype=content.dtype,
        shape=(len(content.rows), len(content.columns)),
        content=content,
        action="added",
        reason=f"{_REASON}: a head of rank 1 that silences absent tokens",
        source=None,
        source_file=beside.source_file,
    )


def _reason(name: str) -> str:
    if name == LM_HEAD:
        return f"{_REASON}: rows at their target ids, zeros elsewhere"
    if name == MARKOV_W1:
        return f"{_REASON}: a new column of ones"
    if name == MARKOV_W2:
        return f"{_REASON}: rows at their target ids, a new column that silences absent tokens"
    return f"{_REASON}: room for the new column of the Markov head"
