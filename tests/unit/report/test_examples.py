"""The report shows each task's evaluated examples, intervals, and paired differences of runs."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vaak.core.significance import compute_mean, paired_bootstrap
from vaak.core.summaries import ExampleLog, make_summary
from vaak.engine.metrics_file import read_history
from vaak.report.charts import draw_histories
from vaak.report.comparison import comparison_page, find_best
from vaak.report.examples import aligned_texts, chances, intervals, wilson
from vaak.report.model_card import AboutExport, model_card
from vaak.report.page import run_page
from vaak.report.run_facts import read_facts, tabulate_tokens
from vaak.scoring.word_errors import rate_with_interval

WAV = b"RIFF" + bytes(40)


def write_run(folder: Path, task: str, summary: dict[str, Any], metrics: dict[str, float], name: str = "val") -> Path:
    """A run that was evaluated at step 4 with these figures, and kept this summary."""
    (folder / "pictures" / f"{name}_examples").mkdir(parents=True)
    (folder / "config.yml").write_text(f"task: {task}\nname: {folder.name}\nrun_dir: {folder}\n")
    records = [{"kind": "step", "step": step, "loss": 1 / step} for step in (1, 2, 3, 4)]
    records.append({"kind": "evaluation", "step": 4, "scheduled": True, **metrics})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    (folder / "pictures" / f"{name}_examples" / "step-00000004.json").write_text(json.dumps(summary))
    return folder


def get_text(page: str) -> str:
    """The page without tags."""
    return unescape("".join(part.partition(">")[2] for part in page.partition("<body>")[2].split("<")))


def write_sound(run: Path, name: str) -> None:
    (run / "pictures" / name).mkdir()
    (run / "pictures" / name / "step-00000004.wav").write_bytes(WAV)


def recognised(errors: list[int], words: int = 10) -> dict[str, Any]:
    log = ExampleLog("wer")
    for index, wrong in enumerate(errors):
        group = "hi" if index % 2 else "en"
        about = {"name": f"u{index}", "reference": "so it is", "hypothesis": "so he is it", "group": group}
        log.add(index, wrong, (wrong, words), f"r{index}", {**about, "audio": f"utterance-{index}", "expert": 1}, group)
    return make_summary("wer", log.seen())


def test_a_recogniser(tmp_path: Path):
    errors = [0, 4] * 20
    metrics = {"val_wer": 0.2, "val_expert_use/0": 0.25, "val_expert_use/1": 0.75, "val_expert_wer/1": 0.5}
    run = write_run(tmp_path / "asr", "asr", recognised(errors), metrics)
    write_sound(run, "val_utterance-2")
    facts = read_facts(run)
    page, limits = run_page(facts), rate_with_interval([(one, 10) for one in errors])[1]
    assert limits is not None
    assert intervals(facts, 4) == {"val_wer": limits}
    low, high = (f"{100 * limit:.2f} %" for limit in limits)
    shown = get_text(page)
    assert "80 of 400 words are wrong (20.0 %)." in shown
    assert f"20.00 %val_wer95 %: {low} to {high}" in shown
    assert "en200.00 %0.00 % to 0.00 %hi2040.00 %40.00 % to 40.00 %all4020.00 %" in shown
    assert page.count("<audio") == 1
    with_audio = page.index("u2, en, expert 1, 0 errors")
    assert with_audio < page.index("<audio") < page.index("The worst, then the others")
    assert "so <del>it</del> <ins>he</ins> is <ins>it</ins>" in page
    assert "175.0 %50.00 %" in shown  # expert 1: its use, and its errors


def test_a_classifier(tmp_path: Path):
    log = ExampleLog("accuracy")
    for index in range(40):
        wrong = index in (12, 30)
        log.add(
            index,
            wrong,
            (not wrong, 1),
            "x",
            {"class": "x", "predicted": "y" if wrong else "x", "confidence": index / 40},
        )
    found = make_summary("accuracy", log.seen())
    for one in found["examples"]:
        one["text"] = f"text {one['index']}"
    counts = {"label": {"classes": ["x", "y"], "counts": [[28, 2], [0, 10]]}}
    bins = {"label": [[0, 0, 0], [20, 16.0, 15]]}
    run = write_run(
        tmp_path / "c", "classification", {**found, "confusions": counts, "calibration": bins}, {"val_accuracy": 0.95}
    )
    facts = read_facts(run)
    page = run_page(facts)
    assert chances(facts, 4)["val_accuracy"] == 0.75
    assert "chance: 75.00 %" in get_text(page)
    assert "38 of 40 are right; guessing has 30." in get_text(page)
    assert page.index("text 30") < page.index("text 12")  # wrong, and surer of it
    assert "text 13" not in page
    assert 'title="x, y: 2"' in page
    assert "80.0 %2075.0 %" in get_text(page)


def test_a_translator_and_its_attention(tmp_path: Path):
    log = ExampleLog("sentence_chrf")
    log.add(0, 60, (40, 1), "ref", {"chrf": 40.0, "hypothesis": "a < b", "references": ["ref one", "ref two"]})
    found = make_summary("sentence_chrf", log.seen())
    found["examples"][0]["source"] = "the source"
    attention = {"source": ["the", "source"], "target": ["a"], "weights": [[0.25, 0.75]]}
    run = write_run(tmp_path / "t", "seq2seq", {**found, "attention": attention}, {"val_chrf": 41.0})
    page = run_page(read_facts(run))
    assert "the sourcea < bref oneref two40.0" in get_text(page)
    assert "Cross-attention" in page
    assert "--share:33.3%" in page


def test_the_first_ten_translations_are_seen_at_once(tmp_path: Path):
    rows = [
        {"index": [one], "error": 1, "source": f"s{one}.", "hypothesis": "h", "references": ["r"]} for one in range(12)
    ]
    page = run_page(read_facts(write_run(tmp_path / "t", "seq2seq", {"examples": rows}, {"val_chrf": 41.0})))
    seen, _, folded = page.partition("<summary>More translations (2 rows)</summary>")
    assert [one for one in range(12) if f"s{one}." in seen.rpartition("<details>")[0]] == [*range(10)]
    assert "s10." in folded


def test_a_table_of_tokens_has_no_empty_columns(tmp_path: Path):
    store = tmp_path / "prepared" / "train" / "source"
    store.mkdir(parents=True)
    about = {"format": "vaak tokens 1", "tokens": 1200, "documents": 10, "reproduced": 10}
    (store / "store.json").write_text(json.dumps(about))
    (tmp_path / "prepared" / "prepared.json").write_text(json.dumps({"statistics": {"train": {"pairs": 10}}}))
    assert tabulate_tokens(tmp_path) == [
        ("texts", "tokens", "reproduced exactly"),
        ("train source", "1,200", "100.0 %"),
    ]


def test_a_language_model_step_by_step_and_by_phenomenon(tmp_path: Path):
    run = write_run(tmp_path / "lm", "lm", {"samples": ["the newest"]}, {"pairs_accuracy": 0.6})
    (run / "pictures" / "val_examples" / "step-00000002.json").write_text('{"samples": ["an older one"]}')
    (run / "pictures" / "pairs_examples").mkdir()
    pairs = {"phenomena": {"number": [40, 50], "gender": [20, 50]}}
    (run / "pictures" / "pairs_examples" / "step-00000004.json").write_text(json.dumps(pairs))
    facts = read_facts(run)
    page = run_page(facts)
    assert page.index("the newest") < page.index("an older one") < page.index("gender") < page.index("number")
    assert intervals(facts, 4) == {"pairs_accuracy": wilson(60, 100)}
    assert "95 %: 50.20 % to 69.06 %chance: 50.00 %" in get_text(page)
    assert "60 of 100 minimal pairs are right; guessing has 50." in get_text(page)


def test_a_diarizer_with_its_recordings(tmp_path: Path):
    log = ExampleLog("der")
    for index in range(3):
        about: dict[str, Any] = {"name": f"meeting {index}", "seconds": 10.0, "speakers": 2, "found": 1 + index}
        about |= {"miss": 1.0, "false_alarm": 0.5, "confusion": 0.5 * index, "scored": 5.0}
        if not index:
            sides = {
                "reference": [[0, 5, "ann"], [5, 10, "bob"]],
                "hypothesis": [[5, 9, "s1"], [0, 1, "s2"], [0, 1, "s3"]],
            }
            about |= {**sides, "audio": "recording-1"}
        log.add(index, 0.3 + 0.1 * index, (1.5 + 0.5 * index, 5.0), "", about, str(2 + index // 2))
    run = write_run(tmp_path / "d", "diarization", make_summary("der", log.seen()), {"val_der": 0.4})
    write_sound(run, "val_recording-1")
    page = run_page(read_facts(run))
    assert 'style="left:50.0%;width:40.0%"' in page
    assert 'class="lane c1" role="img" aria-label="hypothesis, s1: speaks 4.0 s"' in page  # bob's colour
    assert 'class="lane cx" role="img" aria-label="hypothesis, s3: speaks 1.0 s"' in page  # nobody's
    assert page.index("timeline") < page.index("<audio")
    shown = get_text(page)
    assert (
        shown.index("meeting 210.02350.0 %")
        < shown.index("meeting 110.02240.0 %")
        < shown.index("meeting 010.02130.0 %")
    )
    assert "2235.00 %" in shown  # of two speakers: two recordings
    assert "3150.00 %" in shown


SHOWN: dict[str, dict[str, Any]] = {
    "asr": {"examples": [{"index": [0], "error": 1, "reference": "said", "hypothesis": "TAG", "audio": "sound"}]},
    "classification": {"examples": [{"index": [0], "error": 1, "text": "TAG", "class": "a", "predicted": "b"}]},
    "diarization": {
        "examples": [
            {
                "index": [0],
                "error": 1,
                "name": "TAG",
                "speakers": 2,
                "reference": [],
                "hypothesis": [],
                "audio": "sound",
            }
        ]
    },
    "lm": {"samples": ["TAG"], "phenomena": {"of TAG": [1, 2]}},
    "seq2seq": {"examples": [{"index": [0], "error": 1, "source": "s", "hypothesis": "TAG", "references": ["r"]}]},
    "tts": {"examples": [{"index": [0], "error": 1, "text": "TAG"}], "spoken": ["also TAG"]},
}
"""The contents of each task's summary; TAG differs by step."""
SOUNDS = {"asr": "sound", "diarization": "sound", "tts": "spoken-1"}


