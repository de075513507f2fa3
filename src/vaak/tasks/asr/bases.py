"""The kinds of transformers' networks that a run begins with, next to Whisper: a row says all about one. No torch.

Of architecture ctc (CTC_BASES), and of architecture decoder (DECODER_BASES):

    samples ──(feature extractor: steps)──▶ features ──(network: strides)──▶ frames ──head──▶ logits

To add a kind, add its row, and a case of it in tests/support/models/tiny_bases.py: the tests of every kind then compare
it with transformers, train it, resume it and export it, and write its line in docs/pretrained.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from vaak.nn.decoding.hotword_list import is_spelt, split_words

Convolutions = tuple[tuple[int, int, int], ...]
"""Kernel, stride and padding of layers, one after another."""
Number = TypeVar("Number", int, Any)


def count_steps(number: Number, layers: Convolutions) -> Number:
    """Return how many steps are left of a ``number``, or of a tensor of numbers, after convolutions.

    >>> count_steps(16_000, ((400, 160, 0), (2, 2, 0)))
    49
    """
    for kernel, stride, padding in layers:
        number = (number + 2 * padding - kernel) // stride + 1
    return number


def find_fewest(steps: int, layers: Convolutions) -> int:
    """Return the lowest number of which ``steps`` are left after convolutions.

    >>> find_fewest(1, ((400, 160, 0), (2, 2, 0)))
    560
    """
    for kernel, stride, padding in reversed(layers):
        steps = max(1, (steps - 1) * stride + kernel - 2 * padding)
    return steps


def _no_layers(about: Any) -> Convolutions:
    return ()


def _convolve_samples(config: Any) -> Convolutions:
    return tuple(
        (int(kernel), int(stride), 0) for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True)
    )


def _stack_filters(about: Mapping[str, Any]) -> Convolutions:
    """Return the framing of Kaldi's filters, 25 ms each 10 ms, with ``stride`` neighbours as one step."""
    return ((400, 160, 0), (about["stride"], about["stride"], 0))


