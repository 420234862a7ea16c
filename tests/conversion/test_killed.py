"""The installed command, killed in the middle of a large conversion."""

from __future__ import annotations

import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dspark_convert.checkpoint.header import layout_entries, render_header
from fixtures.broken.drafts import read_draft, write_json

from .helpers import convert, digest

COMMAND = Path(sysconfig.get_path("scripts")) / "dspark-convert"
VOCAB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of 336 MB whose large tensors are holes: quick to make, as slow to copy as any."""
    draft = read_draft("dense_vanilla_bf16")
    draft.config["vocab_size"] = VOCAB
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in draft.tensors.items()}
    shapes |= dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), ("BF16", (VOCAB, 64)))
    shapes |= {f"markov_head.markov_w{n}.weight": ("BF16", (VOCAB, 16)) for n in (1, 2)}
    entries = layout_entries((name, dtype, shape) for name, (dtype, shape) in shapes.items())
    header = render_header(entries, {"format": "pt"})
    folder = tmp_path_factory.mktemp("large") / "draft"
    folder.mkdir()
    write_json(folder / "config.json", draft.config)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + entries[-1].end)
    return folder


@contextmanager
def stopped(source: Path, output: Path, share: float) -> Iterator[subprocess.Popen[bytes]]:
    """A conversion, stopped when ``share`` of the weights lie in its temporary folder."""
    wanted = share * (source / "model.safetensors").stat().st_size
    command = [COMMAND, "to-dense", source, output, "--overwrite", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        try:
            while child.poll() is None and written(output) < wanted:
                time.sleep(0.001)
            child.send_signal(signal.SIGSTOP)
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def written(output: Path) -> float:
    """Bytes of weights in the temporary folder; -1 before there is any."""
    for path in output.parent.glob(f".{output.name}.dspark-tmp-*/new/model.safetensors"):
        return path.stat().st_size
    return -1


@pytest.fixture
def small(golden: Path) -> Path:
    return golden / "dense_vanilla_bf16/checkpoint"


@pytest.mark.parametrize(
    ("signum", "share", "existing"),
    [
        (signal.SIGINT, 0.0, False),
        (signal.SIGINT, 0.5, True),
        (signal.SIGTERM, 0.3, True),
        (signal.SIGTERM, 0.9, False),
        (signal.SIGHUP, 0.6, False),
    ],
)
def test_signal_leaves_nothing_behind(
    large: Path, small: Path, tmp_path: Path, signum: signal.Signals, share: float, existing: bool
) -> None:
    output = tmp_path / "out"
    if existing:
        convert(small, output)
    before = digest(output)
    with stopped(large, output, share) as child:
        assert child.poll() is None
        assert list(tmp_path.glob(".out.dspark-tmp-*"))
        child.send_signal(signum)
        child.send_signal(signal.SIGCONT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + signum
    assert b"Traceback" not in said
    assert digest(output) == before
    assert output.exists() == existing
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("share", "existing"), [(0.0, True), (0.5, False), (0.95, True)])
def test_killed_run_leaves_the_output_and_the_next_one_cleans_up(
    large: Path, small: Path, tmp_path: Path, share: float, existing: bool
) -> None:
    output = tmp_path / "out"
    if existing:
        convert(small, output)
    before = digest(output)
    with stopped(large, output, share) as child:
        child.kill()
        child.wait(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert digest(output) == before
    assert len(list(tmp_path.glob(".out.dspark-tmp-*"))) == 1

    convert(small, output, overwrite=True)
    assert (output / "dspark_conversion.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_running_conversion_is_no_orphan(large: Path, small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with stopped(large, output, 0.5) as child:
        convert(small, output)
        finished = digest(output)
        (workplace,) = tmp_path.glob(".out.dspark-tmp-*")
        assert written(output) > 0
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        child.wait(timeout=60)
    assert not workplace.exists()
    assert digest(output) == finished