@pytest.mark.parametrize("task", SHOWN)
def test_examples_sounds_pictures_and_groups_are_of_the_checkpoint_that_the_figures_are_of(task: str, tmp_path: Path):
    """The best of three evaluations is the first: nothing on the page is of the last one without saying so."""
    summary = json.dumps(SHOWN[task])
    run = write_run(tmp_path / "run", task, json.loads(summary.replace("TAG", "BEST")), {"val_loss": 1.0})
    (run / "pictures" / "val_examples" / "step-00000008.json").write_text(summary.replace("TAG", "NEWEST"))
    later = {"kind": "evaluation", "step": 8, "scheduled": True, "val_loss": 2.0, "val_wer/en": 0.5}
    first = {**later, "step": 4, "val_loss": 1.0, "val_wer/en": 0.25, "val_expert_use/0": 0.125}
    records = [first, {**later, "val_expert_use/0": 0.75}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    baselines = {"valid": {"figure": "loss", "figures": {"the commonest class": {"loss": 3.0}}}}
    (run / "baselines.json").write_text(json.dumps(baselines))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best").write_text("step-00000004\n")
    files = {"val_drawn": ("png", b"\x89PNG"), f"val_{SOUNDS.get(task, 'sound')}": ("wav", b"RIFF")}
    for name, (ending, head) in files.items():
        (run / "pictures" / name).mkdir()
        for step, content in ((2, b"unchanged since"), (8, b"of the newest")):
            (run / "pictures" / name / f"step-{step:08d}.{ending}").write_bytes(head + content)
    page = run_page(read_facts(run))
    shown = get_text(page)
    assert "validation, step 4 (the best checkpoint)" in shown
    assert "BEST" in shown
    assert "NEWEST" not in shown.replace("Written at step 8NEWEST", "")
    assert page.count('<details open="">') == (task == "lm")
    assert "4 (best)" in shown
    assert "By group, at step 4groupval_wer" in shown
    assert ("Routing, step 4" in shown) == ("012.5 %" in shown) == (task == "asr")
    assert "this run, step 41" in shown
    for _, head in files.values():
        assert base64.b64encode(head + b"unchanged since").decode() in page
        assert base64.b64encode(head + b"of the newest").decode() not in page


def test_examples_of_another_step_than_the_figures_say_so(tmp_path: Path):
    run = write_run(tmp_path / "run", "lm", {"samples": ["some text"]}, {"val_loss": 1.0})
    record = {"kind": "evaluation", "step": 3, "scheduled": True, "val_loss": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n" + (run / "metrics.jsonl").read_text())
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best").write_text("step-00000003\n")
    title = "validation, step 4 (the newest; of step 3, which the metrics are of, none were kept)"
    assert title in get_text(run_page(read_facts(run)))


def test_runs_are_compared_on_the_same_examples_alone(tmp_path: Path):
    better, worse = [0, 1, 2, 1] * 30, [1, 2, 3, 3] * 30
    first = write_run(tmp_path / "first", "asr", recognised(worse), {"val_wer": 0.225})
    second = write_run(tmp_path / "second", "asr", recognised(better), {"val_wer": 0.1})
    third = write_run(tmp_path / "third", "asr", recognised(better[:-1]), {"val_wer": 0.1})
    facts = [read_facts(run) for run in (first, second, third)]
    page = get_text(comparison_page(facts))
    assert "second10.00 %-12.50 points" in page
    assert "&lt; 0.001" in comparison_page(facts)
    assert "third wasn't evaluated on the same examples as first" in page
    ids = ("options", "charts", "differences", "figures")
    places = [comparison_page(facts).find(f'<h2 id="{one}"') for one in ids]
    assert places == sorted(places)
    assert min(places) > 0


def say_best(*runs: Path) -> str:
    facts = [read_facts(run) for run in runs]
    return find_best(facts, [one.name for one in facts])


def test_a_comparison_says_in_words_which_run_is_best_and_by_how_much(tmp_path: Path):
    worse, better, alike = [1, 2, 3, 3] * 30, [0, 1, 2, 1] * 30, [1, 0, 1, 2] * 30
    runs = {
        name: write_run(tmp_path / name, "asr", recognised(errors), {"val_wer": sum(errors) / 1200})
        for name, errors in (("worse", worse), ("better", better), ("alike", alike))
    }
    first, second = (np.array([(one, 10) for one in errors]) for errors in (worse, better))
    low, high = paired_bootstrap(first, second, compute_mean, 2000).interval or (0, 0)
    known = f"(95 % interval over examples: {100 * low:.2f} to {100 * high:.2f})"
    said = f"better is best: wer 10.00 %, 12.50 points lower than worse {known}, on the same 120 examples."
    assert say_best(runs["worse"], runs["better"]) == say_best(runs["better"], runs["worse"]) == said
    assert f'<p class="result">{said}</p>' in comparison_page([read_facts(runs["worse"]), read_facts(runs["better"])])
    assert say_best(runs["better"], runs["alike"]) == (
        "better and alike are equally good: wer 10.00 % on the same 120 examples."
    )


def test_a_difference_whose_interval_includes_none_is_not_a_best(tmp_path: Path):
    first, second = [0, 4] * 20, [4, 0] * 19 + [0, 4]
    second[0] = 3
    runs = [
        write_run(tmp_path / name, "asr", recognised(errors), {"val_wer": 0.2})
        for name, errors in (("one", first), ("two", second))
    ]
    said = say_best(*runs)
    assert said.startswith("No run is clearly best: two has wer 19.75 %, 0.25 points lower than one, but the 95 % ")
    assert said.endswith(", includes 0.")


def test_without_scores_of_the_same_examples_the_best_is_that_of_a_common_figure(tmp_path: Path):
    runs = {
        name: write_run(tmp_path / name, task, {}, metrics)
        for name, task, metrics in (
            ("one", "classification", {"val_accuracy": 0.5, "val_loss": 1.0}),
            ("two", "classification", {"val_accuracy": 0.75, "val_loss": 2.0}),
            ("other", "asr", {"val_wer": 0.2}),
            ("empty", "classification", {"own": 0.2}),
        )
    }
    why = "(no interval: they kept no scores of the same examples)"
    assert say_best(runs["one"], runs["two"]) == f"two is best: val_accuracy 75.00 %; one has 50.00 % {why}."
    assert say_best(runs["one"], runs["other"]) == (
        "Runs of different tasks (classification, asr): no metric says which is best."
    )
    assert say_best(runs["one"], runs["empty"]) == "No metric that all of them have says which is best."


@pytest.mark.parametrize(("micro", "shown"), [(0.5, False), (0.25, True)])
def test_a_figure_that_repeats_another_is_shown_once(micro: float, shown: bool, tmp_path: Path):
    """micro F1 is the accuracy, where each text has one label; where it has several, both are shown."""
    metrics = {"val_loss": 1.0, "val_accuracy": 0.5, "val_micro_f1": micro}
    run = write_run(tmp_path / "run", "classification", {}, metrics)
    page = run_page(read_facts(run))
    assert "val_accuracy" in page
    assert ("val_micro_f1" in page) == shown
    assert ("val_micro_f1" in model_card(run, AboutExport("hf", 4, "out"))) == shown
    panels = draw_histories({"run": read_history(run)}, "title").axes
    assert [one.get_title() for one in panels] == ["loss", "val_accuracy, %"] + ["val_micro_f1, %"] * shown


def test_a_unit_is_said_once(tmp_path: Path):
    run = write_run(tmp_path / "run", "tts", {}, {"val_mcd_db": 6.5, "val_f0_rmse_hz": 20.0})
    lines = (run / "metrics.jsonl").read_text().splitlines()
    evaluations = [json.dumps({**json.loads(lines[-1]), "step": step}) for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], *evaluations]))
    titles = re.findall(r'<h3 id="chart-\d+">([^<]*)</h3>', run_page(read_facts(run)))
    assert titles[:3] == ["loss", "val_mcd_db", "val_f0_rmse_hz"]


def test_wilsons_interval_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    for right, number in ((0, 3), (5, 7), (60, 100), (999, 1000), (4, 4)):
        expected = stats.binomtest(right, number).proportion_ci(method="wilson")
        assert wilson(right, number) == pytest.approx(tuple(expected), abs=1e-7)


@pytest.mark.parametrize(
    ("reference", "hypothesis"), [("a b c", ""), ("", "a b"), ("a b c d", "b c x d d"), ("a", "a")]
)
def test_an_alignment_has_all_words_and_the_fewest_errors(reference: str, hypothesis: str):
    jiwer = pytest.importorskip("jiwer")
    shown = str(aligned_texts(reference, hypothesis)).removeprefix('<p class="aligned">').removesuffix("</p>").split()
    left = [one for one in shown if not one.startswith("<ins>")]
    right = [one for one in shown if not one.startswith("<del>")]
    assert " ".join(left).replace("<del>", "").replace("</del>", "") == reference
    assert " ".join(right).replace("<ins>", "").replace("</ins>", "") == hypothesis
    if reference:
        found = jiwer.process_words(reference, hypothesis)
        marked = (len(left) - found.hits, len(right) - found.hits)
        assert marked == (found.substitutions + found.deletions, found.substitutions + found.insertions)
