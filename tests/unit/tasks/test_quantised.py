"""A pretrained base in four bits is never whole in memory; its numbers are those of the whole one, quantised."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_bases
import tiny_decoder
import tiny_encoder_decoder
from quick_cases import mostly_slow
from vaak.nn.config import LoraConfig
from vaak.nn.lora import FrozenLinear, NF4Linear, add_lora, keep_token_vectors_in_bf16, merged
from vaak.nn.nf4 import quantise
from vaak.tasks.asr.bases import CTC_BASES
from vaak.tasks.asr.config import AsrModelConfig, WhisperLoraConfig
from vaak.tasks.asr.ctc.pretrained import PretrainedCtc, find_kind, load_base
from vaak.tasks.asr.decoder.task import find_auto, wrap
from vaak.tasks.asr.model import find_frozen
from vaak.tasks.asr.vocabulary import SpecialIds
from vaak.tasks.asr.whisper.model import AsrModel
from vaak.tasks.asr.whisper.network import loaded_whisper
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.model import TransformerClassifier
from vaak.tasks.classification.pretrained import Pretrained
from vaak.tasks.lm import pretrained as lm
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import add_adapters
from vaak.tasks.quantised import FOUR_BITS, Frozen, layers_in_nf4
from vaak.tasks.seq2seq import pretrained as seq2seq
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
ASR = WhisperLoraConfig(rank=2, base_dtype="nf4")
IDS = torch.arange(3, 11)[None]


def read_whisper(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    whisper = loaded_whisper(str(source), 0.4, None, Frozen(prepared, ASR))
    return AsrModel(whisper, ASR), lambda model: model(torch.ones(1, 80, 40), IDS).logits


def read_wav2vec2(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    options = AsrModelConfig(base=str(source), architecture="ctc", lora=ASR)
    frozen = find_frozen(options, prepared, ("lm_head",))
    base = load_base(str(source), SpecialIds((0,), 0, 0, 9, ()), None, frozen)  # its output layer is drawn

    def compute(model: Any) -> Any:
        return model.project(model.encode(torch.linspace(-1, 1, 4000)[None, None], torch.tensor([4000]))[0])

    return PretrainedCtc(base, options), compute


def read_extracted(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    config = transformers.AutoConfig.from_pretrained(source)
    kind = find_kind(config)
    options = AsrModelConfig(base=str(source), architecture="ctc", lora=ASR)
    ids = SpecialIds((0,), 0, 0, config.vocab_size, ())
    base = load_base(str(source), ids, None, find_frozen(options, prepared, (kind.head,)))
    features = torch.linspace(-1, 1, 40 * (160 if config.model_type == "wav2vec2-bert" else 80)).view(1, -1, 40)
    return PretrainedCtc(base, options), lambda model: model(features, torch.tensor([40])).logits


def read_listener(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    options = AsrModelConfig(base=str(source), architecture="decoder", lora=ASR)
    auto = find_auto(transformers.AutoConfig.from_pretrained(source))
    with layers_in_nf4(str(source), find_frozen(options, prepared)):
        base = auto.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
    samples = torch.linspace(-1, 1, 8000)[None]

    def compute(model: Any) -> Any:
        if source.name == "moonshine":
            return model(samples[:, None], torch.tensor([8000]), IDS)
        return model.base(input_ids=IDS).logits

    return wrap(base, options), compute


def read_classifier(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    lora = LoraConfig(rank=2, base_dtype="nf4")
    options = ClassifierConfig(pretrained_model=str(source), lora=lora)
    base = Pretrained.load(str(source), 5, options, Frozen(prepared, lora))
    model = add_lora(TransformerClassifier(options, base, 3), lora, ("head",))
    return model, lambda model: model(IDS % 5, torch.ones_like(IDS, dtype=torch.bool))


def read_translator(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    lora = LoraConfig(rank=2, base_dtype="nf4")
    tokenizer = seq2seq.save_base(str(source), prepared)
    own, data = Seq2SeqConfig(pretrained=str(source), lora=lora), Seq2SeqDataConfig(max_source_length=20)
    model = add_lora(seq2seq.load_model(str(source), prepared, own, data, tokenizer.vocab_size), lora)
    keep_token_vectors_in_bf16([model.target_embedding, model.source_embedding, model.head])
    return model, lambda model: model(IDS, torch.ones_like(IDS, dtype=torch.bool), IDS)


def read_decoder(source: Path, prepared: Path) -> tuple[Any, Callable[[Any], Any]]:
    lora = LoraConfig(rank=2, base_dtype="nf4", targets=("q_proj",))
    tokenizer = lm.save_base(str(source), prepared, 40)
    own = LanguageModelConfig(pretrained=str(source), lora=lora)
    return add_adapters(lm.load_model(str(source), prepared, own, tokenizer.vocab_size), lora), lambda model: model(IDS)


EXTRACTED = [name for name, kind in CTC_BASES.items() if kind.reads == "features"]
SPEECH = {**{name: tiny_bases.CTC[name] for name in EXTRACTED}, **tiny_bases.DECODER}


def write(kind: str, folder: Path) -> None:
    if kind == "whisper":
        from tiny_whisper import write_whisper

        write_whisper(folder)
    elif kind in ("wav2vec2", "wavlm"):
        from tiny_wav2vec2 import write_base

        write_base(folder, kind, "layer")
    elif kind == "bert":
        from tiny_bert import write_bert

        write_bert(folder, ("the", "boy", "##s", "good", "bad"))
    elif kind in SPEECH:
        SPEECH[kind](folder)
    elif kind in ("t5", "t5 1.1", "marian"):
        tiny_encoder_decoder.write_folder(folder, kind)
    else:
        tiny_decoder.write_folder(folder, kind)


READERS = {
    "whisper": read_whisper,
    "wav2vec2": read_wav2vec2,
    "wavlm": read_wav2vec2,
    "bert": read_classifier,
    "t5": read_translator,
    "t5 1.1": read_translator,
    "marian": read_translator,
    "opt": read_decoder,
    "gemma3_text": read_decoder,
    "mixtral": read_decoder,
    **dict.fromkeys(EXTRACTED, read_extracted),
    **dict.fromkeys(tiny_bases.DECODER, read_listener),
}
STREAMING = ("vaak.tasks.quantised", "vaak.tasks.lm.pretrained", "vaak.tasks.seq2seq.pretrained")


@pytest.mark.parametrize("kind", mostly_slow([*READERS], "whisper", "wav2vec2", "bert", "t5"))
def test_layers_are_quantised_one_at_a_time_with_the_bits_of_the_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, prepared = tmp_path / kind, tmp_path / "prepared"
    if kind not in SPEECH:  # whose folder is made with them
        source.mkdir()
    prepared.mkdir()
    write(kind, source)
    quantised = list[weakref.ref[torch.Tensor]]()
    at_once = list[int]()

    def watched(weight: torch.Tensor) -> Any:
        quantised.append(weakref.ref(weight))
        at_once.append(sum(one() is not None for one in quantised))
        return quantise(weight)

    def read() -> tuple[Any, Any]:
        quantised.clear()
        at_once.clear()
        torch.manual_seed(0)
        model, compute = READERS[kind](source, prepared)
        with torch.no_grad():
            return model, compute(model.eval())

    for module in ("vaak.nn.lora", "vaak.tasks.quantised"):
        monkeypatch.setattr(f"{module}.quantise", watched)
    with monkeypatch.context() as before:
        for module in STREAMING:
            before.setattr(f"{module}.can_stream", lambda: False)
        whole, expected = read()
        number = len(quantised)
        assert not (prepared / FOUR_BITS).exists()
    streamed, logits = read()
    assert len(quantised) == number > 5, "the same layers"
    assert max(at_once) <= 2, "a layer's weight is gone before the next but one is read"
    again, kept = read()
    assert not quantised, "the second time nothing is quantised"
    assert len([*(prepared / FOUR_BITS).iterdir()]) == 1
    for model, found in ((streamed, logits), (again, kept)):
        assert {name for name, one in model.named_modules() if isinstance(one, NF4Linear)} == {
            name for name, one in whole.named_modules() if isinstance(one, NF4Linear)
        }
        theirs = whole.state_dict()
        assert theirs.keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            # Adapters of a network of ours are drawn after other numbers.
            assert "lora_A" in name or (tensor.dtype, True) == (theirs[name].dtype, torch.equal(tensor, theirs[name]))
        assert torch.equal(found, expected)
        assert not any(isinstance(one, FrozenLinear) for one in merged(model).modules())
    embeddings = {one.weight.dtype for one in streamed.modules() if type(one).__name__ == "FrozenEmbedding"}
    # Gemma's embedding scales its vectors; wav2vec 2.0 has none.
    assert embeddings == (set() if kind in ("gemma3_text", "wav2vec2", "wavlm", *EXTRACTED) else {torch.bfloat16})
