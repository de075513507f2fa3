"""Pretrained models are used and evaluated as they are, and give what a run that begins with them gives."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Wav2Vec2CTCTokenizer,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

import tiny_decoder
import tiny_encoder_decoder
import tiny_listener
from tiny_bert import write_bert
from tiny_wav2vec2 import write_base
from tiny_whisper import write_whisper
from vaak import open as open_model
from vaak.core.errors import UserError
from vaak.runs.base import is_base

Vaak = Callable[..., tuple[int, str, str]]
TEXTS = ("राम घर जाता है।", "सीता किताब पढ़ती है।", "हम यहाँ हैं।")
UNTRAINED = ("training.max_steps=1", "training.optimizer.lr=1e-12", "training.validation.at_start=false")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    tiny_decoder.write_folder(folder, "llama")
    return folder


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_a_whisper_is_used_as_the_run_that_has_not_learned_yet(whisper: Path, tones: Path, tmp_path: Path, vaak: Vaak):
    before = _files(whisper)
    # Its utterances are shorter than the half a minute that the encoder keeps.
    model = {"base": str(whisper), "window": None}
    run = tiny_listener.train(tones, tmp_path / "run", *UNTRAINED, model=model)
    metrics = []
    for path in (run, whisper):
        code, out, err = vaak("eval", path, "--data", tones / "test.jsonl", "--json")
        assert code == 0, err
        metrics.append(json.loads(out)["metrics"])
    assert metrics[0] == metrics[1]
    assert {"test_loss", "test_wer"} <= metrics[0].keys()
    [own], [other] = (one.predict([tones / "test0.wav"]) for one in (open_model(run), open_model(whisper)))
    assert own.text == other.text
    code, out, _ = vaak("transcribe", whisper, tones / "test0.wav", tones / "test1.wav", "--language", "hi")
    assert code == 0
    assert _files(whisper) == before


@pytest.mark.parametrize("older", [False, True])
def test_a_whisper_writes_the_language_that_its_folder_names(
    whisper: Path, tones: Path, tmp_path: Path, vaak: Vaak, caplog: pytest.LogCaptureFixture, older: bool
):
    """A Whisper that somebody taught Hindi was told that recordings are English, without a word."""
    folder = Path(shutil.copytree(whisper, tmp_path / "taught"))
    generation = json.loads((folder / "generation_config.json").read_text())
    hindi = generation["lang_to_id"]["<|hi|>"]
    named = {"forced_decoder_ids": [[1, hindi], [2, hindi]]} if older else {"language": "hindi", "task": "transcribe"}
    (folder / "generation_config.json").write_text(json.dumps(generation | named))
    audio = tones / "test0.wav"

    def transcribe(path: Path, *options: str) -> str:
        code, out, err = vaak("transcribe", path, audio, *options)
        assert code == 0, err
        return out

    written = transcribe(folder)
    assert "languages" not in caplog.text
    assert written == transcribe(whisper, "--language", "hi")
    assert "languages" not in caplog.text
    english = transcribe(whisper)
    assert english != written
    assert "knows 2 languages, and takes recordings for en: --language" in caplog.text
    assert transcribe(folder, "--language", "en") == english
    assert transcribe(whisper, "--language", "Hindi") == written


def test_a_whisper_of_english_alone_may_be_told_so(tones: Path, tmp_path: Path, vaak: Vaak):
    folder = write_whisper(tmp_path / "base", multilingual=False)
    written = [vaak("transcribe", folder, tones / "test0.wav", *options) for options in ((), ("--language", "en"))]
    assert [(code, out) for code, out, _ in written] == [(0, written[0][1])] * 2
    code, _, err = vaak("transcribe", folder, tones / "test0.wav", "--language", "hi")
    assert (code, "the base doesn't know hi; it knows one language only" in err) == (2, True)


def test_a_base_is_counted_by_its_headers(whisper: Path, decoder: Path, tones: Path, tmp_path: Path, vaak: Vaak):
    for task, model, folder in (("asr", "base", whisper), ("lm", "pretrained", decoder)):
        data = tiny_listener.sections(tones)["datasets"] if task == "asr" else None
        about = {"task": task, "name": "one", "model": {model: str(folder)}} | ({"datasets": data} if data else {})
        (tmp_path / "one.yml").write_text(json.dumps(about))
        code, out, err = vaak("config", "check", tmp_path / "one.yml", "--json")
        expected = {"asr": WhisperForConditionalGeneration, "lm": AutoModelForCausalLM}[task].from_pretrained(folder)
        assert (code, json.loads(out)["parameters"]) == (0, sum(one.numel() for one in expected.parameters())), err
    code, out, _ = vaak("config", "check", tmp_path / "one.yml", "model.pretrained=nobody/nothing")
    assert (code, "parameters" in out) == (0, False)


def test_its_evaluation_is_written_where_it_is_asked_for(whisper: Path, tones: Path, tmp_path: Path, vaak: Vaak):
    arguments = (whisper, "--data", tones / "test.jsonl", "--output", tmp_path / "out", "data.max_duration=2")
    assert vaak("eval", *arguments)[0] == 0
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert report["checkpoint"] == str(whisper)
    assert report["protocol"]["test"]["transcribed"] == "4"


def test_a_decoder_has_the_perplexity_and_the_text_of_transformers(decoder: Path, tmp_path: Path, vaak: Vaak):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    code, out, err = vaak("eval", decoder, "--data", tmp_path / "texts.txt", "--json", "data.layout=document")
    assert code == 0, err
    model, tokenizer = AutoModelForCausalLM.from_pretrained(decoder), AutoTokenizer.from_pretrained(decoder)
    end, total, number = tokenizer.eos_token_id, 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([[end, *tokenizer(text, add_special_tokens=False).input_ids, end]])
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum")
        total, number = total + float(losses), number + ids.shape[1] - 1
    assert json.loads(out)["metrics"]["test_perplexity"] == pytest.approx(math.exp(total / number), rel=1e-4)
    code, out, _ = vaak("generate", decoder, "राम", "--temperature", "0", "--max-new-tokens", "8", "--json")
    prompt = torch.tensor([[end, *tokenizer("राम", add_special_tokens=False).input_ids]])
    written = model.generate(prompt, do_sample=False, max_new_tokens=8)[0, 1:]
    assert (code, json.loads(out)["text"]) == (0, tokenizer.decode(written, skip_special_tokens=True))


def test_a_single_text_is_evaluated_on(decoder: Path, tmp_path: Path, vaak: Vaak):
    """Nothing was to be spared for training, and it was refused for that."""
    found = []
    for name, content in (("one.txt", "so it is\n"), ("one.jsonl", '{"text": "so it is"}\n')):
        (tmp_path / name).write_text(content)
        code, out, err = vaak("eval", decoder, "--data", tmp_path / name, "--json")
        assert code == 0, err
        found.append(json.loads(out)["metrics"]["test_perplexity"])
    assert found[0] == found[1]


@pytest.mark.parametrize("begins", [True, False])
def test_windows_begin_as_a_base_was_taught_that_texts_do(begins: bool, tmp_path: Path, vaak: Vaak):
    """Gemma has 0.97 bits per byte without, and 0.75 with it: what it reads at the first place isn't a usual token."""
    tiny_decoder.write_folder(tmp_path / "base", "gemma3_text")
    if begins:
        tiny_decoder.begin_texts(tmp_path / "base", "<|endoftext|>")
    text = "\n".join(TEXTS) + "\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    sizes = ("data.layout=stream", "data.corpus.document=file", "data.max_length=16", "data.stride=4")
    code, out, err = vaak("eval", tmp_path / "base", "--data", tmp_path / "text.txt", "--json", *sizes)
    assert code == 0, err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    ids = tokenizer("", "").input_ids[:1] or [tokenizer.bos_token_id]
    ids += tokenizer(text, add_special_tokens=False).input_ids
    nats, scored = 0.0, 1
    for end in range(16, len(ids) + 4, 4):
        window = ids[max(0, end - 16) : end + 1]
        first = ids[:1] if begins else window[:1]
        with torch.no_grad():
            logits = model(torch.tensor([[*first, *window[1:-1]]])).logits[0].log_softmax(-1)
        for place in range(scored, min(end + 1, len(ids))):
            nats -= float(logits[place - max(0, end - 16) - 1, ids[place]])
        scored = min(end + 1, len(ids))
    found = json.loads(out)["metrics"]
    assert found["test_bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)


def test_a_base_reads_as_much_of_a_prompt_as_it_was_made_for(decoder: Path, vaak: Vaak):
    """Only the last 256 tokens were read, as data.max_length is 512 if nobody says otherwise."""
    text = " ".join(TEXTS * 5)
    code, out, err = vaak("generate", decoder, text, "--temperature", "0", "--max-new-tokens", "8", "--json")
    assert (code, err) == (0, "")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(decoder), AutoTokenizer.from_pretrained(decoder)
    prompt = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]])
    assert prompt.shape[1] > 600
    written = model.generate(prompt, do_sample=False, max_new_tokens=8)[0, 1:]
    assert json.loads(out)["text"] == tokenizer.decode(written, skip_special_tokens=True)


