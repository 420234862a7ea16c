"""What can be wrong, and how it is reported.

    Finding                 one fact about an input: a stable code, what, where, what to do
    Findings                collects them, so that one run reports everything it saw
    DSparkError             raised when work cannot go on; carries the findings that stopped it
     ├── CheckpointError    the files and bytes of a checkpoint
     ├── DialectError       a format that is unknown, or known and not supported
     ├── DraftError         the draft that the files describe: config, tensors, vocabulary tables
     ├── OutputError        the place that the result should go to
     ├── TraceError         a recorded target: its files, or what they are asked for
     ├── PromptError        a prompts file, or the tokenizer for it
     ├── ReportError        a file that should be a report, a diagnosis or a comparison
     ├── GateError          a thresholds file
     ├── DependencyError    an optional library that is not installed
     └── UsageError         an option whose value makes no sense (exit code 2)

Codes are kebab-case and stable: pipelines match on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about an input.

    ``file`` is a file name relative to the checkpoint, ``key`` a dotted path into a JSON document.
    ``expected`` and ``found`` are short texts; ``hint`` says what to do next.
    """

    code: str
    message: str
    severity: Severity = "error"
    file: str | None = None
    key: str | None = None
    tensor: str | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None

    @property
    def where(self) -> str:
        """File, key and tensor in one phrase; empty when none is known."""
        parts = [self.file, self.key and f"key {self.key}", self.tensor and f"tensor {self.tensor}"]
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        if self.where:
            text += f" [{self.where}]"
        if self.expected is not None or self.found is not None:
            text += f" (expected {self.expected or '-'}, found {self.found or '-'})"
        return text


class DSparkError(Exception):
    """The root of the tree: work stopped because of ``findings`` (at least one)."""

    exit_code: ClassVar[int] = 3

    def __init__(self, first: Finding, *more: Finding) -> None:
        self.findings: tuple[Finding, ...] = (first, *more)
        super().__init__("\n".join(str(finding) for finding in self.findings))

    @property
    def code(self) -> str:
        """The code of the first finding."""
        return self.findings[0].code


class CheckpointError(DSparkError):
    """The files of a checkpoint cannot be read or trusted."""


class DialectError(DSparkError):
    """The checkpoint is of a format, or a kind of draft, that is not supported."""


class DraftError(DSparkError):
    """Config, tensors or vocabulary tables are incomplete, contradictory or out of range."""


class OutputError(DSparkError):
    """The output path may not be replaced, or cannot hold the result."""


class TraceError(DSparkError):
    """A trace cannot be trusted, or does not serve what is asked of it."""


class PromptError(DSparkError):
    """A prompts file cannot be understood, or there is no tokenizer for it."""


class ReportError(DSparkError):
    """A file is not the document that was asked for."""


class GateError(DSparkError):
    """A thresholds file cannot be understood."""


class DependencyError(DSparkError):
    """An optional library is needed but not installed."""


class UsageError(DSparkError):
    """An option has a value that makes no sense."""

    exit_code: ClassVar[int] = 2


class Where(TypedDict, total=False):
    """What a `Finding` may say besides its code and message; see there."""

    file: str | None
    key: str | None
    tensor: str | None
    expected: object
    found: object
    hint: str | None


MAX_OF_A_KIND = 20
"""Findings of one code and severity that are kept; the others are counted."""


class Findings:
    """An ordered collection of findings; duplicates are kept once.

    After ``MAX_OF_A_KIND`` reports of one kind, one last finding says how many more there are, so
    that a checkpoint with thousands of faults is still answered in a page.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._findings: dict[Finding, None] = dict.fromkeys(findings)
        self._kept: Counter[tuple[str, Severity]] = Counter()
        self._more: Counter[tuple[str, Severity]] = Counter()

    def __iter__(self) -> Iterator[Finding]:
        yield from self._findings
        for (code, severity), count in self._more.items():
            yield Finding(
                code=code,
                severity=severity,
                message=f"and {count:,} more of this kind",
                hint=f"the first {MAX_OF_A_KIND} are shown; treat the others alike",
            )

    def __len__(self) -> int:
        return len(self._findings) + len(self._more)

    def add(self, *findings: Finding) -> None:
        """Append findings from elsewhere, such as those of a caught error."""
        self._findings.update(dict.fromkeys(findings))

    def error(self, code: str, message: str, **where: Unpack[Where]) -> None:
        """Add what stops the work."""
        self._report("error", code, message, where)

    def warning(self, code: str, message: str, **where: Unpack[Where]) -> None:
        """Add what the user should look at, though the work goes on."""
        self._report("warning", code, message, where)

    def note(self, code: str, message: str, **where: Unpack[Where]) -> None:
        """Add what is worth knowing and requires no action."""
        self._report("note", code, message, where)

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity, in the order they were added."""
        return tuple(finding for finding in self if finding.severity == severity)

    def raise_errors(self, error_type: type[DSparkError] = DraftError) -> None:
        """Raise ``error_type`` with every error collected so far, if there is one."""
        errors = self.of("error")
        if errors:
            raise error_type(*errors)

    def _report(self, severity: Severity, code: str, message: str, where: Where) -> None:
        texts = {name: None if value is None else str(value) for name, value in where.items()}
        finding = Finding(code=code, message=message, severity=severity, **texts)
        kind = code, severity
        if finding in self._findings:
            return
        if self._kept[kind] == MAX_OF_A_KIND:
            self._more[kind] += 1
            return
        self._kept[kind] += 1
        self._findings[finding] = None


OnFinding = Callable[[Iterable[Finding]], None]
"""Is called with notes and warnings at the time they are made, while the work goes on."""
