"""Task files of lm-eval give the figures of lm-eval's own transformers model on the exported folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tiny_runs
from vaak.core.errors import DataError
from vaak.runs.open_run import open_run
from vaak.text.grammar import minimal_pairs, sentences

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports

CHOICES = """\
task: which_end
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{begin}}"
doc_to_choice: "{{ends}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WHOLE = """\
task: whole_texts
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
"""
ANSWERS = """\
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{begin}}"
doc_to_target: "{{ends[0]}}"
generation_kwargs: {until: ["।", "\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
PAIRS = """\
task: pairs
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/pairs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
metric_list: [{metric: acc}]
"""


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, task files and their data."""
    folder = tmp_path_factory.mktemp("harness")
    tiny_runs.write_corpus(folder)
    tiny_runs.train(folder, folder / "run", "training.max_steps=60")
    lines = list(sentences("test", 30, 0))
    ends = [line.split(" ", 2)[2] for line in lines]
    write_lines(
        folder / "choices.jsonl",
        [
            {"begin": " ".join(line.split(" ")[:2]), "ends": [ends[number], ends[number - 1]], "right": 0}
            for number, line in enumerate(lines)
        ],
    )
    write_lines(folder / "texts.jsonl", [{"text": "\n".join(lines[first : first + 7])} for first in (0, 7, 14)])
    pairs = [{"sentence_good": one.sentence_good, "sentence_bad": one.sentence_bad} for one in minimal_pairs(3, seed=0)]
    write_lines(folder / "pairs.jsonl", pairs)
    (folder / "tasks").mkdir()
    for name, text in (("choices", CHOICES), ("whole", WHOLE), ("answers", ANSWERS)):
        (folder / "tasks" / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


Vaak = Callable[..., tuple[int, str, str]]


def theirs(folder: Path, tasks: list[str], include: Path | None = None, *, add_bos_token: bool) -> dict[str, float]:
    """Figures of the harness' own model of an exported folder."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = HFLM(pretrained=str(folder), add_bos_token=add_bos_token, device="cpu", batch_size=4)
    manager = TaskManager(include_path=None if include is None else str(include), include_defaults=False)
    found = simple_evaluate(model=model, tasks=tasks, task_manager=manager, bootstrap_iters=0, log_samples=False)
    return {
        f"{key.partition(',')[0]}/{task}": value
        for task, values in found["results"].items()
        for key, value in values.items()
        if key.endswith(",none") and isinstance(value, float) and "stderr" not in key
    }


@pytest.mark.slow
def test_figures_are_those_of_the_exported_folder(made: Path, vaak: Vaak, tmp_path: Path) -> None:
    tasks = "which_end,whole_texts,answers"
    given = ["--tasks", tasks, "--include-path", made / "tasks", "--batch-size", 7, "--output", tmp_path / "found.json"]
    code, said, errors = vaak("lm-eval", made / "run", *given)
    assert code == 0, errors
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["protocol"]["samples"] == {"which_end": 30, "whole_texts": 3, "answers": 30}
    assert f"acc/which_end {100 * report['metrics']['acc/which_end']:.2f} %" in " ".join(said.split())
    assert vaak("export", made / "run", "--format", "hf", "--output", tmp_path / "hf")[0] == 0
    expected = theirs(tmp_path / "hf", ["which_end", "answers"], made / "tasks", add_bos_token=True)
    expected |= theirs(tmp_path / "hf", ["whole_texts"], made / "tasks", add_bos_token=False)
    assert report["metrics"] == pytest.approx(expected, rel=1e-5)
    assert {*expected} >= {"acc/which_end", "bits_per_byte/whole_texts", "exact_match/answers"}
    assert 0.0 < expected["acc/which_end"] < 1.0


@pytest.mark.slow
def test_tasks_of_the_harness_with_data_from_a_file(made: Path, vaak: Vaak, tmp_path: Path) -> None:
    import lm_eval.tasks

    given = ["--data", f"blimp_causative={made / 'pairs.jsonl'}", "--limit", 20, "--json"]
    code, said, errors = vaak("lm-eval", made / "run", "--tasks", "blimp_causative", *given)
    assert code == 0, errors
    found = json.loads(said)
    files = {split: str(made / "pairs.jsonl") for split in ("train", "validation", "test")}
    other = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    template = Path(lm_eval.tasks.__file__).parent / "blimp" / "causative.yaml"
    (tmp_path / "own.yaml").write_text(json.dumps({"include": str(template), **other}))
    assert vaak("export", made / "run", "--format", "hf", "--output", tmp_path / "hf")[0] == 0
    whole = json.loads(vaak("lm-eval", made / "run", "--tasks", tmp_path / "own.yaml", "--json")[1])["metrics"]
    assert whole == pytest.approx(theirs(tmp_path / "hf", [str(tmp_path / "own.yaml")], add_bos_token=True))
    assert found["protocol"]["samples"] == {"blimp_causative": 20}
    for name, said_of in (
        ("blimp_causativ", "; did you mean 'blimp_causative'?"),
        ("blimp_causative", "--data NAME=FILE"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HUB_OFFLINE", "1")
            code, _, errors = vaak("lm-eval", made / "run", "--tasks", name)
        assert code == 2
        assert said_of in errors.splitlines()[-1]


@pytest.mark.slow
def test_data_in_tables_are_read_as_everywhere(made: Path, vaak: Vaak, tmp_path: Path) -> None:
    """Quotation marks that are text, semicolons and UTF-16: Hugging Face's reader of CSV fails, or loses rows."""
    pairs = [json.loads(line) for line in (made / "pairs.jsonl").read_text().splitlines()][:8]
    pairs[2]["sentence_good"], pairs[5]["sentence_good"] = (
        f'"{pairs[2]["sentence_good"]}',
        f'"{pairs[5]["sentence_good"]}',
    )
    write_lines(tmp_path / "pairs.jsonl", pairs)
    rows = [("sentence_good", "sentence_bad"), *(tuple(one.values()) for one in pairs)]
    (tmp_path / "pairs.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "pairs.csv").write_bytes("".join(";".join(row) + "\n" for row in rows).encode("utf-16"))
    found = []
    for name in ("pairs.jsonl", "pairs.tsv", "pairs.csv"):
        (tmp_path / "pairs.yaml").write_text(PAIRS)
        data = f"pairs={tmp_path / name}"
        code, said, errors = vaak(
            "lm-eval", made / "run", "--include-path", tmp_path, "--tasks", "pairs", "--data", data, "--json"
        )
        assert code == 0, errors
        found.append(json.loads(said))
    assert found[0] == found[1] == found[2]
    assert found[0]["protocol"]["samples"] == {"pairs": 8}
    (tmp_path / "pairs.tsv").write_text("sentence_good\tsentence_bad\na\tb\nc\n")
    code, _, errors = vaak(
        "lm-eval", made / "run", "--include-path", tmp_path, "--tasks", "pairs", "--data", data.replace("csv", "tsv")
    )
    assert code == 2
    assert "pairs.tsv:3: 1 columns, but the first row has 2" in errors


@pytest.mark.slow
def test_columns_of_numbers_are_numbers(tmp_path: Path) -> None:
    from vaak.tasks.lm.evaluation_harness import _read_rows

    path = tmp_path / "a.csv"
    path.write_text("text;label;share;is;code\nNA;0;0.5;true;007\nnull;1;2;False;1\n3;;;;2\n")
    assert list(_read_rows(path)) == [
        {"text": "NA", "label": 0, "share": 0.5, "is": True, "code": "007"},
        {"text": "null", "label": 1, "share": 2.0, "is": False, "code": "1"},
        {"text": "3", "label": None, "share": None, "is": None, "code": "2"},
    ]
    (tmp_path / "a.txt").write_text("a\u2028b\r\nc\n", encoding="utf-16")
    assert list(_read_rows(tmp_path / "a.txt")) == [{"text": "a\u2028b"}, {"text": "c"}]


def test_log_probabilities_are_sums_over_tokens_whatever_the_batch(made: Path) -> None:
    from vaak.tasks.lm.evaluation_harness import HarnessModel

    opened = open_run(made / "run", device="cpu")
    model: Any = opened.model
    pairs = [("एक दिन", " राजा"), ("", "लड़की घर जाती है ।"), ("क" * 200, " ख"), ("वह ", "आता है")]
    requests = [SimpleNamespace(args=pair) for pair in pairs]
    together, apart = (
        HarnessModel(opened.task, model, size).loglikelihood(requests, disable_tqdm=True) for size in (4, 1)
    )
    tokenizer = opened.task.tokenizer
    for (context, continuation), (found, _), (alone, _) in zip(pairs, together, apart, strict=True):
        whole = [tokenizer.bos_id, *tokenizer.encode(context + continuation)]
        number = len(whole) - 1 - len(tokenizer.encode(context.rstrip()))
        read = torch.tensor([whole[-49:]])
        with torch.no_grad():
            logits = model(read[:, :-1])[0, -number:]
        assert found == pytest.approx(-float(F.cross_entropy(logits, read[0, -number:], reduction="sum")), rel=1e-5)
        assert alone == pytest.approx(found, rel=1e-5)
    with pytest.raises(DataError, match=r"tokens to score, more than the 48 that the model reads"):
        HarnessModel(opened.task, model, 1).loglikelihood([SimpleNamespace(args=("क", "ख" * 200))], disable_tqdm=True)


def test_greedy_answers_end_where_the_task_says(made: Path) -> None:
    from vaak.tasks.lm.evaluation_harness import HarnessModel

    opened = open_run(made / "run", device="cpu")
    model = HarnessModel(opened.task, opened.model, 1)
    whole = {"until": [], "max_gen_toks": 8, "do_sample": False}
    (text,) = model.generate_until([SimpleNamespace(args=("एक", whole))])
    assert text
    assert model.generate_until([SimpleNamespace(args=("एक", whole))]) == [text]
    end = text.strip()[-1]
    (cut,) = model.generate_until([SimpleNamespace(args=("एक", whole | {"until": [end, "never"]}))])
    assert cut == text.split(end)[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", ","], "--tasks: expected names of tasks, or task files"),
        (["--tasks", "whole.yaml", "--data", "pairs.jsonl"], "--data pairs.jsonl: expected TASK=FILE"),
        (["--tasks", "whole.yaml", "--data", "whole.yaml=gone.jsonl"], "expected a file that ends in .json"),
        (["--tasks", "whole.yaml", "--data", "other=pairs.jsonl"], "--data: --tasks doesn't have 'other'"),
        (["--tasks", "whole_texts", "--include-path", "gone"], "--include-path gone: this is not a folder"),
        (
            ["--tasks", "code.yaml"],
            "code.yaml names Python code (!function), which would be executed: add --trust-code",
        ),
        (
            ["--tasks", "whole.yaml", "--output", "whole.yaml/found.json"],
            "--output: the folder whole.yaml can't be created",
        ),
        (["--tasks", "includes.yaml"], "hidden.txt names Python code (!function)"),
        (["--tasks", "damaged.yaml"], "--tasks: a task or its data can't be loaded"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, made: Path, vaak: Vaak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.yaml").write_text((made / "tasks" / "whole.yaml").read_text())
    (tmp_path / "code.yaml").write_text("task: mine\nprocess_docs: !function mine.docs\n")
    (tmp_path / "includes.yaml").write_text("task: mine\ninclude: hidden.txt\n")
    (tmp_path / "hidden.txt").write_text("%TAG !e! !func\n---\nprocess_docs: !e!tion mine.docs\n")
    (tmp_path / "damaged.yaml").write_text("task: mine\ndataset_path: json\ndataset_kwargs: {data_files: gone.jsonl}\n")
    code, _, errors = vaak("lm-eval", made / "run", *arguments)
    assert code == 2, errors
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors


CYCLER = "cycler.__init__.__globals__.os.popen('touch was_run').read()"
TEMPLATES: dict[str, dict[str, Any]] = {
    "text": {"doc_to_text": f"{{{{ {CYCLER} }}}}"},
    "target": {"doc_to_target": f"{{{{ {CYCLER} }}}}"},
    "choice": {"doc_to_choice": f"{{{{ {CYCLER} }}}}", "output_type": "multiple_choice", "doc_to_target": 0},
    "prefix": {"gen_prefix": f"{{{{ {CYCLER} }}}}"},
    "classes": {"doc_to_text": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
    "filter": {"doc_to_text": "{{ [text]|map('regex_replace', 't', 'x')|attr('__class__') }}"},
    "format": {"doc_to_text": "{{ '{0.__class__.__mro__}'.format(text) }}"},
    "changes the data": {"doc_to_text": "{% set _ = [text].append('x') %}{{ text }}"},
}


@pytest.mark.parametrize("place", TEMPLATES)
@pytest.mark.parametrize("trust", [[], ["--trust-code"]])
def test_templates_of_task_files_run_in_a_sandbox(
    place: str, trust: list[str], made: Path, vaak: Vaak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = dict.fromkeys(("train", "test"), str(made / "texts.jsonl"))
    about = {
        "task": "hostile", "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test",
        "output_type": "generate_until", "doc_to_text": "{{text[:9]}}", "doc_to_target": "x",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 2},
        **TEMPLATES[place],
    }  # fmt: skip
    (tmp_path / "hostile.yaml").write_text(json.dumps(about))
    code, _, errors = vaak("lm-eval", made / "run", "--tasks", "hostile.yaml", "--limit", 1, *trust)
    assert not (tmp_path / "was_run").exists()
    if place != "format":  # the sandbox leaves it empty there
        assert code == 2, errors
        assert "--tasks: a template of a task file can't be filled in: " in errors.splitlines()[-1]
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"metric_list": [{"metric": "./script"}]}, "metric: ./script"),
        ({"metric_list": [{"metric": "acc", "hf_evaluate": True}]}, "metric: acc"),
        ({"dataset_kwargs": {"trust_remote_code": True}}, "trust_remote_code"),
        ({"dataset_path": "pandas", "dataset_kwargs": {"data_files": "x.pkl"}}, "dataset_path: pandas"),
        ({"task": [{"task": "inner", "dataset_path": "pandas"}], "group": "all"}, "dataset_path: pandas"),
    ],
)
def test_data_and_metrics_that_are_code_require_trust(
    about: dict[str, object], named: str, made: Path, vaak: Vaak, tmp_path: Path
) -> None:
    (tmp_path / "hostile.yaml").write_text(json.dumps({"task": "hostile", **about}))
    code, _, errors = vaak("lm-eval", made / "run", "--tasks", tmp_path / "hostile.yaml")
    assert code == 2, errors
    assert f"hostile.yaml: {named} is code from elsewhere, which would be executed: add --trust-code" in errors


def test_an_encoder_has_no_probabilities_of_texts(tmp_path: Path, vaak: Vaak) -> None:
    tiny_runs.write_corpus(tmp_path)
    tiny_runs.train(
        tmp_path, tmp_path / "run", "model.model_type=encoder", "data.token_dropout=0", "training.max_steps=2"
    )
    code, _, errors = vaak("lm-eval", tmp_path / "run", "--tasks", "blimp_causative")
    assert code == 2
    assert errors == (
        f"{tmp_path / 'run'} is a run of task lm with model.model_type: encoder; vaak lm-eval requires a run of "
        "task lm with model.model_type: decoder\n"
    )


def test_bits_per_byte_are_those_of_the_evaluation(made: Path, vaak: Vaak, tmp_path: Path) -> None:
    """Of a text that fits into one window; an evaluation scores the end of the document, too."""
    text = next(iter(sentences("test", 1, 0)))
    (tmp_path / "one.txt").write_text(text + "\n", encoding="utf-8")
    write_lines(tmp_path / "one.jsonl", [{"text": text}])
    task = WHOLE.replace("FOLDER/texts.jsonl", str(tmp_path / "one.jsonl"))
    (tmp_path / "one.yaml").write_text(task)
    code, said, errors = vaak("lm-eval", made / "run", "--tasks", tmp_path / "one.yaml", "--json")
    assert code == 0, errors
    found = json.loads(said)["metrics"]["bits_per_byte/whole_texts"] * len(text.encode()) * math.log(2)
    opened = open_run(made / "run", device="cpu")
    ids = [opened.task.tokenizer.bos_id, *opened.task.tokenizer.encode(text)]
    with torch.no_grad():
        logits = opened.model(torch.tensor([ids[:-1]]))[0]
    assert found == pytest.approx(float(F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")), rel=1e-5)