def _adapt(config: Any) -> Convolutions:
    layers = config.num_adapter_layers if config.add_adapter else 0
    return ((config.adapter_kernel_size, config.adapter_stride, config.adapter_kernel_size // 2),) * layers


def _halve(config: Any) -> Convolutions:
    sizes = config.encoder_config
    kernel, stride = sizes.subsampling_conv_kernel_size, sizes.subsampling_conv_stride
    number = int(sizes.subsampling_factor).bit_length() - 1
    return ((kernel, stride, (kernel - 1) // 2),) * number


def _subsample_twice(config: Any) -> Convolutions:
    sizes = config.encoder_config
    return ((sizes.subsampling_conv_kernel_size, sizes.subsampling_conv_stride, 0),) * 2


@dataclass(frozen=True)
class CtcBase:
    """How a kind of network is put together, by the names and sizes that transformers has for it."""

    title: str
    reads: Literal["samples", "features"] = "samples"
    """Samples, or what the feature extractor of transformers makes of them."""
    steps: Callable[[Mapping[str, Any]], Convolutions] = _no_layers
    """How samples become features, by the options of the extractor (preprocessor_config.json)."""
    strides: Callable[[Any], Convolutions] = _convolve_samples
    """How what it reads becomes the frames that logits are of, by its configuration."""
    head: str = "lm_head"
    hides_frames: bool = True
    """Whether frames are hidden in training (model.masking), as the makers did; else features are (SpecAugment)."""

    def sizes(self, config: Any) -> Any:
        """Return the configuration of the network below the head."""
        return getattr(config, "encoder_config", config)

    def find_width(self, config: Any) -> int:
        """Return the width of the states that the head reads."""
        adapted = getattr(config, "add_adapter", False)
        return int(config.output_hidden_size if adapted else self.sizes(config).hidden_size)


CTC_BASES: dict[str, CtcBase] = {
    "wav2vec2": CtcBase("wav2vec 2.0, XLS-R, MMS"),
    "hubert": CtcBase("HuBERT"),
    "wavlm": CtcBase("WavLM"),
    "unispeech-sat": CtcBase("UniSpeech-SAT"),
    "wav2vec2-bert": CtcBase("w2v-BERT 2.0", reads="features", steps=_stack_filters, strides=_adapt),
    "parakeet_ctc": CtcBase(
        "Parakeet CTC",
        reads="features",
        steps=lambda about: ((about["hop_length"], about["hop_length"], 0),),
        strides=_halve,
        head="ctc_head",
        hides_frames=False,
    ),
    "lasr_ctc": CtcBase(
        "LASR (MedASR)",
        reads="features",
        steps=lambda about: ((about["win_length"], about["hop_length"], 0),),
        strides=_subsample_twice,
        head="ctc_head",
        hides_frames=False,
    ),
}
"""By transformers' ``model_type``. Not wav2vec2-conformer, whose convolutions read the padding of a row."""


def read_kind(base: str, folder: Path = Path()) -> CtcBase | None:
    """Return the kind of a base in a folder; None where that isn't known before it is fetched, or is another."""
    return CTC_BASES.get(read_type(base, folder) or "")


def read_type(base: str, folder: Path = Path()) -> str | None:
    """Return transformers' ``model_type`` of a base in a folder; None where it isn't known before it is fetched."""
    for place in (Path(base).expanduser(), folder / base):
        try:
            about = json.loads((place / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # A name of the Hub, or a folder that others complain about.
            continue
        return str(about.get("model_type", "")) if isinstance(about, dict) else None
    return None


def read_decoder_kind(base: str, folder: Path = Path()) -> DecoderBase | ListenerBase | None:
    """Return the kind of a base with a decoder; None as for ``read_kind``."""
    return DECODER_BASES.get(read_type(base, folder) or "")


def find_unspelt(base: str, hotwords: Iterable[str], folder: Path = Path()) -> list[str]:
    """Return the hotwords that the tokens of a CTC base can't write in any case; none where its tokens aren't known.

    They are known by a vocab.json with a token for each letter, or a tokenizer.json that is used unchanged.
    """
    for place in (Path(base).expanduser(), folder / base):
        config = _read_object(place / "tokenizer_config.json") or {}
        has_letters, has_pieces = ((place / name).is_file() for name in ("vocab.json", "tokenizer.json"))
        if has_pieces and config.get("tokenizer_class") in UNCHANGED_TOKENIZERS:
            return _find_unspelt_by_pieces(place / "tokenizer.json", config, hotwords)
        # The vocab.json next to a tokenizer.json may be that of its pieces.
        if has_letters and (not has_pieces or config.get("tokenizer_class") in LETTER_TOKENIZERS):
            found = _read_object(place / "vocab.json") or {}
            letters = [one for one in found if len(one) == 1]
            # By language, it holds a vocabulary for each.
            is_of_letters = bool(found) and all(isinstance(one, int) for one in found.values())
            return [one for one in hotwords if not is_spelt(one, letters)] if is_of_letters else []
    return []


UNCHANGED_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend", "ParakeetTokenizer", "ParakeetTokenizerFast")
"""Classes of transformers that read a tokenizer.json unchanged; others, such as LASR's, replace parts of it."""
LETTER_TOKENIZERS = ("Wav2Vec2CTCTokenizer",)


def _read_object(file: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None for a file that isn't there, or of which others complain."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _find_unspelt_by_pieces(file: Path, config: Mapping[str, Any], hotwords: Iterable[str]) -> list[str]:
    """Return the hotwords that a tokenizer.json can't write; ``config`` names tokens that no transcript has."""
    from tokenizers import Tokenizer

    from vaak.core.errors import catching_panics
    from vaak.text.coverage import find_unwritable

    try:
        with catching_panics(quietly=True):
            backend = Tokenizer.from_file(str(file))
    # tokenizers raises plain exceptions. Preparation says what is wrong with the file.
    except Exception:
        return []
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    named = [
        one.get("content") if isinstance(one, dict) else one for name, one in config.items() if name.endswith("_token")
    ]
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    ids = (backend.token_to_id(one) for one in (*named, *special) if isinstance(one, str))
    unknown = {one for one in ids if one is not None}
    lost = []
    for hotword in hotwords:
        text = " ".join(split_words(hotword))
        if all(find_unwritable(backend, [text, text.lower(), text.upper(), text.title()], unknown)):
            lost.append(hotword)
    return lost


@dataclass(frozen=True)
class DecoderBase:
    """How a kind of network with a decoder that attends to an encoder, other than a Whisper, is put together."""

    title: str
    strides: Convolutions
    """How samples become the positions that the decoder attends to."""
    languages: Literal["none", "names", "codes"] = "none"


@dataclass(frozen=True)
class ListenerBase:
    """A language model that reads what a projector makes of an encoder's states, in place of placeholders in a prompt.

    samples ──(feature extractor)──▶ frames ──(encoder, projector)──▶ positions of the prompt ──▶ transcript
    """

    title: str
    encoder: str
    """The name of the encoder in the network."""
    find_window: Callable[[Any], int]
    """Frames that the encoder reads at once, by its configuration; audio has a whole number of such windows."""
    count_positions: Callable[[Any, int], int]
    """Return how many positions of the prompt a number of real frames takes, by the configuration."""
    silence: Literal["masked", "dropped", "kept"]
    """What a window is padded with: hidden from the encoder; or read by it, and then dropped from the prompt, or kept.
    """
    languages: Literal["none", "names", "codes"] = "none"
    """How a prompt names the language: not at all, one of those that its processor knows, or any code of two letters.
    """
    marker: str | None = None
    """The token between the language and the transcript, where the model writes both."""


def _halve_chunks(config: Any, frames: int) -> int:
    """Count Qwen3-ASR's positions: three convolutions halve each chunk of frames by itself, the last one is shorter."""
    chunk = 2 * config.audio_config.n_window
    whole, rest = divmod(frames, chunk)
    halves: Convolutions = ((3, 2, 1),) * 3
    return int(whole * count_steps(chunk, halves) + (count_steps(rest, halves) if rest else 0))


def _join_positions(config: Any, frames: int) -> int:
    """Count positions after Whisper's encoder: a convolution halves the frames, and the projector joins neighbours."""
    sizes = config.audio_config
    return int(count_steps(frames, ((3, 2, 1),)) // (sizes.intermediate_size // sizes.hidden_size))


DECODER_BASES: dict[str, DecoderBase | ListenerBase] = {
    "moonshine": DecoderBase("Moonshine", ((127, 64, 0), (7, 3, 0), (3, 2, 0))),
    "qwen3_asr": ListenerBase(
        "Qwen3-ASR",
        encoder="audio_tower",
        find_window=lambda config: 2 * int(config.audio_config.n_window),
        count_positions=_halve_chunks,
        silence="masked",
        languages="names",
        marker="<asr_text>",
    ),
    "glmasr": ListenerBase(
        "GLM-ASR",
        encoder="audio_tower",
        find_window=lambda config: 2 * int(config.audio_config.max_position_embeddings),
        count_positions=_join_positions,
        silence="dropped",
    ),
    "voxtral": ListenerBase(
        "Voxtral",
        encoder="audio_tower",
        find_window=lambda config: 2 * int(config.audio_config.max_source_positions),
        count_positions=_join_positions,
        silence="kept",
        languages="codes",
    ),
}
"""By transformers' ``model_type``: of architecture decoder."""
NOT_READ = {
    "granite_speech": "its encoder reads the padding of a row",
    "granite_speech_plus": "its encoder reads the padding of a row",
    "moonshine_streaming": "its encoder is another",
    "voxtral_realtime": "it writes while it listens",
    "kyutai_speech_to_text": "it writes while it listens",
    "fun_asr_nano": "its front end is another",
    "vibevoice_asr": "it writes speakers and times as JSON",
    "moss_transcribe_diarize": "it writes speakers and times",
    "qwen2_audio": "it answers questions about audio; it has no request for transcripts",
    "phi4_multimodal": "it has a separate adapter for speech",
    "cohere_asr": "it has another kind of encoder",
    "canary": "it has another kind of encoder",
    "seamless_m4t": "it translates",
    "seamless_m4t_v2": "it translates",
    "dia": "it speaks",
}
"""Why other kinds that transformers has for audio aren't read."""


def explain_kind(kind: str, architecture: str) -> str | None:
    """Return why a base of a transformers' ``model_type`` isn't read as an ``architecture``, and what reads it, if any.

    None where it is read.
    """
    reads = {"whisper": ("whisper",), "ctc": tuple(CTC_BASES), "decoder": tuple(DECODER_BASES)}
    if kind in reads[architecture]:
        return None
    other = next((name for name, kinds in reads.items() if kind in kinds), None)
    if other is not None:
        return f"is a {kind}, which model.architecture: {other} reads, not {architecture}"
    why = f", which isn't read ({NOT_READ[kind]})" if kind in NOT_READ else ""
    return f"is a {kind}{why}; model.architecture: {architecture} takes {', '.join(reads[architecture])}"
