"""``vaak init``: recipes are copied; for data, a YAML is written that trains, and says why its sizes were chosen."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import downloaded
from commands import Commands
from tiny_whisper import write_whisper
from vaak.config.load import load
from vaak.config.yaml.recipes import recipes
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey, SplitSurvey
from vaak.runs.starter import list_tasks, starter

GIB = 1 << 30
SMALL = {
    "asr": ["model.conformer={d_model: 32, num_layers: 1}"],
    "tts": ["model.global_config={d_model: 32, num_layers: 1}", "data.samples=[]"],
    "vocoder": ["model={width: 32, num_layers: 1, inner_width: 64}", "data.num_samples=0"],
    "diarization": ["model={d_model: 32, num_layers: 1, num_heads: 2}"],
    "seq2seq": ["model.global_config={d_model: 32, num_layers: 1}", "data.decoding.valid_examples=2"],
}
QUICK = ("classification",)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "task", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in list_tasks()]
)
def test_the_yaml_for_an_example_trains(task: str, vaak, tmp_path: Path, commands: Commands, monkeypatch):
    monkeypatch.setattr("vaak.runs.example_data.NUM_TEXTS", 600)
    code, out, errors = vaak("init", task, "--example", "--hardware", "cpu")
    assert code == 0, errors
    assert out.splitlines()[0] == f"wrote {task}.yml, {task}-example"
    text = (tmp_path / f"{task}.yml").read_text()
    assert f"task: {task}\n" in text
    assert text.count("# ") >= 8, "each choice says why"
    assert max(map(len, text.splitlines()[1:])) <= 80, "all but the line of the schema, whose place is the machine's"
    assert load([f"{task}.yml"]).warnings == []
    asked = ["train", f"{task}.yml", "training.max_steps=8", "training.logging.interval=1", *SMALL.get(task, ())]
    ended = commands.start(asked, tmp_path, circumstances=["without pictures"]).wait(300)
    assert ended.status == 0, ended.errors
    records = map(json.loads, (tmp_path / f"runs/{task}-example/metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert len(losses) == 8
    if task == "lm":
        assert losses[-1] < losses[0]
    assert vaak("init", task, "--example")[2].startswith(f"{task}.yml exists already")


@pytest.mark.slow
def test_that_of_a_gpu_trains_too(vaak, tmp_path: Path, commands: Commands):
    """A Whisper, here a tiny one, with low-rank adapters."""
    write_whisper(tmp_path / "whisper")
    assert vaak("init", "asr", "--example", "--hardware", "24gb")[0] == 0
    text = (tmp_path / "asr.yml").read_text()
    assert "base: openai/whisper-large-v3-turbo" in text
    (tmp_path / "asr.yml").write_text(text.replace("openai/whisper-large-v3-turbo", str(tmp_path / "whisper")))
    asked = ["train", "asr.yml", "training.max_steps=2", "data.decoding={valid_examples: 1, max_new_tokens: 4}"]
    ended = commands.start(asked, tmp_path, circumstances=["without pictures"]).wait(300)
    assert ended.status == 0, ended.errors


@pytest.mark.parametrize("kind", downloaded.WRITERS)
def test_data_as_downloaded_give_a_yaml(kind: str, vaak, tmp_path: Path):
    downloaded.WRITERS[kind](tmp_path / "corpus")
    code, _, errors = vaak("init", "--data", "corpus", "--output", "mine.yml")
    assert code == 0, errors
    code, out, errors = vaak("config", "check", "mine.yml")
    assert (code, out.startswith("valid: task asr")) == (0, True), errors


TABLES = {
    "reviews.csv": (
        "text,label\n" + "".join(f"good {n},yes\nbad {n},no\n" for n in range(9)),
        "classification",
        ["label_columns"],
    ),
    "faq.jsonl": (
        "".join(f'{{"sentence": "a {n}", "intent": {n % 2}}}\n' for n in range(5)),
        "classification",
        ["text_column", "label_columns"],
    ),
    "pairs.tsv": (
        "en\thi\n" + "".join(f"boy {n}\tलड़का {n}\n" for n in range(9)),
        "seq2seq",
        ["source_column", "target_column"],
    ),
    "news.txt": ("".join(f"line {n} of news\n" for n in range(9)), "lm", []),
}


@pytest.mark.parametrize("name", TABLES)
def test_texts_have_the_task_that_their_columns_are_for(name: str, vaak, tmp_path: Path):
    content, task, columns = TABLES[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(content)
    code, _, errors = vaak("init", "--data", "data")
    assert code == 0, errors
    loaded = load(["begin.yml"])
    assert loaded.experiment.task == task
    assert all(f"data.corpus.{column}" in loaded.given for column in columns)
    assert vaak("init", "lm", "--data", "data")[0] == 0, "texts are texts"
    assert load(["lm.yml"]).experiment.task == "lm"
    if task == "lm":
        code, _, errors = vaak("init", "classification", "--data", "data")
        assert (code, errors.splitlines()[-1]) == (
            2,
            "classification needs a table with a column text and a column label, and there is text",
        )


def survey(characters: int = 0, hours: float = 0.0, language: str | None = None) -> list[CorpusSurvey]:
    split = SplitSurvey(num_entries=1000, num_characters=characters, lengths=[60] * 50)
    if hours:
        split.durations, split.num_texts = [hours * 3.6] * 1000, 1000
        split.rates[16000] = 1000
        split.languages.update({language: 1000} if language else {})
        options: dict[str, Any] = {"type": "json", "corpus_dir": "."}
    else:
        options = {"corpus": {"type": "text", "train": ["a.txt"]}}
    return [CorpusSurvey(Path("corpus"), "x", options, {"train": split, "valid": split})]


def gpu(gib: int) -> Device:
    return Device("cuda", "a GPU", gib * GIB, gib * GIB, (9, 0))


CPU = Device("cpu", "2 cores", 16 * GIB, 16 * GIB)


def chosen(tmp_path: Path, corpora: list[CorpusSurvey], device: Device) -> Any:
    (tmp_path / "x.yml").write_text(starter(corpora, device))
    return load([tmp_path / "x.yml"]).experiment


def test_sizes_grow_with_the_data_as_far_as_the_device_allows(tmp_path: Path):
    widths = [chosen(tmp_path, survey(10**n), gpu(80)).model.d_model for n in range(4, 11)]
    assert widths == sorted(widths)
    assert (widths[0], widths[-1]) == (64, 768)
    assert chosen(tmp_path, survey(10**10), gpu(16)).model.d_model == 512
    assert chosen(tmp_path, survey(10**10), CPU).model.d_model == 256
    tokens = [chosen(tmp_path, survey(10**9), one).training.batching.max_tokens for one in (CPU, gpu(8), gpu(80))]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("hours", "device", "base", "lora", "language"),
    [
        (5, CPU, "scratch", False, "en"),
        (5, gpu(8), "openai/whisper-small", True, "hi"),
        (300, gpu(24), "openai/whisper-large-v3-turbo", False, "hi"),
        (5, gpu(24), "openai/whisper-large-v3-turbo", True, "hi"),
    ],
)
def test_recognition_begins_with_what_the_device_can_train(hours, device, base, lora, language, tmp_path: Path):
    experiment = chosen(tmp_path, survey(hours=hours, language="hi_IN"), device)
    assert (experiment.model.base, experiment.model.lora is not None) == (base, lora)
    assert (experiment.model.architecture == "ctc") == (device.kind == "cpu")
    assert experiment.data.language == language
    if base != "scratch":  # a Whisper's window isn't cut, and a step has room for it
        assert (experiment.model.window, experiment.data.max_duration) == (None, 30)
        assert experiment.training.batching.max_duration >= 30


@pytest.mark.parametrize("name", ["quickstart", "lm/preferences", "diarization/ami"])
def test_a_recipe_is_copied_with_what_it_needs(name: str, vaak, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("VAAK_DATA", "data")
    code, out, errors = vaak("init", name, "--json")
    assert code == 0, errors
    written = json.loads(out)["written"]
    assert sorted(written) == sorted(path.name for path in tmp_path.iterdir())
    assert (tmp_path / written[0]).name == recipes()[name].name
    assert load([written[0]]).experiment.model == load([recipes()[name]]).experiment.model
    code, _, errors = vaak("init", name)
    assert (code, errors.strip().endswith("exists already; give another file by --output")) == (2, True)


WRONG = {
    "nothing": "nothing: expected a task (",
    "quikstart": "did you mean quickstart?",
    "multitask": "multitask: vaak init multitask/quickstart copies one to start from",
    "lm": "where are the data? vaak init lm --data FOLDER, or --example makes some",
    "lm --data none": "none: no such file or folder",
    "lm --data . --hardware abacus": "--hardware is abacus; expected auto, cpu, mps, or the memory of a GPU",
    "quickstart --example": "quickstart is a recipe, which is copied unchanged",
    "asr --data texts": "asr needs audio with its texts, and there is text",
    "lm --data texts --output no/where.yml": "--output no/where.yml can't be written",
    "lm --example --data texts": "texts isn't empty; give another folder by --data",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_mistakes_are_said_in_a_line_and_nothing_is_written(arguments: str, vaak, tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("".join(f"line {n}\n" for n in range(5)))
    code, out, errors = vaak("init", *arguments.split())
    assert (code, out) == (2, "")
    assert WRONG[arguments] in errors.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def answered(arguments: list[str], answers: list[str], folder: Path) -> str:
    """Run a command in a terminal, answer its questions, and return everything displayed."""
    code = "import sys; from vaak.cli.main import main; sys.argv = ['vaak', *sys.argv[1:]]; main()"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    os.write(leader, "".join(f"{one}\n" for one in answers).encode())

    def pieces() -> Iterator[bytes]:
        try:
            while piece := os.read(leader, 4096):
                yield piece
        except OSError:  # the end of a terminal
            return

    shown = b"".join(pieces()).decode()
    os.close(leader)
    assert process.wait() == 0, shown
    return shown


def test_a_terminal_is_asked_three_questions(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    shown = answered(["init"], ["lm", "texts", "8gb"], tmp_path)
    assert "Which task?" in shown
    assert "Where are the data?" in shown
    assert "On what will it train?" in shown
    assert "cuda (a GPU of" in (tmp_path / "lm.yml").read_text()


def test_editors_find_the_schema_of_what_is_written(vaak):
    Path("texts.txt").write_text("".join(f"a sentence, number {number}\n" for number in range(60)))
    assert vaak("init", "lm", "--data", "texts.txt", "--hardware", "cpu")[0] == 0
    assert vaak("init", "asr/quickstart", "-o", "asr.yml")[0] == 0
    for file, task in (("lm.yml", "lm"), ("asr.yml", "asr")):
        first = Path(file).read_text().splitlines()[0]
        schema = Path(first.removeprefix("# yaml-language-server: $schema="))
        assert json.loads(schema.read_text())["properties"]["task"]["const"] == task
        load([file])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("speech", "asr (automatic speech recognition), tts (text to speech)?"),
        ("translate", "seq2seq (translation)?"),
        ("asrr", "asr?"),
    ],
)
def test_a_word_that_is_no_task_leads_to_one(vaak, word: str, meant: str):
    code, _, said = vaak("init", word, "--example")
    assert code == 2
    assert said.endswith(f"did you mean {meant}\n")


@pytest.mark.parametrize(("each", "is_little"), [(4, True), (120, False)])
def test_a_classifier_of_few_texts_is_told_to_compare_with_a_pretrained_encoder(
    each: int, is_little: bool, vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    rows = [f"{word} number {one},{word}" for word in ("pay", "call", "play") for one in range(each)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    code, out, err = vaak("init", "classification", "--data", "data", "--output", "my.yml")
    assert code == 0, out + err
    written = " ".join(line.strip(" #") for line in (tmp_path / "my.yml").read_text().splitlines())
    said = "a pretrained encoder is usually better (docs/classification.md); to compare: vaak baseline"
    assert (said in written) == is_little
