"""Every key of the source is in the plan once; what the result does not repeat is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_convert.conversion.plan import plan_to_dense
from dspark_convert.errors import Findings
from dspark_convert.formats.dialects import DENSE as DENSE_DIALECT
from dspark_convert.formats.overrides import Overrides
from dspark_convert.formats.parse import parse_config
from dspark_convert.schemas.draft import Layout
from dspark_convert.schemas.plan import ConversionPlan, KeyStep
from fixtures.broken.drafts import read_draft, write_draft, write_json
from fixtures.broken.edits import put

from .reference import CONFIGS

CONTAINERS = ("transformer_layer_config", "dflash_config", "dspark_config")
DENSE, REDUCED = "dense_vanilla_bf16", "spec_vanilla_reduced_anchor_bf16"
FULL, SLIDING = "spec_vanilla_full_anchor_fp32", "spec_swa_default_reduced_bf16"

# Nothing that looks like a path, which the record of the source shortens.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="/~\\:")
texts = st.text(characters, min_size=1, max_size=8)
names = texts.map(lambda text: f"x{text}")
scalars = st.none() | st.booleans() | st.integers() | texts
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(names, st.integers() | texts | st.lists(st.booleans()), max_size=4)


def flat(document: dict[str, Any]) -> list[str]:
    """Every key at top level and in the containers, as the plan names it."""
    keys = []
    for key, value in document.items():
        if key in CONTAINERS and isinstance(value, dict):
            keys += [f"{key}.{inner}" for inner in value]
        else:
            keys.append(key)
    return sorted(keys)


def planned(folder: Path, **overrides: Any) -> ConversionPlan:
    return plan_to_dense(folder, overrides=Overrides(**overrides)).plan


def step(plan: ConversionPlan, source: str) -> KeyStep:
    (found,) = [step for step in plan.keys if step.source == source]
    return found


def check_account(plan: ConversionPlan, document: dict[str, Any]) -> None:
    again = parse_config(plan.config, DENSE_DIALECT, {}, Findings())
    assert again is not None
    written = {"num_anchors": plan.draft.num_anchors or 512}
    assert again.config == plan.draft.model_copy(update=written)
    assert sorted(step.source for step in plan.keys if step.source is not None) == flat(document)
    reached = [name for step in plan.keys for name in step.names]
    for key in plan.config:
        assert any(name == key or name.startswith(f"{key}.") for name in reached), key
    added = [step.names for step in plan.keys if step.action == "added"]
    assert len(added) == len(set(added))
    for entry in plan.keys:
        if entry.action == "dropped":
            assert not entry.names
        assert entry.reason


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Golden drafts whose config may be overwritten."""
    made = {}
    for variant in CONFIGS:
        made[variant] = tmp_path_factory.mktemp("keys") / variant
        write_draft(read_draft(variant), made[variant])
    return made


@pytest.mark.parametrize("variant", CONFIGS)
def test_account_of_a_golden_draft(variant: str, folders: dict[str, Path]) -> None:
    check_account(planned(folders[variant]), read_draft(variant).config)


@settings(max_examples=150)
@given(data=st.data())
def test_account_of_unknown_keys_at_both_levels(
    folders: dict[str, Path], data: st.DataObject
) -> None:
    variant = data.draw(st.sampled_from([DENSE, REDUCED, SLIDING]))
    document = read_draft(variant).config
    top, decoder, block = data.draw(st.tuples(extras, extras, extras))
    top |= data.draw(st.dictionaries(names, values, max_size=2))
    document |= top | {"dflash_config": block}
    document.get("transformer_layer_config", document).update(decoder)
    write_json(folders[variant] / "config.json", document)
    plan = planned(folders[variant])
    check_account(plan, document)
    kept = top | decoder
    assert {key: plan.config[key] for key in kept if kept[key] is not None} == {
        key: value for key, value in kept.items() if value is not None
    }
    if block:
        assert plan.config["dflash_config"] == block
    shadowed = top.keys() & decoder.keys() if variant != DENSE else set()
    lost = {key for key in shadowed if top[key] != decoder[key]}
    assert {key: plan.source_config.get(key) for key in lost} == {key: top[key] for key in lost}


def test_shadowed_key_is_said_and_recorded(draft: Callable[..., Path]) -> None:
    plan = planned(draft(put(extra=1, transformer_layer_config__extra=2)))
    assert plan.config["extra"] == 2
    assert step(plan, "extra").action == "dropped"
    assert step(plan, "transformer_layer_config.extra").action == "moved"
    assert plan.source_config["extra"] == 1
    assert [finding.code for finding in plan.findings if finding.severity == "warning"] == [
        "key-shadowed"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dflash_config", {"target_layer_ids": [7, 8, 9]}),
        ("dflash_config", 5),
        ("aux_hidden_state_layer_ids", [7, 8, 9]),
        ("dspark_block_size", 3),
        ("block_size", 3),
        ("torch_dtype", "float16"),
    ],
)
def test_key_of_the_draft_means_nothing_inside_the_decoder(
    key: str, value: object, draft: Callable[..., Path]
) -> None:
    plain = planned(draft(put(dflash_config={"x": 1})))
    source = draft(put(dflash_config={"x": 1}, **{f"transformer_layer_config__{key}": value}))
    plan = planned(source)
    assert plan.config == plain.config
    assert plan.source_config["transformer_layer_config"][key] == value


