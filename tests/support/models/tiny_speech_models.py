"""Language models that listen as the Hub has them, but small: files, templates and layers of the real ones, drawn.

Qwen3-ASR, GLM-ASR   config.json, model.safetensors, processor_config.json, chat_template.jinja, tokenizer.json
Voxtral              config.json, model.safetensors, preprocessor_config.json, tekken.json

Source of the templates: transformers' conversion script of Qwen3-ASR, without tools and contexts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MERGES = [("b", "a"), ("d", "o"), ("Ġ", "do"), ("Ġ", "ba"), ("l", "a"), ("m", "i")]
TEXT = (
    "{{- (m.content if m.content is string else m.content | selectattr('type', 'equalto', 'text')"
    " | map(attribute='text') | join) -}}"
)
ANSWER = "{{- '<|im_start|>assistant\\n' -}}"
QWEN3_ASR = (
    "{{- '<|im_start|>system\\n<|im_end|>\\n<|im_start|>user\\n' -}}"
    "{{- '<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\\n' -}}"
    f"{{%- for m in messages if m.role == 'assistant' -%}}{ANSWER}{TEXT}{{{{- '<|im_end|>\\n' -}}}}{{%- endfor -%}}"
    f"{{%- if add_generation_prompt -%}}{ANSWER}{{%- endif -%}}"
)
GLM_ASR = (
    "{%- for m in messages -%}{{- '<|' + m.role + '|>\\n' -}}"
    "{%- if m.role == 'user' -%}{{- '<|begin_of_audio|><|pad|><|end_of_audio|><|user|>\\n' -}}{%- endif -%}"
    f"{TEXT}{{%- endfor -%}}{{%- if add_generation_prompt -%}}{{{{- '<|assistant|>\\n' -}}}}{{%- endif -%}}"
)
LANGUAGE_MODEL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 1024, "initializer_range": 0.3,
}  # fmt: skip
ENCODER = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEKKEN_SPECIAL = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]",
    13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]", 16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]",
}  # fmt: skip
"""Those that a Voxtral's tekken.json has at these ranks."""


def make_byte_tokenizer(*special: str, text: str = "", **named: Any) -> Any:
    """A tokenizer of bytes as Qwen's and GLM's; ``special`` tokens and the ``text`` one come after all others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(first + second for first, second in MERGES)]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in special])
    if text:
        tokenizer.add_tokens([AddedToken(text, special=False)])
    auto: Any = transformers.PreTrainedTokenizerFast
    return auto(tokenizer_object=tokenizer, **named)


def write_qwen3_asr(folder: Path) -> Path:
    """Qwen/Qwen3-ASR-0.6B-hf: tied weights, two tokens that end a text, chunks of 1 s that convolutions read alone."""
    audio = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}
    tokenizer = make_byte_tokenizer(
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", *audio.values(), text="<asr_text>",
        eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=audio,
    )  # fmt: skip
    extractor: Any = transformers.Qwen3ASRFeatureExtractor(feature_size=16)
    transformers.Qwen3ASRProcessor(extractor, tokenizer, chat_template=QWEN3_ASR).save_pretrained(folder)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    encoder = {"d_model": 16, "encoder_layers": 2, "encoder_ffn_dim": 32, "downsample_hidden_size": 4, **heads}
    config: Any = transformers.Qwen3ASRConfig(
        audio_config={"num_mel_bins": 16, "output_dim": 32, "max_position_embeddings": 13, **encoder},
        text_config={"vocab_size": len(tokenizer), "tie_word_embeddings": True, **LANGUAGE_MODEL},
        audio_token_id=tokenizer.convert_tokens_to_ids(audio["audio_token"]),
    )
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    return save(transformers.Qwen3ASRForConditionalGeneration(config), folder, ends)


def write_glmasr(folder: Path) -> Path:
    """zai-org/GLM-ASR-Nano-2512, whose windows are 30 s: here 2 s. An answer ends where the next turn would begin."""
    ends = ["<|endoftext|>", "<|user|>", "<|observation|>"]
    tokenizer = make_byte_tokenizer(
        *ends, "<|assistant|>", "<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>",
        eos_token="<|endoftext|>", pad_token="<|endoftext|>",
    )  # fmt: skip
    extractor: Any = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    transformers.GlmAsrProcessor(extractor, tokenizer, chat_template=GLM_ASR).save_pretrained(folder)
    config: Any = transformers.GlmAsrConfig(
        audio_config={"num_mel_bins": 16, "max_position_embeddings": 100, **ENCODER},
        text_config={"vocab_size": len(tokenizer), "eos_token_id": None, **LANGUAGE_MODEL},
        audio_token_id=tokenizer.convert_tokens_to_ids("<|pad|>"),
    )
    network = transformers.GlmAsrForConditionalGeneration(config)
    return save(network, folder, tokenizer.convert_tokens_to_ids(ends))


def write_tekken(file: Path) -> int:
    """Write Mistral's tokenizer of bytes and a few pieces; return its number of tokens."""
    pieces = [bytes([one]) for one in range(256)] + [b"ba", b"do", b" do", b" ba", b"la", b"mi"]
    special = [
        {"rank": rank, "token_str": TEKKEN_SPECIAL.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
        for rank in range(max(TEKKEN_SPECIAL) + 1)
    ]
    size = len(pieces) + len(special)
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    config = {
        "pattern": pattern, "num_vocab_tokens": len(pieces), "default_vocab_size": size,
        "default_num_special_tokens": len(special), "version": "v7",
    }  # fmt: skip
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": piece.decode(errors="replace")}
        for rank, piece in enumerate(pieces)
    ]
    audio = {
        "sampling_rate": 16000, "frame_rate": 12.5, "chunk_length_s": 30.0,
        "audio_encoding_config": {"num_mel_bins": 16, "hop_length": 160, "window_size": 400},
    }  # fmt: skip
    file.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special, "audio": audio}))
    return size


