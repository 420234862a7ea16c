"""Plan a conversion from headers, then carry it out by moving bytes."""

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import Conversion, plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion

__all__ = [
    "Conversion",
    "check_draft",
    "inspect_draft",
    "plan_to_dense",
    "plan_to_speculators",
    "report_engines",
    "run_conversion",
]