@pytest.mark.parametrize(
    ("base", "key", "action", "names"),
    [
        (REDUCED, "auto_map", "dropped", ()),
        (REDUCED, "speculators_config", "dropped", ()),
        (REDUCED, "speculators_version", "dropped", ()),
        (REDUCED, "block_size", "copied", ("block_size",)),
        (REDUCED, "transformer_layer_config.hidden_size", "moved", ("hidden_size",)),
        (REDUCED, "transformer_layer_config.model_type", "moved", ("model_type",)),
        (REDUCED, "transformer_layer_config.use_cache", "moved", ("use_cache",)),
        (REDUCED, "architectures", "transformed", ("architectures",)),
        (
            REDUCED,
            "aux_hidden_state_layer_ids",
            "transformed",
            ("target_layer_ids", "eagle_aux_hidden_state_layer_ids"),
        ),
        (REDUCED, "draft_vocab_size", "copied", ("draft_vocab_size",)),
        (FULL, "draft_vocab_size", "dropped", ()),
        (REDUCED, "target_hidden_size", "dropped", ()),
        (REDUCED, "sliding_window_non_causal", "dropped", ()),
        (SLIDING, "sliding_window_non_causal", "copied", ("sliding_window_non_causal",)),
        (DENSE, "target_layer_ids", "copied", None),
    ],
)
def test_what_happens_to_a_key(
    base: str, key: str, action: str, names: tuple[str, ...] | None, draft: Callable[..., Path]
) -> None:
    found = step(planned(draft(base=base)), key)
    assert found.action == action
    assert names is None or found.names == names


@pytest.mark.parametrize("base", [REDUCED, DENSE])
def test_null_block_and_nulls_are_no_spelling_of_anything(
    base: str, draft: Callable[..., Path]
) -> None:
    plan = planned(draft(put(dflash_config=None, rope_scaling=None), base=base))
    assert step(plan, "dflash_config").names in ((), ("dflash_config",))
    assert step(plan, "rope_scaling").action == "dropped"


def test_window_without_meaning_is_dropped_and_recorded(draft: Callable[..., Path]) -> None:
    plan = planned(draft(put(transformer_layer_config__sliding_window=2048)))
    assert step(plan, "transformer_layer_config.sliding_window").action == "dropped"
    assert plan.source_config["transformer_layer_config"]["sliding_window"] == 2048
    assert plan.config["sliding_window"] is None


@pytest.mark.parametrize(
    ("edit", "spelling"),
    [
        (put(sliding_window_non_causal=None, is_causal=False), "is_causal"),
        (
            put(sliding_window_non_causal=None, transformer_layer_config__is_causal=False),
            "transformer_layer_config.is_causal",
        ),
        (
            put(sliding_window_non_causal=None, dflash_config__causal=False),
            "dflash_config.causal",
        ),
    ],
)
def test_causality_is_kept_in_the_spelling_that_an_engine_reads(
    edit: Any, spelling: str, draft: Callable[..., Path]
) -> None:
    plan = planned(draft(edit, base=SLIDING))
    assert plan.config["sliding_window_non_causal"] is True
    *outer, name = step(plan, spelling).names[0].split(".")
    block = plan.config[outer[0]] if outer else plan.config
    assert block[name] is False


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"mask_token_id": 5}, "mask_token_id"),
        ({"rope_theta": 5e6}, "transformer_layer_config.rope_parameters"),
        ({"hidden_act": "gelu"}, "transformer_layer_config.hidden_act"),
        ({"num_anchors": 7}, None),
    ],
)
@pytest.mark.parametrize("null", [False, True])
def test_overridden_key_says_so(
    fields: dict[str, Any], source: str | None, null: bool, draft: Callable[..., Path]
) -> None:
    (name,) = fields
    edits = [put(mask_token_id=None)] if null and name == "mask_token_id" else []
    plan = planned(draft(*edits), fields=fields)
    assert plan.overrides == fields
    assert plan.config[name] == fields[name]
    if source is not None:
        assert step(plan, source).action == "overridden"
        assert f"--set {name}" in step(plan, source).reason
    else:
        (added,) = [entry for entry in plan.keys if entry.names == (name,)]
        assert f"--set {name}" in added.reason


def test_given_layout_is_in_plan_and_config(draft: Callable[..., Path]) -> None:
    plan = planned(draft(), layout=Layout.BONUS_ANCHOR)
    assert plan.config["sample_from_anchor"] is False
    assert plan.config["dspark_bonus_anchor"] is True
    assert step(plan, "sample_from_anchor").reason == "overridden by --layout"
    assert plan.overrides == {"layout": "bonus_anchor"}
    assert plan.source_config["sample_from_anchor"] is True


def test_tensors_of_the_source_are_in_the_plan_once(folders: dict[str, Path]) -> None:
    for variant, folder in folders.items():
        write_json(folder / "config.json", read_draft(variant).config)
        plan = planned(folder)
        assert sorted(str(step.source) for step in plan.tensors) == sorted(
            read_draft(variant).tensors
        )
        results = [step.name for step in plan.tensors if step.name is not None]
        assert len(results) == len(set(results))