def write_voxtral(folder: Path) -> Path:
    """mistralai/Voxtral-Mini-3B-2507: its windows of 30 s, whose silence has its places in the prompt, too."""
    folder.mkdir(parents=True)
    size = write_tekken(folder / "tekken.json")
    extractor: Any = transformers.WhisperFeatureExtractor(feature_size=16)
    extractor.save_pretrained(folder)
    config: Any = transformers.VoxtralConfig(
        audio_config={"num_mel_bins": 16, **ENCODER},
        text_config={"vocab_size": size, "tie_word_embeddings": False, **LANGUAGE_MODEL},
        audio_token_id=24,
    )
    return save(transformers.VoxtralForConditionalGeneration(config), folder, [2], pad=11)


def save(model: Any, folder: Path, ends: list[int], pad: int | None = None) -> Path:
    """Write a model whose texts end by any of some tokens, and are 20 tokens long at most."""
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=ends, pad_token_id=ends[-1] if pad is None else pad, do_sample=False, max_new_tokens=20
    )
    model.save_pretrained(folder)
    return folder


LISTENERS: dict[str, Callable[[Path], Path]] = {
    "qwen3_asr": write_qwen3_asr,
    "glmasr": write_glmasr,
    "voxtral": write_voxtral,
}
"""A small base of each ``vaak.tasks.asr.bases:ListenerBase`` of DECODER_BASES."""


def ask(folder: Path, samples: Any, language: str = "en") -> dict[str, Any]:
    """Return the inputs that a model's own processor makes from audio, for a transcript in a language.

    Voxtral's needs mistral-common, which may not be installed, so its tokens are written here by hand.
    """
    auto: Any = transformers.AutoConfig
    kind = auto.from_pretrained(folder).model_type
    if kind != "voxtral":
        processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        options = {"language": language} if kind == "qwen3_asr" else {}
        return dict(processor.apply_transcription_request(samples, **options))
    extractor: Any = transformers.AutoFeatureExtractor.from_pretrained(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, mistral_format=False)
    features = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
    named = tokenizer(f"lang:{language}", add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[1, 3, 25, *[24] * 375, 4, *named, 34]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": features}


def transcribe(folder: Path, samples: Any, language: str = "en") -> str:
    """The text that transformers writes by a model in a folder."""
    auto: Any = transformers.AutoModelForMultimodalLM
    given = ask(folder, samples, language)
    written = auto.from_pretrained(folder).eval().generate(**given)[0, given["input_ids"].shape[1] :]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, mistral_format=False)
    # As Qwen3-ASR's processor has it (extract_transcription).
    return str(tokenizer.decode(written, skip_special_tokens=True)).rpartition("<asr_text>")[2].strip()
