"""Keys that some reader takes for mathematics: implemented, harmless, refused, or left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_convert.conversion.inspection import check_draft, inspect_draft
from dspark_convert.conversion.plan import plan_to_dense, plan_to_speculators
from dspark_convert.conversion.run import run_conversion
from dspark_convert.engines import ENGINES
from dspark_convert.errors import DraftError, Findings, UsageError
from dspark_convert.formats.arithmetic import ARITHMETIC, INHERITED, ArithmeticKey
from dspark_convert.formats.decoders import DEFAULT_DECODER
from dspark_convert.formats.detect import detect
from dspark_convert.formats.dialects import DIALECTS
from dspark_convert.formats.overrides import parse_settings
from dspark_convert.formats.validate_arithmetic import not_understood, validate_arithmetic
from fixtures.broken.drafts import read_draft, write_draft

from .helpers import DENSE, REDUCED, SLIDING, config_of, errors, parse, parsed

HEAD_DIM = 24
"""Of the golden drafts used here."""
PLACES = {
    "top level": (DENSE, ()),
    "dflash_config": (DENSE, ("dflash_config",)),
    "dspark_config": (DENSE, ("dspark_config",)),
    "decoder": (REDUCED, ("transformer_layer_config",)),
    "beside the decoder": (REDUCED, ()),
}
ROPE_PLACES = {
    "dense": (DENSE, ("rope_parameters",)),
    "older dense": (DENSE, ("rope_scaling",)),
    "speculators": (REDUCED, ("transformer_layer_config", "rope_parameters")),
}
OTHER_VALUES: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "qk_norm_type": "per_layer",
    "mrope_section": [11, 11, 10],
    "no_rope_layers": [1, 0],
    "confidence_temperatures": [1.0, 2.0],
}
NAMES = [(row, name) for row in ARITHMETIC for name in row.names]


def other_value(row: ArithmeticKey, name: str) -> Any:
    """A value with which the key computes something else."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    flags = [value for value in row.harmless if isinstance(value, bool)]
    return not flags[0] if flags else 0.37


def with_key(base: str, path: tuple[str, ...], name: str, value: Any) -> dict[str, Any]:
    document = config_of(base)
    held = document
    for key in path:
        held = held.setdefault(key, {})
    held[name] = value
    return document


def judged(document: dict[str, Any]) -> Findings:
    findings = Findings()
    dialect = detect(document, ()).dialect
    validate_arithmetic(parsed(document), document, dialect, findings)
    return findings


def test_each_name_has_one_row_and_no_rule() -> None:
    names = [name for row in ARITHMETIC for name in row.names]
    assert len(names) == len(set(names))
    for dialect in DIALECTS.values():
        ruled = {place.path[-1] for rule in dialect.rules for place in rule.places}
        assert not ruled.intersection(names)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("row", "name"), NAMES, ids=[name for _, name in NAMES])
def test_another_value_is_named_wherever_it_stands(
    row: ArithmeticKey, name: str, place: str
) -> None:
    base, path = PLACES[place]
    value = other_value(row, name)
    (finding,) = judged(with_key(base, path, name, value))
    assert (finding.code, finding.severity) == (
        ("key-inherited", "warning") if row.inherited else ("key-unsupported", "error")
    )
    assert finding.key == ".".join((*path, name))
    assert (finding.found, finding.expected) == (repr(value), row.harmless_values)
    assert finding.hint


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for row, name in NAMES for value in (None, *row.harmless)],
)
def test_a_harmless_value_passes(name: str, value: Any, place: str) -> None:
    assert not list(judged(with_key(*PLACES[place], name, value)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_dim", HEAD_DIM),
        ("rotary_dim", HEAD_DIM),
        ("query_pre_attn_scalar", HEAD_DIM),
        ("attention_scale", HEAD_DIM**-0.5),
        ("attention_multiplier", 0.204124145),
        ("hidden_activation", "silu"),
    ],
)
def test_a_value_that_says_what_the_draft_does_anyway_passes(name: str, value: Any) -> None:
    assert parsed(config_of(DENSE)).head_dim == HEAD_DIM
    assert not list(judged(with_key(DENSE, (), name, value)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("is_neox_style", False),
        ("is_neox_style", 1),
        ("rope_is_neox_style", False),
        ("rope_dim", 16),
        ("attention_sink_bias", True),
        ("attention_value_scale", True),
        ("enable_qwen35_gated_q_proj", True),
        ("log_snr_conditioning", True),
        ("logit_scale", 0.5),
        ("final_logit_softcapping", 30.0),
        ("use_gemma_norm", True),
        ("use_aux_hidden_state", False),
        ("dspark_draft_topk", 20),
    ],
)
def test_the_keys_of_today_s_engines_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    draft = read_draft(DENSE)
    draft.config[name] = value
    write_draft(draft, tmp_path / "draft")
    with pytest.raises(DraftError) as caught:
        plan_to_dense(tmp_path / "draft")
    (finding,) = caught.value.findings
    assert (finding.code, finding.key, finding.found) == ("key-unsupported", name, repr(value))


