"""An output marked up: every token once, whatever the tokenizer does at its edges."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_convert.checks.marked_texts import MAX_ROUNDS, mark_up
from dspark_convert.runtime.records import DecodeResult, Round
from dspark_convert.schemas.report import ExampleRound

BYTES = {1: b"a", 2: b" b", 3: b"\xc3", 4: b"\xa9", 5: b"!"}


class ByteTokenizer:
    """Decodes bytes; a character may be cut between tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(BYTES[token_id] for token_id in ids).decode("utf-8", "replace")


def result(*rounds: tuple[int, tuple[int, ...]]) -> DecodeResult:
    made = tuple(
        Round(
            anchor_position=0,
            proposed_ids=ids[:accepted],
            accepted=accepted,
            committed_ids=ids,
            confidence=None,
        )
        for accepted, ids in rounds
    )
    return DecodeResult(token_ids=(1, *(i for _, ids in rounds for i in ids)), rounds=made)


def test_accepted_and_bonus_tokens_are_told_apart() -> None:
    example = mark_up("p", result((2, (2, 1, 5)), (0, (2,))), ByteTokenizer())
    assert (example.id, example.first) == ("p", "a")
    assert example.rounds == (
        ExampleRound(accepted=" ba", bonus="!"),
        ExampleRound(accepted="", bonus=" b"),
    )


def test_a_round_that_a_stop_token_ended_has_no_bonus() -> None:
    assert mark_up("p", result((1, (5,))), ByteTokenizer()).rounds[0].bonus == ""


def test_a_character_cut_between_tokens_appears_with_its_last_token() -> None:
    example = mark_up("p", result((1, (3, 4)), (0, (5,))), ByteTokenizer())
    assert example.rounds == (
        ExampleRound(accepted="", bonus="é"),
        ExampleRound(accepted="", bonus="!"),
    )


def test_ids_stand_for_text_without_a_tokenizer() -> None:
    example = mark_up("p", result((1, (7, 8))), None)
    assert (example.first, example.rounds) == (" 1", (ExampleRound(accepted=" 7", bonus=" 8"),))


def test_a_long_output_is_cut() -> None:
    assert len(mark_up("p", result(*[(0, (2,))] * 100), None).rounds) == MAX_ROUNDS
