"""A file that a model may lack is left out only where it isn't there; why a model can't be read is never hidden."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import httpx

import tiny_encoder_decoder
import tiny_listener
from tiny_bases import write_moonshine, write_w2v_bert
from tiny_whisper import write_whisper
from vaak.core.errors import UserError
from vaak.tasks.asr.ctc.pretrained import own_vocabulary
from vaak.tasks.asr.decoder.task import keep_base
from vaak.tasks.fetching import GENERATION, fetch_model, find_file, load_generation
from vaak.tasks.pretrained import write_generation

KEY = "model.base"


def _halve(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _train_on_whisper(folder: Path) -> None:
    corpus = folder.with_name("corpus")
    tiny_listener.write_listener(corpus)
    tiny_listener.train(corpus, folder.with_name("run"), model={"base": str(folder), "architecture": "whisper"})


GENERATING: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "whisper": (write_whisper, _train_on_whisper),
    "moonshine": (write_moonshine, lambda folder: keep_base(str(folder), folder.with_name("kept"))),
    "translator": (
        lambda folder: tiny_encoder_decoder.write_folder(folder, "t5"),
        lambda folder: write_generation(str(folder), folder.with_name("kept")),
    ),
}


@pytest.mark.parametrize("kind", GENERATING)
def test_a_half_written_generation_config_is_not_taken_for_none(kind: str, tmp_path: Path):
    """What it says of the end, and of tokens that aren't written, would be lost."""
    write, read = GENERATING[kind]
    folder = tmp_path / "base"
    folder.mkdir()
    write(folder)
    _halve(folder / GENERATION)
    with pytest.raises(UserError, match=rf"{folder} can't be loaded: .*generation_config\.json.* is not a valid JSON"):
        read(folder)


def test_a_model_without_a_generation_config_needs_none(tmp_path: Path):
    assert load_generation(KEY, str(tmp_path)) is None
    (tmp_path / GENERATION).symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(UserError, match="is a link to a file that has gone: download the model again"):
        load_generation(KEY, str(tmp_path))


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer_config.json"])
def test_a_tokenizer_that_can_not_be_read_does_not_cost_the_output_layer(name: str, tmp_path: Path):
    folder = write_w2v_bert(tmp_path / "base")
    assert own_vocabulary(str(folder)) is not None
    _halve(folder / name)
    with pytest.raises(UserError, match=rf"model\.base: {folder} can't be loaded: "):
        own_vocabulary(str(folder))
    assert own_vocabulary(str(write_w2v_bert(tmp_path / "untuned", tuned=False))) is None


def test_a_tokenizer_that_lacks_a_package_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    folder = write_w2v_bert(tmp_path / "base")

    def read(*arguments: Any, **options: Any) -> None:
        raise ImportError("Wav2Vec2PhonemeCTCTokenizer requires phonemizer")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", read)
    assert own_vocabulary(str(folder)) is None
    assert f"the tokens of {folder} can't be used: Wav2Vec2PhonemeCTCTokenizer requires phonemizer" in caplog.text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model in the cache of the Hub, which can't be reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--some--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return model


def test_a_file_of_the_cache_is_found_without_the_hub(cache: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert find_file(KEY, "some/model", GENERATION) is None
    assert "generation_config.json of some/model isn't in the cache: the model is used without it" in caplog.text
    caplog.clear()
    known_as_absent = cache / ".no_exist" / ("0" * 40)
    known_as_absent.mkdir(parents=True)
    (known_as_absent / GENERATION).touch()
    assert find_file(KEY, "some/model", GENERATION) is None
    assert caplog.text == ""
    (known_as_absent / GENERATION).unlink()
    file = cache / "snapshots" / ("0" * 40) / GENERATION
    file.write_text('{"max_length": 7}')
    assert find_file(KEY, "some/model", GENERATION) == file
    assert load_generation(KEY, "some/model").max_length == 7


def _answer(kind: type, status: int) -> Exception:
    request = httpx.Request("GET", "https://huggingface.co/some/model")
    found: Exception = kind("said by the Hub", response=httpx.Response(status, request=request))
    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (ValueError("the tokenizer is damaged"), "the tokenizer is damaged"),
        (_answer(GatedRepoError, 403), "its authors grant access on request: ask at https://huggingface.co/some/model"),
        (_answer(RepositoryNotFoundError, 404), "the Hugging Face Hub has no such model or can't be reached"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_why_a_model_of_the_hub_can_not_be_loaded_is_said(cache: Path, error: Exception, said: str, wrapped: bool):
    """Everything was said to be "no such model"."""

    def fetch() -> None:
        if not wrapped:
            raise error
        try:
            raise error
        except Exception as cause:
            raise OSError(str(cause)) from cause

    with pytest.raises(UserError, match=r"^model\.base: some/model can't be loaded: [^\n]*$") as caught:
        fetch_model(KEY, "some/model", fetch)
    assert said in str(caught.value)
