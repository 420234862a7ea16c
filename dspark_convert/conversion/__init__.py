"""Plan a conversion on headers, then carry it out by moving bytes."""

from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import Conversion, plan_to_dense
from dspark_convert.conversion.run import run_conversion

__all__ = ["Conversion", "check_draft", "inspect_draft", "plan_to_dense", "run_conversion"]
