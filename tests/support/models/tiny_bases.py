"""Pretrained models as the Hub has them, but small: the files and the layers of the real ones, weights drawn.

w2v-BERT 2.0     config.json, model.safetensors, preprocessor_config.json, vocab.json, tokenizer_config.json
Parakeet, LASR   config.json, model.safetensors, processor_config.json, tokenizer.json, tokenizer_config.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tiny_speech_models import LISTENERS
from tiny_wav2vec2 import write_base as write_wav2vec2

LETTERS = "abdimosu"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def write_letters(folder: Path) -> int:
    """Write a tokenizer of letters, as of fine-tuned encoders, to a folder; return its number of tokens."""
    names = ["[PAD]", "[UNK]", "|", *LETTERS]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    auto: Any = transformers.Wav2Vec2CTCTokenizer
    tokenizer = auto(str(folder / "vocab.json"), unk_token="[UNK]", pad_token="[PAD]", word_delimiter_token="|")
    tokenizer.save_pretrained(folder)
    return len(tokenizer)  # <s> and </s>, which transformers adds, are counted by the recipes that people follow


def make_pieces(*special: str) -> Tokenizer:
    """A tokenizer of pieces of words, ``special`` ones first."""
    merges = [("▁", "b"), ("▁b", "a"), ("d", "o"), ("▁", "do")]
    names = [*special, "▁", *LETTERS, *(first + second for first, second in merges)]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def save(model: Any, folder: Path) -> Path:
    """Write a model; statistics of batch normalisation are those of some data, not of none."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.normal_(module.get_buffer("running_mean"), std=0.3)
            torch.nn.init.uniform_(module.get_buffer("running_var"), 0.5, 2.0)
    model.save_pretrained(folder)
    return folder


def write_w2v_bert(folder: Path, adapts: bool = False, tuned: bool = True, **changes: Any) -> Path:
    """facebook/w2v-bert-2.0, or what Hugging Face's recipe makes of it, which ``adapts`` its frames."""
    folder.mkdir(parents=True)
    vocab_size = write_letters(folder) if tuned else None
    config: Any = transformers.Wav2Vec2BertConfig(
        **SIZES, vocab_size=vocab_size or 32, feature_projection_input_dim=160, output_hidden_size=32,
        conv_depthwise_kernel_size=7, add_adapter=adapts, position_embeddings_type="relative_key",
        left_max_position_embeddings=8, right_max_position_embeddings=4, mask_time_prob=0.0 if adapts else 0.05,
        **changes,
    )  # fmt: skip
    extractor: Any = transformers.SeamlessM4TFeatureExtractor(padding_value=1.0)
    extractor.save_pretrained(folder)
    auto: Any = transformers.Wav2Vec2BertForCTC if tuned else transformers.Wav2Vec2BertModel
    return save(auto(config), folder)


ENCODER = {**SIZES, "num_mel_bins": 80, "subsampling_conv_channels": 8}


def write_parakeet(folder: Path) -> Path:
    """nvidia/parakeet-ctc-0.6b, as transformers' conversion writes it: <unk> first, <pad>, which is the blank, last."""
    wrap: Any = transformers.ParakeetTokenizer
    tokenizer = wrap(tokenizer_object=make_pieces("<unk>"), clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"pad_token": "<pad>", "unk_token": "<unk>"})
    processor: Any = transformers.ParakeetProcessor
    processor(transformers.ParakeetFeatureExtractor(), tokenizer, decoder_type="ctc").save_pretrained(folder)
    encoder: Any = transformers.ParakeetEncoderConfig(**ENCODER, conv_kernel_size=5)
    config: Any = transformers.ParakeetCTCConfig
    made = config(encoder_config=encoder, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    auto: Any = transformers.ParakeetForCTC
    return save(auto(made), folder)


def write_lasr(folder: Path) -> Path:
    """google/medasr: <pad>, which is the blank, first, and unused tokens of T5's last."""
    wrap: Any = transformers.LasrTokenizer
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -2.0),
        *((one, -3.0) for one in LETTERS),
        ("▁ba", -1.0),
    ]
    tokenizer = wrap(vocab=pieces, extra_ids=2)
    processor: Any = transformers.LasrProcessor
    extractor: Any = transformers.LasrFeatureExtractor(feature_size=80)
    processor(extractor, tokenizer).save_pretrained(folder)
    encoder: Any = transformers.LasrEncoderConfig(**ENCODER, conv_kernel_size=5)
    config: Any = transformers.LasrCTCConfig
    auto: Any = transformers.LasrForCTC
    return save(auto(config(encoder_config=encoder, vocab_size=len(tokenizer), pad_token_id=0)), folder)


