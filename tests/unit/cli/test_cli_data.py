"""``vaak data list``, ``get`` and ``prepare``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_runs
from tiny_audio import write_audio


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_ljspeech(folder: Path) -> None:
    write_audio(folder / "wavs" / "LJ001-0001.wav", 0.3, 22050)
    (folder / "metadata.csv").write_text("LJ001-0001|So it is|So it is\n")


def test_prepare_then_list(vaak, tmp_path: Path):
    write_ljspeech(tmp_path / "data" / "ljspeech")
    code, out, _ = vaak("data", "prepare", "ljspeech")
    assert (code, out.split()) == (0, ["all", "1", "cuts", "manifests/ljspeech/cuts/all.jsonl"])
    code, out, _ = vaak("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["ljspeech"] == {"name": "ljspeech", "download": True, "on_disk": True, "prepared": True, "options": []}
    assert not rows["ami"]["on_disk"]
    assert "mic" in rows["ami"]["options"]
    code, out, _ = vaak("data", "list")
    lines = {line.split()[0]: line.split(maxsplit=1)[1:] for line in out.splitlines()}
    assert lines["ljspeech"] == ["download, on disk, prepared"]
    assert lines["dihard3"] == []


def test_mistakes_are_one_line_and_exit_2(vaak, tmp_path: Path):
    (tmp_path / "data" / "ami").mkdir(parents=True)
    for arguments, message in {
        ("prepare", "ljspech"): "Lhotse has no recipe ljspech; did you mean 'ljspeech'?",
        ("prepare", "yesno"): "recipe yesno: no corpus in data/yesno",
        ("prepare", "ami", "mic"): "'mic' is not of the form key=value",
        ("prepare", "ami", "mike=sdm"): "recipe ami has no option 'mike'",
        ("prepare", "ami"): "recipe ami: data/ami can't be prepared: ValueError: No annotations directory specified",
        ("get", "dihard3"): "recipe dihard3: Lhotse can't download this corpus",
        (
            "get",
            "yesno",
            "url=http://127.0.0.1:9/yesno.tar.gz",
        ): "http://127.0.0.1:9/yesno.tar.gz: can't be downloaded (",
    }.items():
        code, _, errors = vaak("data", *arguments)
        assert code == 2, arguments
        assert errors.splitlines()[-1].startswith(message), (arguments, errors)
    assert [path for path in tmp_path.rglob("*") if path.name != "ami"] == [tmp_path / "data"]


def test_the_commands_help_imports_neither_torch_nor_lhotse():
    script = (
        "import sys; import vaak.cli.data; "
        "assert not {'torch', 'lhotse', 'soundfile', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_preprocess_prepares_without_training_and_training_finds_it(vaak, tiny_text, tmp_path):
    run = tmp_path / "run"
    code, out, errors = vaak("data", "preprocess", tiny_text / "tiny.yml", f"run_dir={run}")
    assert (code, out) == (0, f"prepared data are in {run / 'prepared'}\n"), errors
    assert not (run / "metrics.jsonl").exists()
    made = (run / "prepared" / "prepared.json").stat().st_mtime_ns
    code, _, errors = vaak("train", tiny_text / "tiny.yml", f"run_dir={run}")
    assert code == 0, errors
    assert "are up to date" in (run / "train.log").read_text()
    assert (run / "prepared" / "prepared.json").stat().st_mtime_ns == made


def test_preprocessed_data_stay_until_they_are_trained_on(vaak, tiny_text, tmp_path):
    run = tmp_path / "runs" / "mine"
    assert vaak("data", "preprocess", tiny_text / "tiny.yml", f"run_dir={run}")[0] == 0
    assert vaak("runs", "clean", run.parent, "--yes")[0] == 0
    assert (run / "prepared" / "prepared.json").exists()
    [listed] = json.loads(vaak("runs", run.parent, "--all", "--json")[1])
    assert listed["state"] == "prepared"
    assert "vaak runs clean removes those not begun" in vaak("runs", run.parent)[1]


def test_data_that_changed_are_prepared_next_to_the_run_that_has_others(vaak, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    tiny_runs.write_corpus(folder)
    options = (folder / "tiny.yml", f"run_dir={tmp_path / 'run'}")
    code, out, errors = vaak("train", *options, f"data.cache_dir={tmp_path / 'cache'}", "training.max_steps=1")
    assert code == 0, errors
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    first = (tmp_path / "run" / "prepared").resolve()
    text = folder / "train.txt"
    text.write_text(text.read_text(encoding="utf-8") * 2, encoding="utf-8")
    code, out, errors = vaak("data", "preprocess", *options, "--output", tmp_path / "cache")
    assert code == 0, errors
    made = Path(out.removeprefix("prepared data are in ").strip())
    assert (made.parent, made == first) == (tmp_path / "cache", False)
    assert (made / "prepared.json").exists()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    code, out, errors = vaak("data", "preprocess", *options)
    assert code == 2
    assert "holds a run, which keeps the data that it was trained with; give a folder" in errors


def test_preprocess_with_the_research_kits_options(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    examples = [{"text": f"राम ने {number} घर देखे ।", "label": 0} for number in range(40)]
    (tmp_path / "raw" / "data.json").write_text(json.dumps(examples), encoding="utf-8")
    options = ("--input_dir", "raw", "--output_dir", "processed", "--config", "data_config.yaml")
    for corpus in ("corpus: {type: json}, ", ""):
        (tmp_path / "data_config.yaml").write_text(f"data: {{{corpus}tokenizer: {{type: character}}}}\n")
        code, out, errors = vaak("data", "preprocess", *options)
        assert code == 0, errors
        assert "task: lm, by the keys of the configuration; task=… prepares for another\n" in errors
        assert "task lm reads the texts alone: 'label' of data.corpus.train isn't used; task: classification" in errors
        [made] = (path for path in (tmp_path / "processed").iterdir() if path.is_dir())
        assert out == f"prepared data are in {made}\n"
        documents = json.loads((made / "prepared.json").read_text())["statistics"]
        assert sum(split["documents"] for split in documents.values()) == 40


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_preprocess_says_what_becomes_of_labels(vaak, tmp_path, monkeypatch, ending):
    """Where the task is given, it isn't said; labels that it doesn't read are, and where it reads them nothing is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    examples = [{"text": f"राम ने {number} घर देखे ।", "label": number % 2} for number in range(40)]
    rows = ["text,label", *(f"{one['text']},{one['label']}" for one in examples)]
    text = json.dumps(examples) if ending == "json" else "\n".join(rows) + "\n"
    (tmp_path / "raw" / f"data.{ending}").write_text(text, encoding="utf-8")
    (tmp_path / "c.yml").write_text("data: {tokenizer: {type: character}}\n")
    options = ("--input_dir", "raw", "--output_dir", "made", "--config", "c.yml", "task=lm")
    code, _, errors = vaak("data", "preprocess", *options)
    assert code == 0, errors
    assert "by the keys of" not in errors
    assert "'label' of data.corpus.train isn't used" in errors
    code, _, errors = vaak("data", "preprocess", *options[:-1], "task=classification")
    assert code == 0, errors
    assert "isn't used" not in errors


def test_preprocess_reads_the_folder_that_it_is_given_or_fails(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text("task: lm\ndata: {corpus: {type: grammar}}\n")
    (tmp_path / "raw" / "below").mkdir(parents=True)
    for folder, words in (("raw", "raw has no files"), ("gone", "no such folder: gone")):
        code, _, errors = vaak("data", "preprocess", "run.yml", "--input-dir", folder)
        assert (code, errors.count("\n")) == (2, 1)
        assert words in errors
    (tmp_path / "raw" / "data.txt").write_text("एक दो\n")
    code, _, errors = vaak("data", "preprocess", "run.yml", "--input-dir", "raw")
    assert (code, errors.count("\n")) == (2, 1)
    assert "data.corpus.train: is read by the type text, json, csv, parquet, chat, preferences only" in errors
