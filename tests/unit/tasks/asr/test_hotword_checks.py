"""Hotwords that a model can't write, or an export can't have, are named before anything is done; so is a wrong base."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tiny_bases
import tiny_listener
from vaak.config.base import SectionError
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.use import find_writer
from vaak.tasks.asr.stages.options import MoeOptions

HOTWORDS = ["Abidos", "ba dum", "Zürich", "42"]


def check(corpus: Path, folder: Path, **sections: Any) -> str:
    """Return the warnings of ``config check``; raises UserError as it does."""
    (folder / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, **sections)))
    return "\n".join(map(str, load([folder / "case.yml"]).warnings))


def make_sections(base: Path) -> dict[str, Any]:
    model = {"architecture": "ctc", "base": str(base)}
    return {"model": model, "data": {"decoding": {"method": "beam", "hotwords": HOTWORDS}}}


def test_hotwords_that_a_base_cannot_write_are_named_with_their_number(corpus: Path, tmp_path: Path):
    sections = make_sections(tiny_bases.CTC["wav2vec2"](tmp_path / "base"))
    said = check(corpus, tmp_path, **sections)
    assert "data.decoding.hotwords: 2 of 4 are left out" in said
    assert said.endswith("can't write: Zürich, 42")
    sections["data"]["decoding"]["hotwords"] = ["Abidos"]
    assert "left out" not in check(corpus, tmp_path, **sections)


@pytest.mark.parametrize("change", ["", "bytes", "lower", "accents", "lasr"])
def test_a_tokenizer_of_pieces_names_what_a_command_names(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
):
    """The check reads files alone; a command loads the base. Nothing is named where transformers changes the files."""
    base = (tiny_bases.write_lasr if change == "lasr" else tiny_bases.write_parakeet)(tmp_path / "base")
    _change_tokenizer(base / "tokenizer.json", change)
    sections = make_sections(base)
    given = ["Abidos", "ba dum", "Zürich", "bá", "ABBA", "42"]
    sections["data"]["decoding"]["hotwords"] = given
    said = check(corpus, tmp_path, **sections)
    unwritable = {"": ["Zürich", "bá", "42"], "lower": ["Zürich", "bá", "42"], "accents": ["Zürich", "42"]}
    lost = unwritable.get(change, [])
    assert ("left out" in said) == bool(lost)
    with caplog.at_level(logging.WARNING, "vaak"):
        open_run(base, overrides=["data.decoding.method=beam", f"data.decoding.hotwords={json.dumps(given)}"])
    if lost:
        about = f"can't write: {', '.join(lost)}"
        assert said.endswith(about)
        assert f"hotwords: {len(lost)} of 6 left out, which the model's tokens {about}" in caplog.text
    else:
        # The check can't know it of LASR's; the command does.
        assert ("can't write: Zürich, bá, 42" in caplog.text) == (change == "lasr")


def _change_tokenizer(file: Path, change: str) -> None:
    content = json.loads(file.read_text())
    if change == "bytes":
        model = content["model"]
        model["byte_fallback"] = True
        size = max(model["vocab"].values(), default=0) + 100
        model["vocab"] |= {f"<0x{byte:02X}>": size + byte for byte in range(256)}
    elif change == "lower":
        content["normalizer"] = {"type": "Lowercase"}
    elif change == "accents":
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
    file.write_text(json.dumps(content))


def test_a_vocabulary_of_pieces_is_not_one_of_letters(corpus: Path, tmp_path: Path):
    """Byte-level tokenizers have both files, and write everything."""
    base = tiny_bases.CTC["wav2vec2"](tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "GPT2TokenizerFast"}))
    assert "left out" not in check(corpus, tmp_path, **make_sections(base))


@pytest.mark.parametrize("given", ["Abidos, Zürich", ["Abidos", "Zürich"], ["Abidos, Zürich"]])
def test_commas_separate_hotwords_wherever_they_are_given(corpus: Path, tmp_path: Path, given: str | list[str]):
    sections = make_sections(tiny_bases.CTC["wav2vec2"](tmp_path / "base"))
    sections["data"]["decoding"]["hotwords"] = given
    assert "hotwords: 1 of 2 are left out" in check(corpus, tmp_path, **sections)


def test_they_are_named_where_a_command_begins_and_exports_say_that_they_have_none(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    base = tiny_bases.CTC["wav2vec2"](tmp_path / "base")
    with caplog.at_level(logging.WARNING, "vaak"):
        opened = open_run(base, overrides=["data.decoding.method=beam", "data.decoding.hotwords=[Zürich, ba]"])
    assert "data.decoding.hotwords: 1 of 2 left out, which the model's tokens can't write: Zürich" in caplog.text
    caplog.clear()
    find_writer(opened.task, "hf")
    assert "--format hf: Zürich, ba (data.decoding.hotwords) aren't in it" in caplog.text


def test_a_base_of_no_speech_is_refused_with_the_kinds_that_are_read(corpus: Path, tmp_path: Path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    for architecture, kinds in (("whisper", "whisper"), ("ctc", "wav2vec2, hubert"), ("decoder", "moonshine")):
        said = f"llama is a llama; model.architecture: {architecture} takes .*{kinds}"
        with pytest.raises(UserError, match=said):
            check(corpus, tmp_path, model={"architecture": architecture, "base": str(tmp_path / "llama")})


@pytest.mark.parametrize("architecture", ["whisper", "ctc"])
def test_a_base_of_another_architecture_is_refused_with_the_one_that_reads_it(
    corpus: Path, tmp_path: Path, architecture: str
):
    base = tiny_bases.write_moonshine(tmp_path / "base")
    model = {"architecture": architecture, "base": str(base)}
    said = f"is a moonshine, which model.architecture: decoder reads, not {architecture}"
    with pytest.raises(UserError, match=said):
        check(corpus, tmp_path, model=model)
    with pytest.raises(SectionError, match=said):
        MoeOptions(architecture=architecture, whisper_model=str(base))
