"""``data.max_unknown``: language models, translation and classification warn or refuse by shares that are counted."""

from __future__ import annotations

import json
import logging
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from vaak.config.load import load
from vaak.core.errors import DataError
from vaak.tasks.classification.data import LabelSources, PreparedLabels
from vaak.tasks.classification.data import recipe as label_recipe
from vaak.tasks.lm.prepare import PreparedText
from vaak.tasks.lm.prepare import recipe as text_recipe
from vaak.tasks.seq2seq.data import PreparedPairs
from vaak.tasks.seq2seq.data import recipe as pair_recipe

WORDS, PER_LINE = 1000, 10
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
DATA = """\
task: {task}
data:
  corpus: {{{corpus}}}
  tokenizer: {{path: {folder}/tokenizer.json}}
{more}"""


def write_lines(lost: int) -> list[str]:
    """Lines of words, ``lost`` of which have one or two letters z, which the tokenizer doesn't know."""
    every = []
    for number in range(WORDS):
        again, place = divmod(number, WORDS // 2)  # each word occurs twice
        name = "".join(string.ascii_lowercase[int(digit)] for digit in f"{place:04}")
        every.append(name + ("zz" if place % 3 == 0 else "z") * (2 * place + again < lost))
    return [" ".join(every[start :: WORDS // PER_LINE]) for start in range(WORDS // PER_LINE)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer of letters, without z."""
    known = [*SPECIAL, *string.ascii_lowercase[:-1], *string.digits, " "]
    model = tokenizers.models.WordLevel({token: number for number, token in enumerate(known)}, unk_token="<unk>")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens([*SPECIAL])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def prepare_lm(folder: Path, lines: list[str], more: str) -> dict[str, Any]:
    for split, texts in (("train", lines), ("valid", ["so it is"])):
        (folder / f"{split}.txt").write_text("\n".join(texts))
    corpus = f"type: text, train: {folder}/train.txt, valid: {folder}/valid.txt"
    experiment = load_yaml(folder, "lm", corpus, more)
    about = PreparedText.make(text_recipe(experiment.data), folder / "prepared").about
    return {"unwritable": about["unwritable"]["train"]}


def prepare_seq2seq(folder: Path, lines: list[str], more: str) -> dict[str, Any]:
    for split, texts in (("train", lines), ("valid", ["so it is"])):
        pairs = [json.dumps({"en": text, "hi": f"it {split[0]} {number}"}) for number, text in enumerate(texts)]
        (folder / f"{split}.jsonl").write_text("\n".join(pairs))
    corpus = f"type: json, train: {folder}/train.jsonl, valid: {folder}/valid.jsonl"
    experiment = load_yaml(folder, "seq2seq", corpus, more)
    about = PreparedPairs.make(pair_recipe(experiment.data), folder / "prepared").about["statistics"]["train"]
    assert about["unwritable"]["target"] == {"characters": 0.0, "words": 0.0}
    return {"unwritable": about["unwritable"]["source"]}


def prepare_classification(folder: Path, lines: list[str], more: str) -> dict[str, Any]:
    for split, texts in (("train", lines), ("valid", ["so it is", "so"])):
        rows = [json.dumps({"text": text, "label": "ab"[number % 2]}) for number, text in enumerate(texts)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    corpus = f"train: {folder}/train.jsonl, valid: {folder}/valid.jsonl"
    experiment = load_yaml(folder, "classification", corpus, more)
    sources = LabelSources(experiment, folder)
    return PreparedLabels.make(label_recipe(sources), folder / "prepared").about["statistics"]["train"]


def load_yaml(folder: Path, task: str, corpus: str, more: str) -> Any:
    (folder / "a.yml").write_text(DATA.format(task=task, corpus=corpus, folder=folder, more=more))
    return load([folder / "a.yml"]).experiment


Prepare = Callable[[Path, list[str], str], dict[str, Any]]
every_task = pytest.mark.parametrize("prepare", [prepare_lm, prepare_seq2seq, prepare_classification])


def count_shares(lines: list[str]) -> tuple[float, float]:
    """Percentages of the letters, and of the words, that have a z."""
    letters, words = "".join(lines).replace(" ", ""), " ".join(lines).split()
    return 100 * letters.count("z") / len(letters), 100 * sum("z" in word for word in words) / len(words)


@every_task
def test_texts_are_refused_from_five_percent_with_the_counts(prepare: Prepare, folder: Path):
    lines = write_lines(lost=50)
    characters, words = count_shares(lines)
    assert (round(words, 9), characters < 5) == (5, True)
    number = "".join(lines).count("z")
    expected = (
        rf"train(, source)?: {characters:.1f} % of the characters \({number} of [\d,]+\) and 5\.0 % of the words "
        rf"\(as \w*z.*\) can't be written: z \({number}\); .*, or raise data\.max_unknown \(5 %\)"
    )
    with pytest.raises(DataError, match=expected):
        prepare(folder, lines, "")


@every_task
@pytest.mark.parametrize(("lost", "level"), [(49, logging.WARNING), (5, logging.WARNING), (4, logging.INFO)])
def test_less_is_a_warning_from_half_a_percent(
    prepare: Prepare, lost: int, level: int, folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "vaak")
    lines = write_lines(lost)
    about = prepare(folder, lines, "")["unwritable"]
    characters, words = count_shares(lines)
    assert (about["characters"], about["words"]) == (pytest.approx(characters, abs=5e-5), pytest.approx(words))
    assert about["most_frequent"] == {"z": "".join(lines).count("z")}
    [record] = [one for one in caplog.records if "can't be written" in one.getMessage()]
    assert (record.levelno, record.getMessage().startswith("train")) == (level, True)


@every_task
def test_the_option_raises_and_lowers_the_limit(prepare: Prepare, folder: Path):
    lines = write_lines(lost=300)
    about = prepare(folder, lines, "  max_unknown: 30.1")["unwritable"]
    assert about["words"] == pytest.approx(count_shares(lines)[1]) == pytest.approx(30)
    with pytest.raises(DataError, match=r"raise data\.max_unknown \(0\.4 %\)"):
        prepare(folder, write_lines(lost=4), "  max_unknown: 0.4")


@every_task
def test_a_tokenizer_of_words_only_warns_of_rare_ones_wherever_it_is_from(
    prepare: Prepare, folder: Path, caplog: pytest.LogCaptureFixture
):
    """That of a task which shares its embedding is given by its path, and was refused."""
    lines = write_lines(lost=0)
    known = [
        *SPECIAL,
        *{word for line in lines for word in line.split()},
        "it",
        "so",
        "is",
        "t",
        *map(str, range(PER_LINE * 10)),
    ]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: number for number, token in enumerate(known)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens([*SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    about = prepare(folder, write_lines(lost=300), "")["unwritable"]
    assert about["words"] == pytest.approx(30)
    assert any(
        one.levelno == logging.WARNING and "can't be written" in one.getMessage() and one.getMessage()[:5] == "train"
        for one in caplog.records
    )
