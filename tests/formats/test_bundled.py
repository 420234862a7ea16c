"""Bundled drafts: every name, shape and scale, and every way to get them wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_convert.checkpoint.folder import open_checkpoint
from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import DialectError, Findings
from dspark_convert.formats.bundled import read_bundled
from fixtures.deepseek_v4 import CONFIG, Tensors, target, write_target

NORM = "mtp.1.attn_norm.weight"
EXPERT = "mtp.0.ffn.experts.2.w1"
FULL = target()


def without(*names: str) -> Tensors:
    return {name: kind for name, kind in FULL.items() if name not in names}


def errors(folder: Path) -> list[tuple[str, str | None]]:
    report = check_draft(folder)
    return [(f.code, f.tensor or f.key) for f in report.findings if f.severity == "error"]


def test_toy_draft_is_described_and_passes(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", FULL)
    assert check_draft(folder).verdict == "pass"
    inspection = inspect_draft(folder)
    assert inspection.dialect == "deepseek-v4"
    draft = inspection.bundled
    assert draft is not None
    assert (draft.generation, draft.stages, draft.block_size) == ("v4", 3, 5)
    assert (draft.markov_rank, draft.confidence_head, draft.routed_experts) == (16, True, 3)
    assert draft.tensors == len(FULL) - 2
    assert set(draft.dtypes) == {"F8_E4M3", "F8_E8M0", "I8", "BF16", "F32"}
    codes = {finding.code for finding in inspection.findings}
    assert codes == {"stage-count-from-tensors", "bundled-draft"}


def test_conversion_refuses_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(DialectError) as caught:
        plan_to_dense(write_target(tmp_path / "target", FULL))
    assert caught.value.code == "unsupported-dialect"
    assert "deepseek-v4" in str(caught.value)
    assert "nothing is renamed" in str(caught.value.findings[0].hint)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (without(NORM), [("tensor-missing", NORM)]),
        (without(f"{EXPERT}.scale"), [("scale-missing", f"{EXPERT}.weight")]),
        (
            without(f"{EXPERT}.weight"),
            [("tensor-missing", f"{EXPERT}.weight"), ("scale-stray", f"{EXPERT}.scale")],
        ),
        (FULL | {NORM: ("BF16", (255,))}, [("tensor-shape", NORM)]),
        (FULL | {NORM: ("F8_E4M3", (256,))}, [("tensor-dtype", NORM)]),
        (FULL | {f"{EXPERT}.weight": ("I8", (64, 256))}, [("tensor-shape", f"{EXPERT}.weight")]),
        (FULL | {f"{EXPERT}.weight": ("I32", (64, 128))}, [("tensor-dtype", f"{EXPERT}.weight")]),
        (FULL | {f"{EXPERT}.scale": ("F8_E8M0", (64, 4))}, [("scale-shape", f"{EXPERT}.scale")]),
        (FULL | {f"{EXPERT}.scale": ("F16", (64, 8))}, [("scale-shape", f"{EXPERT}.scale")]),
        (FULL | {f"{EXPERT}.weight": ("BF16", (64, 256))}, [("scale-stray", f"{EXPERT}.scale")]),
        (
            FULL | {"mtp.0.confidence_head.proj.bias": ("BF16", (1,))},
            [("tensor-unknown", "mtp.0.confidence_head.proj.bias")],
        ),
        (
            {n: k for n, k in FULL.items() if not n.startswith("mtp.1.")},
            [("stages-missing", None)],
        ),
    ],
)
def test_fault_in_the_tensors_has_its_own_answer(
    tensors: Tensors, expected: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    assert errors(write_target(tmp_path / "target", tensors)) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"hc_mult": None}, ("key-missing", "hc_mult")),
        ({"hc_mult": "4"}, ("config-invalid", "hc_mult")),
        ({"n_routed_experts": 10**9}, ("config-invalid", "n_routed_experts")),
        ({"dspark_noise_token_id": 500}, ("mask-token-out-of-range", "dspark_noise_token_id")),
        ({"dspark_target_layer_ids": [5, 3, 7]}, ("layer-ids-invalid", "dspark_target_layer_ids")),
        ({"dspark_target_layer_ids": [3, 5, 8]}, ("layer-ids-invalid", "dspark_target_layer_ids")),
    ],
)
def test_fault_in_the_config_has_its_own_answer(
    keys: dict[str, Any], expected: tuple[str, str], tmp_path: Path
) -> None:
    config = {key: value for key, value in {**CONFIG, **keys}.items() if value is not None}
    assert errors(write_target(tmp_path / "target", FULL, config)) == [expected]


def test_stages_are_counted_in_the_tensors_and_engines_that_count_otherwise_are_named(
    tmp_path: Path,
) -> None:
    config = {**CONFIG, "n_mtp_layers": 3, "num_nextn_predict_layers": 2}
    report = check_draft(write_target(tmp_path / "target", target(2), config))
    assert report.verdict == "pass"
    said = {f.message for f in report.findings if f.code == "stage-count-mismatch"}
    assert said == {
        "vLLM looks for 3 stages, 2 are stored",
        "SGLang looks for 3 stages, 2 are stored",
    }


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_dequantised_weights_are_as_good(dtype: str, tmp_path: Path) -> None:
    shapes = {"I8": lambda rows, columns: (rows, columns * 2)}
    plain: Tensors = {}
    for name, (stored, shape) in FULL.items():
        if not name.endswith(".scale"):
            quantised = stored in ("I8", "F8_E4M3")
            plain[name] = (
                (dtype, shapes.get(stored, lambda *s: s)(*shape)) if quantised else (stored, shape)
            )
    assert errors(write_target(tmp_path / "target", plain)) == []


def test_v41_has_other_names_for_its_heads_and_its_own_experts(tmp_path: Path) -> None:
    names = {"markov_w1": "embed", "markov_w2": "head"}
    tensors: Tensors = {}
    for name, kind in FULL.items():
        if ".hc_head_" in name:
            continue
        part = name.split(".")[3] if "markov_head" in name else ""
        tensors[name.replace(part, names[part]) if part else name] = kind
    config = {**CONFIG, "n_routed_experts": 99, "dspark_n_routed_experts": 3}
    config["dspark_target_layer_ids"] = [4, 6, 8]
    inspection = inspect_draft(write_target(tmp_path / "target", tensors, config))
    assert not [f for f in inspection.findings if f.severity == "error"]
    assert inspection.bundled is not None
    assert inspection.bundled.generation == "v4.1"


def test_a_fault_of_every_expert_is_not_told_a_thousand_times(tmp_path: Path) -> None:
    config = {**CONFIG, "n_routed_experts": 300}
    checkpoint = open_checkpoint(write_target(tmp_path / "target", FULL, config))
    findings = Findings()
    read_bundled(checkpoint.config, checkpoint.tensors, findings)
    missing = [f for f in findings.of("error") if f.code == "tensor-missing"]
    assert len(missing) == 20
    assert any("2653 more" in f.message for f in findings.of("note"))
