"""Convert DSpark draft models between the formats they are published in, and verify them.

The names of ``__all__`` are the public interface; ``docs/python.md`` shows them at work. Each is
imported on first use, so ``import dspark_convert`` itself costs nothing, and conversions never load
PyTorch. Names that need PyTorch raise ``DependencyError`` without it, which names the extra to
install.
"""

from importlib import import_module

__version__ = "0.2.0"

TYPE_CHECKING = False  # as type checkers know it: `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from dspark_convert.checks.options import VerifyOptions
    from dspark_convert.checks.run import verify
    from dspark_convert.conversion import (
        check_draft,
        inspect_draft,
        plan_to_dense,
        plan_to_speculators,
        report_engines,
        run_conversion,
    )
    from dspark_convert.diagnosis.diagnose import diagnose
    from dspark_convert.diagnosis.options import DiagnoseOptions
    from dspark_convert.diagnosis.run import run_diagnosis
    from dspark_convert.diagnosis.subject import diagnosis_input_of_target, diagnosis_input_of_trace
    from dspark_convert.errors import DSparkError
    from dspark_convert.formats.overrides import Overrides
    from dspark_convert.reports.compare import DropLimits, compare_reports
    from dspark_convert.reports.gate import apply_gate, follow_gate, open_gate
    from dspark_convert.reports.html import render_html
    from dspark_convert.reports.markdown import render_markdown
    from dspark_convert.reports.read import read_report
    from dspark_convert.runtime import (
        DecodeOptions,
        SamplingOptions,
        decode,
        load_draft,
        load_target,
        propose_block,
    )
    from dspark_convert.runtime.machine import Machine
    from dspark_convert.traces.record import RecordOptions, TargetRunOptions, record
    from dspark_convert.traces.trace import open_trace

_HOMES = {
    "DSparkError": "errors",
    "DecodeOptions": "runtime",
    "DiagnoseOptions": "diagnosis.options",
    "DropLimits": "reports.compare",
    "Machine": "runtime.machine",
    "Overrides": "formats.overrides",
    "RecordOptions": "traces.record",
    "SamplingOptions": "runtime",
    "TargetRunOptions": "traces.record",
    "VerifyOptions": "checks.options",
    "apply_gate": "reports.gate",
    "check_draft": "conversion",
    "compare_reports": "reports.compare",
    "decode": "runtime",
    "diagnose": "diagnosis.diagnose",
    "diagnosis_input_of_target": "diagnosis.subject",
    "diagnosis_input_of_trace": "diagnosis.subject",
    "follow_gate": "reports.gate",
    "inspect_draft": "conversion",
    "load_draft": "runtime",
    "load_target": "runtime",
    "open_gate": "reports.gate",
    "open_trace": "traces.trace",
    "plan_to_dense": "conversion",
    "plan_to_speculators": "conversion",
    "propose_block": "runtime",
    "read_report": "reports.read",
    "record": "traces.record",
    "render_html": "reports.html",
    "render_markdown": "reports.markdown",
    "report_engines": "conversion",
    "run_conversion": "conversion",
    "run_diagnosis": "diagnosis.run",
    "verify": "checks.run",
}
_WITH_PYTORCH = {"runtime", "traces", "checks", "diagnosis"}

__all__ = [
    "DSparkError",
    "DecodeOptions",
    "DiagnoseOptions",
    "DropLimits",
    "Machine",
    "Overrides",
    "RecordOptions",
    "SamplingOptions",
    "TargetRunOptions",
    "VerifyOptions",
    "apply_gate",
    "check_draft",
    "compare_reports",
    "decode",
    "diagnose",
    "diagnosis_input_of_target",
    "diagnosis_input_of_trace",
    "follow_gate",
    "inspect_draft",
    "load_draft",
    "load_target",
    "open_gate",
    "open_trace",
    "plan_to_dense",
    "plan_to_speculators",
    "propose_block",
    "read_report",
    "record",
    "render_html",
    "render_markdown",
    "report_engines",
    "run_conversion",
    "run_diagnosis",
    "verify",
]

# If type checkers saw __getattr__, they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name on first use.

        Raises:
            AttributeError: there is no such name.
            DependencyError: it needs PyTorch or transformers, which are not installed.
        """
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if home.partition(".")[0] in _WITH_PYTORCH:
            # Says which extra to install, where the module itself would only fail to import torch.
            import_module("dspark_convert.runtime")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