@pytest.mark.parametrize("value", [10**400, -(10**400), [], {"a": 1}, "24", True])
@pytest.mark.parametrize("name", ["rope_dim", "attention_scale", "hidden_activation"])
def test_odd_values_are_refused_as_well(name: str, value: Any) -> None:
    assert errors(judged(with_key(DENSE, (), name, value))) == ["key-unsupported"]


def test_a_body_that_implements_a_key_is_not_asked_about_it() -> None:
    document = {**config_of(DENSE), "final_logit_softcapping": 30.0}
    dialect = detect(document, ()).dialect
    body = replace(DEFAULT_DECODER, understood=frozenset({"final_logit_softcapping"}))
    findings = Findings()
    validate_arithmetic(parsed(document), document, replace(dialect, body=body), findings)
    assert not list(findings)


# Keys of the target -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ROPE_PLACES)
@pytest.mark.parametrize("name", ["partial_rotary_factor", "mrope_section"])
def test_keys_of_the_target_inside_rope_are_not_obeyed(name: str, place: str) -> None:
    base, path = ROPE_PLACES[place]
    document = with_key(base, path, name, OTHER_VALUES.get(name, 0.25))
    assert parsed(document).rope_parameters == parsed(config_of(base)).rope_parameters
    (finding,) = judged(document)
    assert (finding.code, finding.key) == ("key-inherited", ".".join((*path, name)))


def partial(folder: Path, base: str = DENSE, **rope: Any) -> Path:
    """A draft that inherited the partial rotation of its target, in both spellings."""
    draft = read_draft(base)
    body = draft.config.get("transformer_layer_config", draft.config)
    body["partial_rotary_factor"] = 0.25
    body["rope_parameters"] |= {"partial_rotary_factor": 0.25, **rope}
    write_draft(draft, folder)
    return folder


SCALED: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
}


def keys_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys_of(item)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_a_partial_rotation_is_left_out_and_said(kind: str, engine: str, tmp_path: Path) -> None:
    source = partial(tmp_path / "draft", **SCALED[kind])
    planned = plan_to_dense(source, written_for=engine)
    run_conversion(planned, tmp_path / "dense")
    written = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert not INHERITED.intersection(keys_of(written))
    assert written["rope_parameters"]["rope_type"] == kind
    steps = {step.source: (step.action, step.reason) for step in planned.plan.keys}
    action, reason = steps["partial_rotary_factor"]
    assert (action, "training did not obey" in reason) == ("dropped", True)
    action, reason = steps["rope_parameters"]
    assert (action, "without partial_rotary_factor" in reason) == ("transformed", True)
    found = [finding for finding in planned.plan.findings if finding.code == "key-inherited"]
    assert [finding.key for finding in found] == [
        "partial_rotary_factor",
        "rope_parameters.partial_rotary_factor",
    ]


def test_it_does_not_come_back_with_the_way_back(tmp_path: Path) -> None:
    source = partial(tmp_path / "draft", base=REDUCED)
    run_conversion(plan_to_dense(source), tmp_path / "dense")
    run_conversion(plan_to_speculators(tmp_path / "dense"), tmp_path / "back")
    for name in ("dense", "back"):
        written = json.loads((tmp_path / name / "config.json").read_text())
        assert not INHERITED.intersection(keys_of(written))


def test_vllm_obeys_it_silently(tmp_path: Path) -> None:
    source = partial(tmp_path / "draft")
    vllm = ENGINES["vllm"].name
    notes = [note for note in inspect_draft(source).engines if note.engine == vllm]
    assert [(note.verdict, note.code) for note in notes] == [("silent", "rotation-misread")]
    run_conversion(plan_to_dense(source), tmp_path / "dense")
    notes = [note for note in inspect_draft(tmp_path / "dense").engines if note.engine == vllm]
    assert [note.verdict for note in notes] == ["loads"]


def test_a_partial_rotation_cannot_be_set() -> None:
    with pytest.raises(UsageError, match="partial_rotary_factor, which is not implemented"):
        parse_settings(['rope_scaling={"rope_type": "yarn", "partial_rotary_factor": 0.5}'])
    assert parse_settings(['rope_scaling={"partial_rotary_factor": 1.0}'])


