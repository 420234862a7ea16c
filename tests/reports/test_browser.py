"""The page in headless Chromium: it renders, complains of nothing and asks nobody."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from dspark_convert.reports.html import render_html
from tests.reports.documents import HOSTILE, report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--disable-features=NetworkTimeServiceQuerying "
    "--proxy-bypass-list=<-loopback> --dump-dom"
)
# What Chromium asks for itself, whatever the page.
BROWSERS_OWN = re.compile(r"\.(google|googleapis|gvt1)\.com[:/]")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextmanager
def recording_proxy() -> Iterator[tuple[int, list[str]]]:
    """A proxy that answers nothing and keeps the first line of every request."""
    asked: list[str] = []

    def listen() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096).decode("latin-1").partition("\r\n")[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)


def browse(page: str, folder: Path) -> tuple[str, list[str], list[str]]:
    """The page as Chromium understood it, its console, and what was asked of the network."""
    file = folder / "page.html"
    file.write_text(page)
    with recording_proxy() as (port, asked):
        places = (f"--user-data-dir={folder / 'profile'}", f"--proxy-server=127.0.0.1:{port}")
        command = [CHROMIUM, *FLAGS.split(), *places, file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console, asked


def test_hostile_page_renders_without_complaint_or_request(tmp_path: Path) -> None:
    page = render_html(report(" ".join(HOSTILE)))
    dom, console, asked = browse(page, tmp_path)
    assert console == []
    assert [line for line in asked if not BROWSERS_OWN.search(line)] == []
    assert dom.count("<svg") == page.count("<svg") == 3
    assert dom.count("<tr") == page.count("<tr")
    assert not re.search(r"<(script|img|iframe|object|embed|form)\b", dom)


def test_a_page_that_fetches_and_complains_is_noticed(tmp_path: Path) -> None:
    bad = '<img src="http://evil.invalid/x.png"><script>console.error("ran")</script>'
    page = render_html(report()).replace("</main>", f"{bad}</main>")
    assert "Content-Security-Policy" in page
    _, console, asked = browse(page.replace("Content-Security-Policy", "Off"), tmp_path)
    assert any('"ran"' in line for line in console)
    assert any("evil.invalid" in line for line in asked)