def write_samples(family: str) -> Callable[[Path], Path]:
    """Return what writes a base that reads samples, and has letters."""

    def write(folder: Path) -> Path:
        write_wav2vec2(folder, family, "layer")
        write_letters(folder)
        return folder

    return write


CTC: dict[str, Callable[[Path], Path]] = {
    **{family: write_samples(family) for family in ("wav2vec2", "hubert", "wavlm", "unispeech-sat")},
    "wav2vec2-bert": write_w2v_bert,
    "parakeet_ctc": write_parakeet,
    "lasr_ctc": write_lasr,
}
"""A small base of each kind of ``vaak.tasks.asr.bases:CTC_BASES``."""


def write_moonshine(folder: Path) -> Path:
    """UsefulSensors/moonshine-tiny: tokens of Llama's kind, samples that aren't normalised, weights that are tied."""
    tokenizer: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_pieces("<unk>", "<s>", "</s>"),
        bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>",
    )  # fmt: skip
    extractor: Any = transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)
    processor: Any = transformers.Wav2Vec2Processor
    processor(extractor, tokenizer).save_pretrained(folder)
    extractor.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    layers = {f"{side}_num_hidden_layers": 2 for side in ("encoder", "decoder")}
    heads = {f"{side}_num_attention_heads": 2 for side in ("encoder", "decoder")}
    config: Any = transformers.MoonshineConfig(**sizes, **layers, **heads, pad_token_id=2)
    auto: Any = transformers.MoonshineForConditionalGeneration
    model = auto(config)
    model.generation_config.max_length = 24
    return save(model, folder)


DECODER: dict[str, Callable[[Path], Path]] = {"moonshine": write_moonshine, **LISTENERS}
"""A small base of each kind of ``vaak.tasks.asr.bases:DECODER_BASES``."""


ENDS = {  # start, padding, end, unknown, mask, in the order of the real vocabularies
    "modernbert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "mmbert": ("<bos>", "<pad>", "<eos>", "<unk>", "<mask>"),
}


def write_encoder(kind: str) -> Callable[[Path], Path]:
    """Return what writes an encoder of text: ModernBERT, mmBERT (the same with Gemma's tokens), XLM-R (as e5 is)."""

    def write(folder: Path) -> Path:
        begin, padding, end, unknown, mask = ENDS[kind]
        made = make_pieces(begin, padding, end, unknown, mask)
        made.model = models.BPE(made.get_vocab(), [("▁", "b"), ("▁b", "a"), ("d", "o"), ("▁", "do")], unk_token=unknown)
        made.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} $B {end}",
            special_tokens=[(name, made.token_to_id(name)) for name in (begin, end)],
        )
        special = {"cls_token": begin, "bos_token": begin, "sep_token": end, "eos_token": end}
        special |= {"pad_token": padding, "unk_token": unknown, "mask_token": mask}
        wrap: Any = transformers.PreTrainedTokenizerFast
        wrap(tokenizer_object=made, model_max_length=30, **special).save_pretrained(folder)
        ids = {"bos_token_id": 0, "cls_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
        family = "xlm-roberta" if kind == "xlm-roberta" else "modernbert"
        auto: Any = transformers.AutoConfig
        config = auto.for_model(family, vocab_size=len(made.get_vocab()), max_position_embeddings=32, **SIZES, **ids)
        network: Any = transformers.AutoModelForMaskedLM
        return save(network.from_config(config), folder)

    return write


ENCODERS = {kind: write_encoder(kind) for kind in ENDS}
