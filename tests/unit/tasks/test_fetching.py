"""A file that a model may lack is left out only where it isn't there; why a model can't be read is never hidden."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

import tiny_decoder
import tiny_encoder_decoder
import tiny_listener
from tiny_bases import write_moonshine, write_w2v_bert
from tiny_whisper import write_whisper
from vaak.core.errors import UserError
from vaak.tasks.asr.ctc.pretrained import own_vocabulary
from vaak.tasks.asr.decoder.task import keep_base
from vaak.tasks.fetching import (
    GENERATION,
    count_base_parameters,
    fetch_model,
    find_file,
    load_generation,
    load_tokenizer,
)
from vaak.tasks.kept_base import write_generation
from vaak.tasks.pretrained import load_config, note_own_head

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
    """Otherwise its end tokens and suppressed tokens would be lost."""
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
    found: Any = load_generation(KEY, "some/model")
    assert found.max_length == 7


def _answer(kind: type, status: int) -> Exception:
    client: Any = huggingface_hub.utils
    request = client.httpx.Request("GET", "https://huggingface.co/some/model")
    found: Exception = kind("said by the Hub", response=client.httpx.Response(status, request=request))
    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (ValueError("the tokenizer is damaged"), "the tokenizer is damaged"),
        (
            ValueError(
                "The checkpoint you are trying to load has model type `llama9` but Transformers does not recognize "
                "this architecture. This could be because of an issue with the checkpoint."
            ),
            f"transformers {transformers.__version__} doesn't know its kind, llama9; a newer one may have it",
        ),
        (
            ValueError("The repository x contains custom code which must be executed to correctly load the model."),
            "its network is code in its folder, which isn't run",
        ),
        (_answer(GatedRepoError, 403), "its authors grant access on request: ask at https://huggingface.co/some/model"),
        (_answer(RepositoryNotFoundError, 404), "the Hugging Face Hub has no such model or can't be reached"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_why_a_model_of_the_hub_can_not_be_loaded_is_said(cache: Path, error: Exception, said: str, wrapped: bool):
    """Every failure used to be reported as "no such model"."""

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


@pytest.mark.parametrize("kind", ["bert", "gpt2", "qwen2", "gemma3_text", "t5", "llama", "xlm-roberta", "marian"])
def test_a_base_without_a_tokenizer_is_not_given_one_of_special_tokens(kind: str, tmp_path: Path):
    """transformers 5 makes one that knows nothing but these, and every text would be unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UserError, match=rf"^{KEY}: {tmp_path} has no tokenizer; add the files [^\n]*tokenizer\.json"):
        load_tokenizer(KEY, str(tmp_path))


def test_the_name_of_what_is_unknown_says_that_it_is(tmp_path: Path):
    with pytest.raises(UserError, match=r"can't be loaded: it has an unknown 'zigzag'$"):
        fetch_model(KEY, str(tmp_path), lambda: dict[str, int]()["zigzag"])


def test_cut_off_weights_are_to_be_downloaded_again(tmp_path: Path):
    write_moonshine(tmp_path)
    _halve(tmp_path / "model.safetensors")
    auto: Any = transformers.AutoModel
    with pytest.raises(UserError, match=r"its weights are damaged or not whole \([^\n]*\): download them again$"):
        fetch_model(KEY, str(tmp_path), lambda: auto.from_pretrained(tmp_path))


def test_cut_off_weights_of_a_tied_decoder_are_to_be_downloaded_again(tmp_path: Path):
    """Its output layer is looked for before it is loaded."""
    tiny_decoder.write_folder(tmp_path, "gemma3_text")
    _halve(tmp_path / "model.safetensors")
    config = load_config(KEY, str(tmp_path))
    assert config.tie_word_embeddings
    with pytest.raises(
        UserError, match=rf"^{KEY}: .* weights are damaged or not whole \([^\n]*\): download them again$"
    ):
        note_own_head(config, str(tmp_path), KEY)