def test_a_ctc_base_with_its_tokens_transcribes_and_aligns(tones: Path, tmp_path: Path, vaak: Vaak):
    folder = write_base(tmp_path / "ctc", "wav2vec2", "layer")
    code, _, err = vaak("transcribe", folder, tones / "test0.wav")
    assert (code, "has no output tokens" in err) == (2, True)
    (folder / "vocab.json").write_text(
        json.dumps({name: place for place, name in enumerate(("<pad>", "<unk>", "|", *"abdeimosu"))})
    )
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), bos_token=None, eos_token=None).save_pretrained(folder)
    (tmp_path / "said.txt").write_text("ba do\n")
    for command in (("transcribe", tones / "test0.wav"), ("align", tones / "test0.wav", tmp_path / "said.txt")):
        code, _, err = vaak(command[0], folder, *command[1:])
        assert code == 0, err


def test_a_translator_translates(tmp_path: Path, vaak: Vaak):
    tiny_encoder_decoder.write_folder(tmp_path / "t5", "t5")
    code, _, err = vaak("translate", tmp_path / "t5", "राम घर", "--max-new-tokens", "4")
    assert code == 0, err


def test_what_a_model_cannot_do_untrained_is_one_line(
    whisper: Path, tones: Path, tmp_path: Path, vaak: Vaak, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    bert = write_bert(tmp_path / "bert", ["the", "a"])
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"model_type": "whisper"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "config.json").write_text('{"model_type": "whisper", "architectures": 5}')
    mute = shutil.copytree(whisper, tmp_path / "mute")
    for file in (*mute.glob("token*"), *mute.glob("vocab*"), *mute.glob("merges*")):
        file.unlink()
    (tmp_path / "fast").mkdir()
    # Their config.json has alignment_heads and tokens, and no model_type.
    for name, content in (("config.json", '{"alignment_heads": []}'), ("model.bin", "x"), ("vocabulary.txt", "a")):
        (tmp_path / "fast" / name).write_text(content)
    (tmp_path / "nameless").mkdir()
    (tmp_path / "nameless" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "nameless" / "model.safetensors").touch()
    (tmp_path / "runs" / "listener").mkdir(parents=True)
    (tmp_path / "runs" / "listener" / "config.yml").write_text("task: asr\n")
    (tmp_path / "said.txt").write_text("ba\n")
    audio = tones / "test0.wav"
    expected = {
        ("classify", bert, "the"): "is an encoder, which has no classes before it is trained",
        ("generate", whisper, "the"): "is a model of task asr; vaak generate requires a run of task lm",
        (
            "align",
            whisper,
            audio,
            tmp_path / "said.txt",
        ): "is a model of task asr with model.architecture: whisper; vaak align",
        ("transcribe", tmp_path / "pickled", audio): "as pickles (pytorch_model.bin), which can run code",
        ("transcribe", "nobody/nothing", audio): "the Hugging Face Hub has no such model or can't be reached",
        ("transcribe", "runs/nothing", audio): "is not a run directory",
        ("transcribe", "rusn/listner", audio): "did you mean runs/listener?",
        (
            "transcribe",
            "whisper-tiny",
            audio,
        ): "names of the Hugging Face Hub are OWNER/NAME",
        ("transcribe", "openai/whisper-tiny@main", audio): "hf download openai/whisper-tiny --revision main",
        ("transcribe", "https://huggingface.co/openai/whisper-tiny", audio): "by its name, openai/whisper-tiny",
        ("transcribe", whisper / "config.json", audio): f"give its folder, {whisper}",
        ("transcribe", tmp_path, audio): f"bert in it has; give {bert}",
        ("transcribe", tmp_path / "mute", audio): "has no tokenizer",
        ("transcribe", tmp_path / "fast", audio): "is a model of CTranslate2 (faster-whisper), which only runs",
        ("predict", tmp_path / "fast" / "model.bin", "the", "--embeddings"): "can run code",
        ("generate", tmp_path / "nameless", "the"): "doesn't say what it computes (architectures)",
        ("verify", "rusn/listner"): "did you mean runs/listener?",
        ("transcribe", tmp_path / "listed", audio): "isn't the configuration of a model",
        ("eval", whisper): "and has no data; name some",
        ("eval", whisper, "--data", tones / "test.jsonl", "--weights", "average"): "has no averaged weights",
        ("verify", whisper): "this command requires a run",
        ("export", whisper): "this command requires a run",
        ("tune", whisper): "this command requires a run",
    }
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for arguments, reason in expected.items():
        code, _, err = vaak(*arguments)
        assert (code, reason in err, len(err.strip().splitlines())) == (2, True, 1), (arguments, err)


