"""What users type for an option, and the value that it becomes."""

from __future__ import annotations

import pytest

from dspark_convert.cli.options import (
    name_engines,
    parse_fractions,
    parse_ids,
    parse_size,
    parse_stop_token_ids,
    stated,
)
from dspark_convert.engines import written_for
from dspark_convert.errors import UsageError


def test_sizes() -> None:
    wanted = {
        "500": 500,
        "2kB": 2000,
        "2KiB": 2048,
        "1.5GB": 1_500_000_000,
        "2g": 2 * 10**9,
        "1TiB": 2**40,
        "7 MB": 7_000_000,
    }
    assert {text: parse_size(text) for text in wanted} == wanted
    assert parse_size(None) is None
    for text in ("", "GB", "-1", "1e9", "1XB", "2iB"):
        with pytest.raises(UsageError, match="size-invalid"):
            parse_size(text)
    assert parse_ids("-1, 2,3,", "--layers") == (-1, 2, 3)


def test_ids() -> None:
    assert parse_ids("-1, 2,3,", "--layers") == (-1, 2, 3)
    with pytest.raises(UsageError, match="--layers") as caught:
        parse_ids("1,x", "--layers")
    assert caught.value.code == "ids-invalid"


def test_no_stop_tokens_are_not_those_of_the_target() -> None:
    assert parse_stop_token_ids(None) is None
    assert parse_stop_token_ids("") == frozenset()
    assert parse_stop_token_ids("2,1,2") == frozenset({1, 2})
    with pytest.raises(UsageError, match="stop-token-ids-invalid"):
        parse_stop_token_ids("one")


def test_fractions() -> None:
    assert parse_fractions(None) == ()
    assert parse_fractions("0,0.5,1") == (0.0, 0.5, 1.0)
    for text in ("", "x", "0.5,1.5", "-0.1", "nan"):
        with pytest.raises(UsageError, match="min-acceptance-invalid"):
            parse_fractions(text)


def test_an_option_is_stated_even_if_its_value_is_0_or_empty() -> None:
    assert stated(top_k=None, temperature=0.0, stop_token_ids="") == {
        "temperature",
        "stop_token_ids",
    }


def test_only_a_text_that_names_engines_is_filled_in() -> None:
    assert name_engines("{engine}") == "{engine}"
    assert name_engines("<{engines}>") == f"<{'|'.join(written_for())}>"