def test_config_check_says_what_a_base_is_that_is_not_read(
    tmp_path: Path, vaak: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("".join(f"a b {one}\n" for one in range(40)))
    (tmp_path / "a.yml").write_text("task: lm\ndata: {corpus: {type: text, train: [a.txt]}}\n")
    (tmp_path / "ct2").mkdir()
    for name in ("model.bin", "vocabulary.json", "config.json"):
        (tmp_path / "ct2" / name).write_text("{}")
    write_w2v_bert(tmp_path / "half")
    _halve(tmp_path / "half" / "config.json")
    (tmp_path / "ggml-tiny.bin").write_bytes(b"lmgg1234")
    for base, said in {
        "ct2": "is a model of CTranslate2",
        "half": "half has a damaged config.json, which isn't JSON; download it again",
        "ggml-tiny.bin": "is a model of whisper.cpp",
        "./gone": "no such folder: ./gone",
    }.items():
        code, printed, error = vaak("config", "check", "a.yml", f"model.pretrained={base}")
        assert (code, printed, len(error.splitlines())) == (2, "", 1), error
        assert said in error
        assert "model.pretrained: " in error
        # Training says the same, after the warnings.
        assert vaak("train", "a.yml", f"model.pretrained={base}")[2].endswith(error)


def test_config_check_refuses_a_base_of_another_kind_as_training_does(
    tmp_path: Path, vaak: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("".join(f"a b {one}\n" for one in range(40)))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"a {one},x\nb {one},y\n" for one in range(20)))
    text = "data: {corpus: {type: text, train: [a.txt]}}\nmodel: {pretrained: BASE}\n"
    both = "data: {corpus: {type: text, train: [a.txt], train_target: [a.txt]}}\nmodel: {pretrained: BASE}\n"
    labels = (
        "data: {corpus: {type: files, train: [a.csv]}}\nmodel: {architecture: transformer, pretrained_model: BASE}\n"
    )
    for name, kind in (("bert", "bert"), ("llama", "llama"), ("t5", "t5")):
        (tmp_path / name).mkdir()
        about = {"model_type": kind, "architectures": [f"{kind}ForNothing"], "is_encoder_decoder": kind == "t5"}
        (tmp_path / name / "config.json").write_text(json.dumps(about))
        (tmp_path / name / "model.safetensors").write_bytes(b"unread")
    for task, rest, base, said in (
        ("lm", text, "bert", "bert is a bert, which isn't a causal language model; give a decoder"),
        ("lm", text, "t5", "t5 is a t5, which is an encoder and a decoder; those of task seq2seq are T5 and Marian"),
        ("seq2seq", both, "llama", "llama is a llama; expected one of t5, marian"),
        ("classification", labels, "llama", "llama is a decoder (llama), whose tokens don't see the text after them"),
        ("classification", labels, "t5", "t5 is an encoder and a decoder (t5); give an encoder, like BERT"),
    ):
        options = f"task: {task}\ntraining: {{optimizer: {{lr: 1.0e-5}}, scheduler: {{warmup_steps: 2}}}}\n"
        (tmp_path / "a.yml").write_text(options + rest.replace("BASE", base))
        code, printed, error = vaak("config", "check", "a.yml")
        assert (code, printed, len(error.splitlines())) == (2, "", 1), error
        key = "pretrained_model" if task == "classification" else "pretrained"
        assert error.startswith(f"model.{key}: {tmp_path / said}")
        assert vaak("train", "a.yml")[2].endswith(error)


def test_a_run_with_checkpoints_is_valid_without_its_base(
    tmp_path: Path, vaak: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yml").write_text(
        "task: lm\nrun_dir: a\nmodel: {pretrained: ./gone}\ndata: {corpus: {type: text, train: [a.txt]}}\n"
    )
    assert vaak("config", "check", "a.yml")[0] == 2
    (tmp_path / "a" / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert vaak("config", "check", "a.yml")[0] == 0


def test_a_base_in_the_cache_of_the_hub_is_counted(cache: Path, tmp_path: Path):
    folder = cache / "snapshots" / ("0" * 40)
    folder.rmdir()
    write_w2v_bert(folder)
    assert count_base_parameters("some/model") == count_base_parameters(str(folder)) > 1000
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert count_base_parameters("some/model") == 0, "half of it isn't its number"
    assert count_base_parameters("other/model") == 0
