"""Any draft, written for any engine: it keeps its meaning there, or it is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_convert.conversion.engine_report import report_engines
from dspark_convert.conversion.engines import CLAIMS, WRITTEN_FOR
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.conversion.run import run_conversion
from dspark_convert.errors import DraftError
from dspark_convert.formats.dialects import DENSE, SPECFORGE, SPECULATORS
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.read import read_draft
from dspark_convert.formats.rules import Dialect
from dspark_convert.schemas.draft import DraftConfig

from .generated import configs, store, tensors_of_config
from .helpers import tensors_of

OFFSETS = Overrides(d2t="offsets")
CODES = {claim.code for claim in CLAIMS} | {"own-head-ignored"}
BORROWED = ("embed_tokens.weight", "lm_head.weight")


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    config=configs(),
    dialect=st.sampled_from([DENSE, SPECFORGE, SPECULATORS]),
    key=st.sampled_from(sorted(WRITTEN_FOR)),
    without_borrowed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_draft_is_written_for_an_engine_as_meant_or_refused(
    config: DraftConfig, dialect: Dialect, key: str, without_borrowed: bool, seed: int
) -> None:
    tensors = tensors_of_config(config, seed)
    if without_borrowed and config.draft_vocab_size == config.vocab_size:
        tensors = {name: it for name, it in tensors.items() if name not in BORROWED}
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "source", Path(name) / "output"
        store(config, dialect, tensors, 1, source)
        try:
            conversion = plan_to_dense(source, overrides=OFFSETS, written_for=key)
        except DraftError as error:
            codes = {finding.code for finding in error.findings}
            hints = [finding.hint for finding in error.findings]
        else:
            codes, hints = set(), []
            run_conversion(conversion, output)
            check_result(config, source, output, key)
        assert codes <= CODES
        assert all(hints)


def check_result(config: DraftConfig, source: Path, output: Path, key: str) -> None:
    draft = read_draft(output, overrides=OFFSETS)
    assert draft.config == config.model_copy(update={"num_anchors": config.num_anchors or 512})
    name = WRITTEN_FOR[key].name
    reports = report_engines(output, overrides=OFFSETS).engines
    (report,) = [report for report in reports if report.engine == name]
    assert report.verdict == "loads"
    table = WRITTEN_FOR[key].spelling.names.get("draft_id_to_target_id", "draft_id_to_target_id")
    renamed = {"d2t": table, "draft_id_to_target_id": table}
    before = {renamed.get(k, k): it for k, it in tensors_of(source).items() if k != "t2d"}
    assert tensors_of(output) == before
