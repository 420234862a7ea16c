"""What libraries raise for a file or an input that they cannot use, as one refusal of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dspark_convert.errors import DSparkError

_LONGEST = 400  # characters of a message; some libraries print the whole document

Refuse = Callable[[str, str | None], DSparkError]


@contextmanager
def library_errors(refuse: Refuse) -> Iterator[None]:
    """Raise ``refuse(description, hint)`` in the place of whatever a library raises in the block.

    For a bad file transformers, tokenizers and chat templates raise errors of almost any type, and
    the Rust code of tokenizers panics with one that is no ``Exception``. Errors of ours and
    interrupts pass. ``hint`` is what to do where the error itself tells, else None.
    """
    try:
        yield
    except DSparkError:
        raise
    except Exception as error:
        raise refuse(describe_error(error), _hint(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise refuse(describe_error(error), None) from error


def describe_error(error: BaseException) -> str:
    """The message of an error on one line, with its type where the message alone says little."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    if isinstance(error, (OSError, ValueError, RuntimeError, ImportError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _hint(error: Exception) -> str | None:
    if isinstance(error, ImportError):
        return "install what it needs"
    if "trust_remote_code" in str(error):
        return "read the code in its folder; if you trust it, give --trust-remote-code"
    return None
