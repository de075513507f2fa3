"""The page of a run has what its files say, as text; it is one file that loads nothing, made without torch."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from vaak.report.comparison import comparison_page
from vaak.report.curves import MOST_POINTS, events, panels
from vaak.report.history import History
from vaak.report.page import run_page
from vaak.report.run_facts import read_facts
from vaak.runs.folder.directory import the_only_writer

VOID = {"meta", "img", "link", "br", "hr", "input"}
HOSTILE = "</script><script>boom()</script>\"'><img src=http://evil/x onerror=boom()>&amp;\x00\u2028{title}"


@dataclass
class Page(HTMLParser):
    """A page's elements with their attributes, the text outside of scripts, and the data for the charts.

    Fails where elements aren't closed in the order in which they were opened.
    """

    html: str
    open: list[str] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data + "\n"

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[0]))

    def require_harmless(self) -> None:
        """Fails where anything is loaded or run but Vaak's own two scripts."""
        assert [tag for tag, _ in self.elements].count("script") == len(self.scripts) == 3
        assert not {"link", "iframe", "object", "embed", "form", "base", "svg"} & {tag for tag, _ in self.elements}
        for _, attributes in self.elements:
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href"):
                assert re.match(r"data:(image/png|audio/wav);base64,|#\w", attributes.get(name) or "#a")
        style = re.findall(r"<style>(.*?)</style>", self.html, re.DOTALL)
        assert not re.search(r"url\(|@import", "".join(style))
        assert "default-src 'none'" in self.html
        self.html.encode("utf-8")


def test_a_run_is_a_page(vaak, tiny_run: Path, tmp_path: Path):
    path = tmp_path / "page.html"
    assert vaak("report", tiny_run, "-o", path)[:2] == (0, f"{path}\n")
    page = Page(path.read_text(encoding="utf-8"))
    page.require_harmless()
    records = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    curves = {one["label"]: one for one in page.data["panels"][0]["curves"]}
    losses = {one["step"]: one["loss"] for one in records if one["kind"] == "step"}
    assert curves["train"]["x"] == list(losses) == list(range(1, 9))
    assert curves["train"]["y"] == pytest.approx(list(losses.values()), rel=1e-5)
    evaluations = [one for one in records if one["kind"] == "evaluation"]
    assert curves["valid"]["x"] == [4, 8]
    assert f"{evaluations[-1]['val_loss']:.5g}" in page.text
    assert f"{100 * evaluations[-1]['val_accuracy']:.2f} %" in page.text
    assert [(one["step"], one["text"]) for one in page.data["events"]] == [(4, "checkpoint"), (8, "checkpoint (best)")]
    rows = re.findall(r"<tr><td>([\w.]+)</td><td>([^<]*)</td><td>([^<]*)</td></tr>", page.html)
    changed = {name: (default, value) for name, default, value in rows}
    assert changed["model.d_model"] == ("512", "32")
    assert changed["training.optimizer.lr"] == ("0.0003", "0.01")
    assert "training.seed" not in changed
    identity = json.loads((tiny_run / "run.json").read_text())["id"]
    prepared = json.loads((tiny_run / "prepared" / "prepared.json").read_text())
    for said in (
        "finished",
        "8 of 8",
        "300",
        identity,
        prepared["fingerprint"],
        "@misc{tiny,",
        f"vaak verify {tiny_run}",
    ):
        assert said in page.text
    assert "uPlot" in page.html
    assert "Copyright (c) 2022 Leon Sorokin" in page.html
    assert len(page.html) < 3_000_000