# Other spellings of what is implemented ---------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["is_causal", "causal", "dflash_query_causal"])
def test_every_spelling_of_causality_is_obeyed(name: str, place: str) -> None:
    base, path = PLACES[place]
    for value in (True, False):
        document = with_key(SLIDING if base == REDUCED else base, path, name, value)
        document.pop("sliding_window_non_causal", None)
        result, findings = parse(document)
        assert result is not None, list(findings)
        slides = result.config.slides
        assert result.config.sliding_window_non_causal is (slides and not value)


@pytest.mark.parametrize("path", [(), ("dflash_config",), ("dspark_config",)])
def test_the_other_name_of_the_confidence_head_is_obeyed(path: tuple[str, ...]) -> None:
    document = with_key(DENSE, path, "use_confidence_head", False)
    del document["enable_confidence_head"]
    assert parsed(document).enable_confidence_head is False
    document["enable_confidence_head"] = True
    assert errors(parse(document)[1]) == ["key-conflict"]


@pytest.mark.parametrize("path", [(), ("dflash_config",), ("dspark_config",)])
def test_use_swa_lets_every_layer_slide(path: tuple[str, ...]) -> None:
    document = with_key(DENSE, path, "use_swa", True)
    document = {key: value for key, value in document.items() if key != "layer_types"}
    document["sliding_window"] = None
    assert errors(parse(document)[1]) == ["sliding-window-missing"]
    held = document[path[0]] if path else document
    held["swa_window_size"] = 8
    config = parsed(document)
    assert config.layer_types == ("sliding_attention",) * 2
    assert (config.sliding_window, config.sliding_window_non_causal) == (8, True)
    document["is_causal"] = True
    assert parsed(document).sliding_window_non_causal is False
    held["use_swa"] = False
    assert parsed(document).layer_types == ("full_attention",) * 2


def test_use_swa_and_layer_types_may_not_contradict_each_other() -> None:
    document = with_key(DENSE, ("dflash_config",), "use_swa", True)
    document["sliding_window"] = 8
    document["layer_types"] = ["full_attention", "full_attention"]
    assert errors(parse(document)[1]) == ["key-conflict"]
    document["layer_types"] = ["full_attention", "sliding_attention"]
    assert parsed(document).layer_types == ("full_attention", "sliding_attention")


def test_use_swa_becomes_layer_types(tmp_path: Path) -> None:
    draft = read_draft(DENSE)
    del draft.config["layer_types"]
    draft.config["dflash_config"] = {"use_swa": True, "swa_window_size": 8, "causal": False}
    write_draft(draft, tmp_path / "draft")
    notes = inspect_draft(tmp_path / "draft").engines
    assert ("SGLang", "window-ignored") in {(note.engine, note.code) for note in notes}
    assert {"window-unread", "causality-misread"}.isdisjoint(
        note.code for note in notes if note.engine in ("vLLM", "SGLang")
    )
    planned = plan_to_dense(tmp_path / "draft", written_for="vllm")
    steps = {step.source: (step.action, step.names) for step in planned.plan.keys}
    assert steps["dflash_config.use_swa"] == ("transformed", ("layer_types",))
    run_conversion(planned, tmp_path / "dense")
    written = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert written["layer_types"] == ["sliding_attention"] * 2
    assert (written["sliding_window"], written["use_sliding_window"]) == (8, True)
    assert (written["is_causal"], "use_swa" in written["dflash_config"]) == (False, False)


# Keys that nobody knows -------------------------------------------------------------------------


@pytest.mark.parametrize("place", [*PLACES, *ROPE_PLACES])
def test_an_unknown_key_that_looks_mathematical_is_listed(place: str) -> None:
    base, path = (PLACES | ROPE_PLACES)[place]
    for name in ("value_scale_v2", "ropeTwist", "new_softcap", "gate_kind", "post_norm"):
        document = with_key(base, path, name, 2)
        dialect = detect(document, ()).dialect
        assert not_understood(document, dialect) == (".".join((*path, name)),)


@pytest.mark.parametrize("base", [DENSE, REDUCED, SLIDING])
@pytest.mark.parametrize("name", ["note", "future_key", "attn_implementation", "num_anchors_seen"])
def test_other_keys_are_not_listed(base: str, name: str) -> None:
    document = {**config_of(base), name: 2}
    assert not_understood(document, detect(document, ()).dialect) == ()


def test_inspect_lists_them(tmp_path: Path) -> None:
    draft = read_draft(DENSE)
    draft.config["dflash_config"] = {"future_scale": 2.0}
    write_draft(draft, tmp_path / "draft")
    assert inspect_draft(tmp_path / "draft").not_understood == ("dflash_config.future_scale",)
    assert check_draft(tmp_path / "draft").verdict == "pass"
