"""Reports in a real browser: drawn, read, zoomed, heard, dark and narrow, without a message, and asking for nothing."""

from __future__ import annotations

import io
import json
import shutil
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, Tab, browser
from vaak.core.summaries import ExampleLog, make_summary
from vaak.report.comparison import comparison_page
from vaak.report.page import run_page
from vaak.report.run_facts import read_facts
from vaak.report.serve import Reports, make_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no headless Chromium (Debian: chromium-headless-shell)"),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as opened:
        yield opened


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """The tiny run, with an event, memory pressure, and a recording of a diarizer with its audio."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "system", "step": 4, "clock": {"memory_pressure": 0.85}}) + "\n")
    cut = {"cut": {"objective": 0, "step": 6, "cells": 1, "pieces": 4, "split": None}, "reason": "out of memory"}
    (run / "splits.jsonl").write_text(json.dumps(cut) + "\n")
    log = ExampleLog("der")
    about = {"name": "meeting", "seconds": 2.0, "speakers": 1, "found": 1, "audio": "recording-1", "scored": 2.0}
    log.add(0, 0.1, (0.2, 2.0), "", {**about, "reference": [[0, 1, "ann"]], "hypothesis": [[0, 1.2, "s1"]]})
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 16000))
    for name, ending, written in (
        ("val_examples", "json", json.dumps(make_summary("der", log.seen())).encode()),
        ("val_recording-1", "wav", content.getvalue()),
    ):
        (run / "pictures" / name).mkdir(parents=True)
        (run / "pictures" / name / f"step-00000008.{ending}").write_bytes(written)
    return run


def shown(tab: Tab, page: str, path: Path, width: int = 1100) -> list[str]:
    """Open a page, and return what it asked for besides itself."""
    path.write_text(page, encoding="utf-8")
    tab.said.clear()
    tab.requests.clear()
    tab.size(width)
    tab.open(path.as_uri())
    tab.wait("document.body.dataset.charts !== undefined")
    return [one for one in tab.requests if one != path.as_uri()]


POINT = """(() => { const over = document.querySelector(".chart .u-over").getBoundingClientRect();
    return [over.left, over.top, over.width, over.height]; })()"""


def test_a_report_is_drawn_read_and_zoomed(tab: Tab, run: Path, tmp_path: Path):
    page = run_page(read_facts(run))
    assert shown(tab, page, tmp_path / "page.html") == []
    assert tab.value("document.querySelectorAll('.chart canvas').length") == page.count('class="plot"') > 5
    painted = """(() => [...document.querySelectorAll(".chart canvas")].every((one) => one.getContext("2d")
        .getImageData(0, 0, one.width, one.height).data.some((value) => value)))()"""
    assert tab.value(painted)
    tab.value("document.querySelector('.chart').scrollIntoView()")
    left, top, width, height = tab.value(POINT)
    tab.mouse("mouseMoved", left + width * 5 / 7, top + height / 2)
    legend = "document.querySelector('.chart .u-legend').textContent"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (loss,) = [one["loss"] for one in records if one["kind"] == "step" and one["step"] == 6]
    assert f"{loss:.5g}" in tab.wait(f"{legend}.includes('{loss:.5g}') && {legend}")
    read = "document.querySelector('.chart .read').textContent"
    assert tab.value(read) == "step 6: batches in 4 chunks: out of memory"
    for kind, place in (("mousePressed", 0.2), ("mouseMoved", 0.5), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
        tab.mouse(kind, left + width * place, top + height / 2)
    steps = "document.querySelectorAll('.chart .plot')[1].dataset.steps.split(' ').map(Number)"  # of another chart
    assert tab.wait(f"{steps}[0] > 2")
    assert tab.value(steps) == pytest.approx([2.4, 5.2], abs=0.1)
    tab.value("document.querySelector('.chart .plot').focus()")
    tab.key("Escape")
    assert tab.value(steps) == [1, 8]
    for _ in range(9):
        tab.key("ArrowLeft")
    assert tab.value(read).startswith("step 1: train ")
    tab.key("ArrowRight")
    assert tab.value(read).startswith("step 2: train ")
    tab.key("+")
    assert tab.value(steps)[1] < 8
    assert tab.said == []


def test_a_panel_is_no_taller_than_what_it_holds(tab: Tab, run: Path, tmp_path: Path):
    """Next to one with a long legend, too."""
    shown(tab, run_page(read_facts(run)), tmp_path / "page.html", 1200)
    ends = (
        "[...one.querySelectorAll('.plot, .u-legend, .read, .last')].map(part => part.getBoundingClientRect().bottom)"
    )
    gaps = (
        f"[...document.querySelectorAll('.chart')].map(one => one.getBoundingClientRect().bottom - Math.max(...{ends}))"
    )
    assert all(0 <= gap < 40 for gap in tab.value(gaps)), "neither beyond its frame, nor short of it"


def test_dark_and_narrow(tab: Tab, run: Path, tmp_path: Path):
    page = run_page(read_facts(run))
    background = "getComputedStyle(document.body).backgroundColor"
    for dark, colour in ((True, "rgb(13, 17, 23)"), (False, "rgb(255, 255, 255)")):
        tab.dark(dark)
        shown(tab, page, tmp_path / "page.html", 400)
        assert tab.value(background) == colour
        assert tab.value("document.documentElement.scrollWidth") <= 400
        ends = "[...document.querySelectorAll('caption')].map(one => one.getBoundingClientRect().right)"
        assert max(tab.value(ends)) <= 400, "a caption wraps, also where its table is scrolled"
        tallest = (
            "Math.max(...[...document.querySelectorAll('.data tr')].map(row => row.offsetHeight / row.cells.length))"
        )
        assert tab.value(tallest) < 60, "a table is scrolled, not squeezed"
    tab.dark(True)  # while it is open
    assert tab.wait(f"{background} === 'rgb(13, 17, 23)'")
    tab.dark(False)
    assert tab.said == []


def test_audio_plays_and_its_timeline_follows(tab: Tab, run: Path, tmp_path: Path):
    shown(tab, run_page(read_facts(run)), tmp_path / "page.html")
    assert tab.value("document.querySelector('.recording audio').play().then(() => true)")
    assert tab.wait("document.querySelector('.timeline').style.getPropertyValue('--at')")
    assert tab.value("document.querySelector('.recording audio').error") is None
    tab.value("document.querySelector('.recording audio').pause()")
    tab.value("document.querySelector('.timeline').scrollIntoView()")
    place = tab.value(
        "(() => { const box = document.querySelector('.lane').getBoundingClientRect();"
        " return [box.left + box.width * 0.75, box.top + 3]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.mouse(kind, *place)
    assert tab.wait("document.querySelector('.recording audio').currentTime > 1.4")
    assert tab.said == []


def test_everything_that_can_be_used_has_a_name(tab: Tab, run: Path, tmp_path: Path):
    shown(tab, run_page(read_facts(run)), tmp_path / "page.html")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    used = ("button", "link", "img", "region", "textbox", "combobox", "heading", "navigation", "Audio")
    named = [one for one in nodes if not one.get("ignored") and one.get("role", {}).get("value") in used]
    assert len(named) > 20
    assert [one for one in named if not one.get("name", {}).get("value")] == []
    assert tab.value("[...document.querySelectorAll('[role=group], [role=img], audio')].every((one) => one.ariaLabel)")


def test_runs_that_are_compared(tab: Tab, run: Path, tmp_path: Path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    page = comparison_page([read_facts(run), read_facts(other)])
    assert shown(tab, page, tmp_path / "page.html") == []
    assert tab.value("document.querySelectorAll('.chart canvas').length") > 3
    assert tab.said == []


def test_a_page_that_is_served_refreshes_in_place(tab: Tab, run: Path):
    tab.said.clear()
    with make_server(Reports([run])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            tab.open(f"http://127.0.0.1:{server.server_address[1]}/")
            tab.value("document.querySelector('#log ~ details').open = true")
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"kind": "evaluation", "step": 9, "scheduled": True, "val_loss": 0.4321}) + "\n")
            assert tab.wait("document.getElementById('evaluations').parentElement.textContent.includes('0.4321')")
            assert tab.value("document.querySelectorAll('.chart canvas').length") > 3
            assert tab.value("document.querySelector('#log ~ details').open")
        finally:
            server.shutdown()
            thread.join()
    tab.open("about:blank")
    assert tab.said == []


def test_a_list_of_runs_is_filtered(tab: Tab, run: Path, tmp_path: Path):
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    tab.said.clear()
    with make_server(Reports([], tmp_path / "runs")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            tab.open(address)
            rows = "[...document.querySelectorAll('.runs tbody tr')].filter((one) => !one.hidden)"
            seen = f"{rows}.map((one) => one.dataset.name)"
            assert sorted(tab.value(seen)) == ["one", "two"]
            tab.value(
                "(() => { const field = document.querySelector('[data-filter=name]'); field.value = 'TW';"
                " field.dispatchEvent(new Event('input')); })()"
            )
            assert tab.value(seen) == ["two"]
            assert tab.value("document.getElementById('shown').textContent") == "1 of 2 runs"
            tab.open(address + tab.value(f"{rows}[0].querySelector('a').getAttribute('href')"))
            assert tab.value("document.querySelectorAll('.chart canvas').length") > 3
        finally:
            server.shutdown()
            thread.join()
    tab.open("about:blank")
    assert [one for one in tab.said if "favicon" not in one] == []