@pytest.fixture
def crashed(tiny_run: Path, tmp_path: Path) -> Path:
    """The tiny run as a kill between steps 6 and 7 leaves it, its second session resumed at step 4."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "crashed"))
    (run / "status.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(text[: text.index(b'"kind": "step", "step": 7') + 60])
    first = json.loads((run / "sessions.jsonl").read_text())
    second = {**first, "number": 2, "first_step": 5, "after": 1}
    (run / "sessions.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    configuration = (run / "sessions" / "0001.yml").read_text()
    (run / "sessions" / "0002.yml").write_text(configuration.replace("lr: 0.01", "lr: 0.002"))
    cut = {"cut": {"objective": 0, "step": 6, "cells": 1, "pieces": 4, "split": None}, "reason": "out of memory"}
    (run / "splits.jsonl").write_text(json.dumps(cut) + '\n{"cut": {"st')
    return run


@pytest.mark.slow
def test_a_crashed_run_without_torch(crashed: Path, tmp_path: Path):
    """The command's own process, in which torch can't be imported."""
    block = "import sys; sys.modules['torch'] = None; from vaak.cli.main import main; main()"
    path = tmp_path / "page.html"
    command = [sys.executable, "-c", block, "report", str(crashed), "--output", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    page = Page(path.read_text(encoding="utf-8"))
    page.require_harmless()
    assert page.data["panels"][0]["curves"][0]["x"] == [1, 2, 3, 4, 5, 6]
    assert "crashed" in page.text
    assert f"vaak train {crashed}/config.yml --resume auto" in page.text
    happened = {(one["step"], one["kind"]): one["text"] for one in page.data["events"]}
    assert happened[5, "resume"] == "session 2 begins; changed: training.optimizer.lr 0.01 → 0.002"
    assert happened[6, "split"] == "batches in 4 chunks: out of memory"
    assert (8, "checkpoint") not in happened  # of train.log, beyond what is there
    with the_only_writer(crashed):
        assert "running" in run_page(read_facts(crashed)).partition("</h1>")[0]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A run whose every value a stranger chose, with links to a file outside of it."""
    run = tmp_path / "run"
    for folder in ("checkpoints/step-00000002", "prepared", "sessions", "evaluation", "pictures/<img src=x>"):
        (run / folder).mkdir(parents=True)
    outside = tmp_path / "secret.png"
    outside.write_bytes(b"\x89PNG private")
    (run / "pictures" / "<img src=x>" / "step-00000002.png").write_bytes(b"\x89PNG picture")
    (run / "stolen.png").symlink_to(outside)
    (run / "not_a_picture.png").write_text("<svg onload=boom()>")
    name = json.dumps(HOSTILE)
    text = f"task: lm\nname: {name}\nrun_dir: {name}\nmodel: {{d_model: {name}, {name}: {name}}}\n"
    (run / "config.yml").write_text(text, encoding="utf-8")
    metrics = {f"val_{HOSTILE}": 0.5, f"val_wer/{HOSTILE}": 0.25, "val_loss": "nan"}
    records = [
        {"kind": "step", "step": 1, "loss": 1.0, HOSTILE: 2.0, "huge": 10**400, "clock": {f"{HOSTILE}_per_second": 1}},
        {"kind": "step", "step": 2, "loss": "inf", "non_finite_steps": 2, "clock": HOSTILE},
        {"kind": HOSTILE, "step": 2},
        *({"kind": "step", "step": step, "loss": 0.5, HOSTILE: 2.0} for step in (3, 4)),
        {"kind": "step", "step": 10**300, "loss": 1.0},
        {"kind": "step", "step": -1, "loss": 1.0, "clock": {"seconds": "inf"}},
        {"kind": "evaluation", "step": 2, "scheduled": True, **metrics},
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    parent = {"id": HOSTILE, "directory": HOSTILE, "step": HOSTILE}
    session = {"number": 1, "first_step": 1, "after": HOSTILE, "device": HOSTILE, "command": ["vaak", HOSTILE]}
    for name in ("val_examples", "pairs_examples", "a_examples", "b_examples", "c_examples", "d_examples"):
        (run / "pictures" / name).mkdir()
    log = {"scores": {"figure": HOSTILE, "sums": [[1, 2], [3, 4]], "groups": [HOSTILE, "b"], "of": HOSTILE}}
    one = {"index": HOSTILE, "error": 1, "name": HOSTILE, "audio": "../../secret", "text": HOSTILE, "expert": HOSTILE}
    sides = {"reference": [[0, 1, HOSTILE], HOSTILE, [2, 1, 0]], "hypothesis": [[0, "x", HOSTILE]]}
    matrix = {"classes": [HOSTILE, "b"], "counts": [[1, HOSTILE], [2, 3]]}
    written: dict[str, Any] = {
        "pictures/val_examples/step-00000002.json": {
            "examples": [{**one, "predicted": HOSTILE, "class": HOSTILE, "confidence": HOSTILE}, HOSTILE],
            "confusions": {HOSTILE: matrix, "b": {"classes": 3}, "c": 4, "d": {"classes": ["x"], "counts": [[1, 2]]}},
            "calibration": {HOSTILE: [[2, 1, 1], [HOSTILE], 3, [0, 0, 0]]},
            "samples": [HOSTILE, 4],
            **log,
        },
        "pictures/pairs_examples/step-00000002.json": {"phenomena": {HOSTILE: [1, 2], "b": [3, 2], "c": HOSTILE}},
        "pictures/a_examples/step-00000002.json": {"examples": [{**one, "references": [HOSTILE], "source": HOSTILE}]},
        "pictures/b_examples/step-00000002.json": {"examples": [{**one, "hypothesis": HOSTILE, "reference": HOSTILE}]},
        "pictures/c_examples/step-00000002.json": {
            "examples": [{**one, "speakers": HOSTILE, "seconds": HOSTILE, **sides}],
            "attention": {"source": [HOSTILE], "target": [HOSTILE], "weights": [[0.5]]},
        },
        "pictures/d_examples/step-00000002.json": {"tasks": {HOSTILE: {"examples": [one], "spoken": [HOSTILE]}}},
        "samples.json": {"step": 2, "samples": [HOSTILE, 3]},
        "status.json": {"state": "failed", "reason": HOSTILE, "total_steps": HOSTILE},
        "run.json": {"id": HOSTILE, "directory": HOSTILE, "parent": parent},
        "sessions.jsonl": session,
        "environment.json": {"vaak": HOSTILE, "packages": {"torch": HOSTILE}},
        "verification.json": {"verified": HOSTILE, "sentence": HOSTILE, "time": 3, "findings": [HOSTILE, 1]},
        "baselines.json": {"valid": {"figure": HOSTILE, "figures": {HOSTILE: {HOSTILE: 1.0}}}},
        "splits.jsonl": {"cut": {"step": 2, "pieces": HOSTILE}, "reason": HOSTILE},
        "prepared/prepared.json": {"fingerprint": HOSTILE, "statistics": {HOSTILE: {"words": 3}}},
        "checkpoints/step-00000002/MANIFEST.json": {"files": {"model.safetensors": {"sha256": HOSTILE, "bytes": 1}}},
        "evaluation/evaluation.json": {},
    }
    for file, content in written.items():
        (run / file).write_text(json.dumps(content))
    (run / "evaluation" / "worst.csv").write_text(
        f'text,"{HOSTILE.replace(chr(34), chr(34) * 2)}"\n1,2\n'.replace("\0", "")
    )
    (run / "notes.md").write_text(f"# {HOSTILE}\n\n{HOSTILE}\n")
    (run / "train.log").write_text(f"2026-01-01 00:00:00,000 rank 0 WARNING {HOSTILE}\n")
    return run


def test_what_a_stranger_wrote_is_text(hostile: Path):
    page = Page(run_page(read_facts(hostile)))
    page.require_harmless()
    shown = HOSTILE.replace("\x00", "\ufffd")
    assert page.text.count(shown) >= 34
    assert page.data["panels"][0]["curves"][0] == {
        "label": "train",
        "colour": 0,
        "x": [1, 2, 3, 4],
        "y": [1.0, None, 0.5, 0.5],
    }
    assert HOSTILE in {curve["label"] for panel in page.data["panels"] for curve in panel["curves"]}
    assert {one["kind"] for one in page.data["events"]} == {"checkpoint", "split", "not finite"}
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert [one["alt"] for one in images] == ["<img src=x>, step 2"]  # the link's aim and the SVG aren't among them
    (hostile.parent / "secret.yml").write_text("task: lm\nname: private\n")
    for name, aim in (("train.log", "secret.png"), ("notes.md", "secret.yml"), ("config.yml", "secret.yml")):
        (hostile / name).unlink()
        (hostile / name).symlink_to(hostile.parent / aim)
        assert "private" not in run_page(read_facts(hostile))
    (hostile / "config.yml").unlink()
    os.mkfifo(hostile / "config.yml")  # a page that read it would never be made
    Page(run_page(read_facts(hostile))).require_harmless()
    for name in ("run.json", "status.json", "verification.json", "metrics.jsonl"):
        (hostile / name).write_text("[" * 100_000)
    Page(run_page(read_facts(hostile))).require_harmless()
    Page(comparison_page([read_facts(hostile), read_facts(hostile)])).require_harmless()


def test_runs_side_by_side(vaak, tiny_run: Path, tmp_path: Path):
    other = Path(shutil.copytree(tiny_run, tmp_path / "other"))
    configuration = (other / "config.yml").read_text()
    (other / "config.yml").write_text(configuration.replace("lr: 0.01", "lr: 0.5").replace("name: tiny", "name: other"))
    code, out, _ = vaak("report", other, tiny_run)
    assert (code, out) == (0, f"{other}/comparison.html\n")
    page = Page((other / "comparison.html").read_text(encoding="utf-8"))
    page.require_harmless()
    assert "<tr><td>training.optimizer.lr</td><td>0.5</td><td>0.01</td></tr>" in page.html
    assert page.html.index('id="options"') < page.html.index('id="charts"')
    assert all([curve["label"] for curve in one["curves"]] == ["other", "tiny"] for one in page.data["panels"])
    assert {curve["x"][-1] for curve in page.data["panels"][0]["curves"]} == {8}


def test_the_first_screen_is_the_result_of_the_best_checkpoint_and_the_data(tiny_run: Path, tmp_path: Path):
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    (run / "checkpoints" / "best").write_text("step-00000004\n")
    (run / "notes.md").write_text("# The first *tiny* one\n\nWhy: to see\nwhether it learns.\n\nIt does.\n")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    at = {one["step"]: one for one in records if one["kind"] == "evaluation"}
    page = Page(run_page(read_facts(run)))
    page.require_harmless()
    head = page.html[page.html.index("<header>") : page.html.index("<nav")]
    tiles = dict(re.findall(r'<div class="figure"><b>([^<]*)</b><span>([^<]*)</span>', head))
    assert f"{at[4]['val_loss']:.5g}" in tiles
    assert f"{at[8]['val_loss']:.5g}" not in tiles
    assert "at step 4, that of the best checkpoint, which commands use" in head
    order = ["<h1>The first *tiny* one", "<p>Why: to see whether it learns.</p>", 'class="result"', "Data: train "]
    places = [head.index(one) for one in [*order, 'class="figures"', "<dl>"]]
    assert places == sorted(places)
    prepared = json.loads((run / "prepared" / "prepared.json").read_text())["statistics"]
    assert f"Data: train {prepared['train']['contents']['number']:,} documents" in head
    sections = re.findall(r'<h2 id="(\w+)"', page.html)
    assert sections.index("examples") < sections.index("charts") if "examples" in sections else sections[0] == "charts"


def test_the_data_are_counted_in_the_unit_of_their_task(tiny_run: Path, tmp_path: Path):
    """A recogniser's utterances and accents were not among the words that the page knew: it showed minutes alone."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    spoken = {"contents": {"unit": "utterances", "number": 1219}, "seconds": 428.0}
    prepared = {
        "statistics": {"train": {**spoken, "group": "accent", "groups": {"en": 900, "hi": 319}}, "test": spoken}
    }
    (run / "prepared" / "prepared.json").write_text(json.dumps(prepared))
    page = run_page(read_facts(run))
    assert "Data: train 1,219 utterances, 0.12 hours, 2 groups by accent; test 1,219 utterances, 0.12 hours;" in page


def test_machine_charts_are_folded_short_ones_are_tables_and_legends_have_values(tiny_run: Path):
    html = run_page(read_facts(tiny_run))
    charts = html[html.index('id="charts"') : html.index('id="evaluations"')]
    before, _, folded = charts.partition('<details class="machine">')
    titles = [re.findall(r'<h3 id="chart-(\d+)">([^<]*)</h3>', part) for part in (before, folded)]
    assert titles[0][0] == ("0", "loss")
    assert {title.partition(",")[0] for _, title in titles[1]} >= {"throughput", "memory"}
    assert not {title.partition(",")[0] for _, title in titles[0]} & {"throughput", "memory", "processors"}
    numbers = [int(number) for number, _ in titles[0] + titles[1]]
    assert numbers == list(range(len(Page(html).data["panels"])))  # as the script counts them
    losses = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    last = [one["loss"] for one in losses if one["kind"] == "step"][-1]
    assert re.search(rf'<ul class="last"><li><i class="c0"></i>train <b>{last:.5g}</b></li>', before)
    assert re.search(r"<tr><td>val_accuracy</td><td></td><td>4</td><td>[\d.]+ %</td></tr>", before)  # two points


def test_compared_runs_keep_their_colours_and_tasks_their_charts(tiny_run: Path, tmp_path: Path):
    runs = [Path(shutil.copytree(tiny_run, tmp_path / name)) for name in ("one", "two", "three")]
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs[0] / "metrics.jsonl").write_text("".join(line for line in lines if '"evaluation"' not in line))
    for run, task in zip(runs, ("lm", "lm", "seq2seq"), strict=True):
        text = (run / "config.yml").read_text()
        (run / "config.yml").write_text(
            text.replace("name: tiny", f"name: {run.name}").replace("task: lm", f"task: {task}")
        )
    page = Page(comparison_page([read_facts(run) for run in runs]))
    titles = re.findall(r'<h3 id="chart-\d+">([^<]*)</h3>', page.html)
    curves = {title: one["curves"] for title, one in zip(titles, page.data["panels"], strict=True)}
    assert [curve["label"] for curve in curves["loss: train (lm)"]] == ["one", "two"]
    assert [curve["label"] for curve in curves["loss: train (seq2seq)"]] == ["three"]
    colours = {(curve["label"], curve["colour"]) for one in curves.values() for curve in one}
    assert colours == {("one", 0), ("two", 1), ("three", 2)}


def test_a_long_run_is_thinned_to_a_small_page_and_keeps_its_peaks(tmp_path: Path):
    (tmp_path / "config.yml").write_text("task: lm\nname: long\n")
    peak = {1_210: 1e6, 2_345: -1e6}
    parts = {f"part_{number}": 0.123456789 * number for number in range(14)}
    lines = (
        json.dumps({"kind": "step", "step": step, "loss": peak.get(step, step % 7), **parts})
        for step in range(1, 4_001)
    )
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    facts = read_facts(tmp_path)
    found, left_out = panels(facts)
    (loss,) = found[0].curves
    assert {step: loss.values[loss.steps.index(step)] for step in peak} == peak
    assert (loss.steps[0], loss.steps[-1]) == (1, 4_000)
    assert loss.steps == sorted(set(loss.steps))
    assert len(loss.steps) <= MOST_POINTS
    assert left_out == 14 - len(found[1].curves)
    assert events(facts) == []
    assert len(run_page(facts)) < 600_000


def make_records(steps: int, peaks: dict[int, float]) -> Iterator[dict[str, Any]]:
    """Records of a long run, whose loss is between 1 and 3 but for its peaks; the newest comes twice."""
    for step in chain(range(1, steps + 1), [steps]):
        value = peaks.get(step, 2 + math.sin(step / 50))
        yield {"kind": "step", "step": step, "loss": value, "learning_rate": 1 / step, "clock": {"gap_ms": 1.0}}


def test_curves_of_a_very_long_run_keep_their_peaks_and_ends():
    peaks = {1: 2.5, 777: -50.0, 4_097: 60.0, 10_001: math.nan, 19_998: 70.0, 20_000: 2.25}
    history = History(make_records(20_000, peaks))
    steps, values = history.curves["loss"]["train"].thin(100)
    assert len(steps) <= 100
    assert steps == sorted(set(steps))
    drawn = dict(zip(steps, values, strict=True))
    assert {step: drawn[step] for step in peaks if step != 10_001} == {
        step: value for step, value in peaks.items() if step != 10_001
    }
    others = [value for step, value in drawn.items() if step not in peaks and value is not None]
    # Each stretch has the whole wave: its extremes are there, and nothing that wasn't.
    assert min(others) == pytest.approx(1, abs=0.01)
    assert max(others) == pytest.approx(3, abs=0.01)
    assert all(value == 2 + math.sin(step / 50) for step, value in drawn.items() if step not in peaks)
    assert list(history.not_finite) == [(10_001, "the loss is nan")]
    assert history.last_step == 20_000


def test_memory_of_a_report_does_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch):
    # The real bounds would need ten times the steps.
    monkeypatch.setattr("vaak.report.history.EXACT", 256)
    monkeypatch.setattr("vaak.report.history.STRETCHES", 128)

    def measure(steps: int) -> int:
        records = make_records(steps, {})
        tracemalloc.start()
        try:
            History(records)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peaks = [measure(500 * factor) for factor in (1, 4, 16)]
    assert max(peaks) < 1.1 * peaks[0] + 20_000


def test_records_out_of_order_are_drawn_in_order(tmp_path: Path):
    (tmp_path / "config.yml").write_text("task: lm\nname: edited\n")
    lines = [json.dumps({"kind": "step", "step": step, "loss": float(step)}) for step in (1, 3, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert read_facts(tmp_path).history.curves["loss"]["train"].thin(10) == ([1, 2, 3], [1.0, 2.0, 3.0])


# In a separate process, as a child begins with the peak of the one that starts it.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_report_and_listing_of_200_000_steps_fit_in_150_megabytes(tmp_path: Path):
    (tmp_path / "config.yml").write_text("task: lm\nname: long\n")
    with open(tmp_path / "metrics.jsonl", "w") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in make_records(200_000, {}))
    for command in ("runs", "report"):
        child = [sys.executable, "-m", "vaak", command, str(tmp_path)]
        printed = subprocess.run([sys.executable, "-c", MEASURE, *child], capture_output=True, text=True, check=True)
        # In kilobytes, on macOS in bytes.
        assert int(printed.stdout) < 150_000 * (1024 if sys.platform == "darwin" else 1), command


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny_run", "diarizer_run", "voice_run", "flow_run", "vocoder_run"])
def test_a_run_of_each_kind_with_its_pictures_and_sound(kind: str, request: pytest.FixtureRequest):
    facts = read_facts(request.getfixturevalue(kind))
    page = Page(run_page(facts))
    page.require_harmless()
    own = [path for path in facts.directory.glob("pictures/*/*") if path.suffix in (".png", ".wav")]
    embedded = [attributes["src"] or "" for tag, attributes in page.elements if tag in ("img", "audio")]
    newest = {path.parent: path for path in sorted(own)}.values()
    for path in newest:
        assert any(one.endswith(b64encode(path.read_bytes()).decode()) for one in embedded)
    assert bool(newest) == (kind in ("diarizer_run", "flow_run"))
    assert facts.changed
    assert not facts.not_compared
    assert sum(map(len, embedded)) < 6_500_000
    assert len(page.html) - sum(one.startswith("data:audio") and len(one) for one in embedded) < 3_000_000