def test_a_model_of_another_task_is_refused_before_its_weights_are_read(
    whisper: Path, decoder: Path, tones: Path, tmp_path: Path, vaak: Vaak
):
    """Options of the command aren't those of the model's task, and don't come first either."""
    folders = []
    for model in (whisper, decoder):
        folders.append(shutil.copytree(model, tmp_path / f"broken-{model.name}"))
        (folders[-1] / "model.safetensors").write_bytes(b"unreadable")
    speech, text = folders
    audio, reads = tones / "test0.wav", "requires a run of task"
    expected = {
        ("transcribe", text, audio, "--language", "en"): f"vaak transcribe {reads} asr; this one is for vaak generate",
        (
            "diarize",
            text,
            audio,
            "--threshold",
            "0.4",
        ): f"vaak diarize {reads} diarization; this one is for vaak generate",
        ("generate", speech, "the"): "with model.model_type: decoder; this one is for vaak transcribe",
        ("translate", speech, "the"): f"vaak translate {reads} seq2seq; this one is for vaak transcribe",
        ("classify", speech, "the"): f"vaak classify {reads} classification; this one is for vaak transcribe",
        ("speak", text, "the", "-o", tmp_path / "a.wav"): f"vaak speak {reads} tts; this one is for vaak generate",
        ("lm-eval", speech, "--tasks", "blimp"): "this one is for vaak transcribe",
    }
    for arguments, reason in expected.items():
        code, _, err = vaak(*arguments)
        assert (code, reason in err, len(err.strip().splitlines())) == (2, True, 1), (arguments, err)


