"""The release of a draft, whole: from a repository with its training form to a verified one.

Download, convert, check, verify on a trace, publish with model card and report; and the same with
the layout flag of the converted config flipped, which must stop at the verification.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dspark_convert.cli.verify import app as verify_app
from tests.conftest import ROOT, Outcome
from tests.hub.server import HubServer, Repo

pytest.importorskip("torch")

TINY = ROOT / "fixtures/tiny"
TARGET = TINY / "target"
DRAFT = TINY / "draft_anchor_reduced"
PROMPTS = 8
MIN_ACCEPTED_LENGTH = 1.2

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.skipif(not (DRAFT / "model.safetensors").exists(), reason="no tiny pair here"),
]

Cli = Callable[..., Any]
Publish = Callable[..., Repo]


def verify(*arguments: object) -> Outcome:
    result = CliRunner().invoke(verify_app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded once, wherever the target runs; afterwards nobody needs the target."""
    folder = tmp_path_factory.mktemp("trace")
    prompts = folder / "prompts.jsonl"
    lines = (TINY / "prompts.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(lines[:PROMPTS]))
    out = folder / "trace.safetensors"
    options = ("--max-new-tokens", 32, "--prompts", prompts, "--device", "cpu")
    done = verify("record", TARGET, "--for", DRAFT, "--out", out, *options)
    assert done.code == 0, done
    return out


def pipeline(cli: Cli, trace: Path, folder: Path, spoil: Callable[[Path], None]) -> Outcome:
    """Run step after step, as a release script does; the first that fails ends it."""
    dense, report = folder / "dense", folder / "report.json"
    models = ("--source", "tiny/draft", "--target-weights", "tiny/target")
    gate = (*models, "--min-accepted-length", MIN_ACCEPTED_LENGTH, "--device", "cpu")
    steps: tuple[Callable[[], Outcome], ...] = (
        lambda: cli("to-dense", "tiny/draft", dense, "--target", "tiny/target", "--for", "vllm"),
        lambda: cli("check", dense),
        lambda: verify("check", dense, "--trace", trace, "--report", report, *gate),
        lambda: cli("push", dense, "tiny/draft-dense", "--report", report, "--json"),
    )
    outcome = steps[0]()
    for step in steps[1:]:
        if outcome.code != 0:
            break
        spoil(dense)
        outcome = step()
    return outcome


def flip_layout(dense: Path) -> None:
    """Say the other layout, in every spelling that the config has."""
    path = dense / "config.json"
    config = json.loads(path.read_bytes())
    config["dspark_bonus_anchor"], config["sample_from_anchor"] = True, False
    path.write_text(json.dumps(config))


def test_from_download_to_published_repository(
    hub: HubServer, publish: Publish, cli: Cli, trace: Path, tmp_path: Path
) -> None:
    source, started = publish("tiny/draft", DRAFT), time.monotonic()
    publish("tiny/target", TARGET)
    outcome = pipeline(cli, trace, tmp_path, lambda folder: None)
    assert outcome.code == 0, outcome
    assert time.monotonic() - started < 120
    assert outcome.json["action"] == "created"
    repo = hub.repos["tiny/draft-dense"]
    card = repo.tree["README.md"]
    assert isinstance(card, bytes)
    text = card.decode()
    assert "base_model: tiny/draft\n" in text
    assert source.refs["main"] in text
    assert "**pass**" in text
    assert "Accepted length, bonus token included: **" in text
    assert repo.tree["model.safetensors"] == (tmp_path / "dense/model.safetensors").read_bytes()
    assert cli("inspect", "tiny/draft-dense").code == 0


def test_flipped_layout_stops_at_the_verification_which_names_the_check(
    hub: HubServer, publish: Publish, cli: Cli, trace: Path, tmp_path: Path
) -> None:
    publish("tiny/draft", DRAFT)
    publish("tiny/target", TARGET)
    outcome = pipeline(cli, trace, tmp_path, flip_layout)
    assert outcome.code == 1, outcome
    report = json.loads((tmp_path / "report.json").read_bytes())
    failed = [check["id"] for check in report["checks"] if check["verdict"] == "fail"]
    assert failed == ["parity"]
    assert re.search(r"^parity +fail ", outcome.out, re.MULTILINE)
    assert "tiny/draft-dense" not in hub.repos
    pushed = cli("push", tmp_path / "dense", "tiny/draft-dense", "--json")
    assert pushed.codes == ["manifest-file-differs"]


def test_report_must_be_about_the_draft_and_not_a_failure(
    hub: HubServer, publish: Publish, cli: Cli, trace: Path, tmp_path: Path
) -> None:
    publish("tiny/draft", DRAFT)
    dense, report = tmp_path / "dense", tmp_path / "report.json"
    assert cli("to-dense", "tiny/draft", dense, "--target", TARGET).code == 0
    impossible = ("--trace", trace, "--min-accepted-length", 6.5, "--device", "cpu")
    assert verify("check", dense, *impossible, "--report", report).code == 1
    push = ("push", dense, "tiny/new", "--json", "--report")
    assert cli(*push, report).codes == ["report-failed"]
    document = json.loads(report.read_bytes())
    document["draft"]["config_sha256"] = "0" * 64
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    assert cli(*push, other).codes == ["report-of-other-draft"]
    document = json.loads(report.read_bytes())
    assert len(document["draft"]["weights"].pop("sha256")) == 64
    document["draft"]["weights"]["sha256"] = "0" * 64
    other.write_text(json.dumps(document))
    refused = cli(*push, other)
    assert refused.codes == ["report-of-other-draft"]
    assert "the same config and other weights" in str(refused)
    del document["draft"]["weights"]  # as an older version wrote it
    other.write_text(json.dumps(document))
    assert cli(*push, other).codes == ["report-failed"]
    document = json.loads(report.read_bytes())
    skipped = [{**check, "verdict": "skipped", "numbers": None} for check in document["checks"]]
    other.write_text(json.dumps({**document, "verdict": "inconclusive", "checks": skipped}))
    assert cli(*push, other).codes == ["report-empty"]
    other.write_text(json.dumps({**document, "verdict": "inconclusive", "checks": []}))
    assert cli(*push, other).codes == ["report-inconsistent"]
    other.write_text(json.dumps({**document, "verdict": "pass"}))
    assert cli(*push, other).codes == ["report-inconsistent"]
    other.write_text("{}")
    assert cli(*push, other).codes == ["report-invalid"]
    assert cli(*push, tmp_path / "absent.json").codes == ["file-missing"]
    assert "tiny/new" not in hub.repos


def test_draft_target_and_source_of_a_verification_come_from_the_hub(
    hub: HubServer, publish: Publish, cli: Cli, tmp_path: Path
) -> None:
    draft, target = publish("tiny/draft", DRAFT), publish("tiny/target", TARGET)
    prompts = tmp_path / "prompts.jsonl"
    lines = (TINY / "prompts.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(lines[:2]))
    short = ("--prompts", prompts, "--max-new-tokens", 8, "--device", "cpu", "--json")
    hub_models = ("--target", "tiny/target", "--source", "tiny/draft")
    outcome = verify("check", "tiny/draft", *hub_models, *short)
    assert outcome.code in (0, 1, 4), outcome  # so few tokens decide nothing
    report = outcome.json
    assert report["draft"]["name"] == f"tiny/draft@{draft.refs['main']}"
    assert report["target"]["name"] == f"tiny/target@{target.refs['main']}"
    assert report["settings"]["source"] == f"tiny/draft@{draft.refs['main']}"
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    assert verdicts["pairing"] == "pass"
    assert verdicts["parity"] == "inconclusive"  # the source is the draft itself