def test_code_next_to_a_model_is_not_run(whisper: Path, tones: Path, tmp_path: Path, vaak: Vaak):
    folder = write_whisper(tmp_path / "whisper")
    about: dict[str, Any] = json.loads((folder / "config.json").read_text())
    modules = {"AutoConfig": "own.Config", "AutoModelForSpeechSeq2Seq": "own.Model"}
    (folder / "config.json").write_text(json.dumps(about | {"auto_map": modules}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert vaak("transcribe", folder, tones / "test0.wav")[0] == 0
    assert not (tmp_path / "ran").exists()


def test_runs_checkpoints_and_names_are_told_from_models(tiny_run: Path, whisper: Path, tmp_path: Path):
    assert is_base(whisper)
    assert is_base(Path("openai/whisper-tiny"))
    assert not is_base(tiny_run)
    assert not any(is_base(path) for path in (tiny_run / "checkpoints").iterdir())
    assert not any(is_base(Path(name)) for name in ("runs/one", "one", "./one", "a/b/c", str(tmp_path / "missing")))
    with pytest.raises(UserError, match="is not a run directory"):
        open_model(tmp_path)


@pytest.mark.slow
def test_windows_of_a_real_gemma_begin_as_it_was_taught(vaak: Vaak, vaak_data: Callable[[str], Path], tmp_path: Path):
    folder = Path(os.environ.get("VAAK_WEIGHTS", "/nowhere")) / "gemma"
    if not folder.is_dir():
        pytest.skip("VAAK_WEIGHTS has no folder gemma")
    text = (vaak_data("hindi") / "premchand.valid.txt").read_text("utf-8")[:2000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    sizes = ("data.layout=stream", "data.corpus.document=file", "data.max_length=64", "data.stride=32")

    def evaluate(*options: str) -> float:
        code, out, err = vaak("eval", folder, "--data", tmp_path / "text.txt", "--json", *sizes, *options)
        assert code == 0, err
        return float(json.loads(out)["metrics"]["test_bits_per_byte"])

    assert evaluate() < 0.9 * evaluate("data.bos_in_windows=false")


@pytest.mark.slow
def test_a_real_whisper_writes_what_transformers_writes(vaak: Vaak):
    weights, data = os.environ.get("VAAK_WEIGHTS"), os.environ.get("VAAK_DATA")
    if not weights or not data:
        pytest.skip("VAAK_WEIGHTS or VAAK_DATA is not set: there are no real weights, or no speech")
    folder = Path(weights) / "whisper-tiny.en"
    audio = sorted(Path(data).glob("read_speech/audio/*/*.flac"))[:3]
    code, out, err = vaak("transcribe", folder, *audio, "--json")
    assert code == 0, err
    model, processor = WhisperForConditionalGeneration.from_pretrained(folder), WhisperProcessor.from_pretrained(folder)
    for line, path in zip(out.splitlines(), audio, strict=True):
        samples, rate = soundfile.read(path, dtype="float32")
        features = processor(samples, sampling_rate=rate, return_tensors="pt").input_features
        (text,) = processor.batch_decode(model.generate(features), skip_special_tokens=True)
        assert json.loads(line)["text"] == text.strip()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="it is of Linux")
def test_a_file_that_can_not_be_read_is_not_called_something_else():
    with pytest.raises(UserError, match=r"^/proc/self/mem can't be read: Input/output error$"):
        is_base(Path("/proc/self/mem"))
