"""A CTC model as an ONNX file: features in, log-probabilities out; for onnxruntime, or for sherpa-onnx.

onnx
ctc.onnx         inputs: features (row, bin, frame) float32, as global_config says; feature_lengths (row,) int64
                 outputs: log_probs (row, frame, vocab), frame_lengths (row,)
tokenizer.json   vocabulary.json: the tokens; the blank is ``pad``, and those of ``never`` aren't text
features.json    the options of features (Kaldi's names, of samples within 1), and how many of the encoder's frames

sherpa-onnx      as icefall's Zipformers, whose features have ``SHERPA_FEATURES``'s options
model.onnx       inputs: x (row, frame, bin) float32; x_lens (row,) int64
                 outputs: log_probs (row, frame, vocab), log_probs_len (row,); what is never said has
                 less by ``MASKED_LOGIT``
tokens.txt       a token and its number in each line; the blank is <blk>, a space before a word ▁
online.onnx      of a Conformer that streams, one chunk, as WeNet's models for sherpa-onnx's OnlineRecognizer
                 inputs: x (1, frame, bin) as Kaldi scales them; offset, required_cache_size (1,) int64;
                 attn_cache (block, head, left, 2 · head_width) keys and values; conv_cache (block, 1, width,
                 kernel − 1); attn_mask (1, 1, left + frame), True where something was heard
                 outputs: log_probs (1, frame, vocab), next_attn_cache, next_conv_cache
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from vaak.audio.config import AudioConfig
from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder, write_json, write_text
from vaak.nn.config import ConformerConfig
from vaak.nn.conformer import ConformerStack
from vaak.nn.lora import merged
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, quantize, write_onnx
from vaak.tasks.asr.ctc.data import FrameFeatures
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.ctc.predict import decode_tokens
from vaak.tasks.asr.export import MASKED_LOGIT, ChosenExperts, gathered
from vaak.tasks.asr.vocabulary import Vocabulary

Run = Callable[[CtcModel, Tensor, Tensor], CtcOutputs]


def exportable(model: CtcModel) -> tuple[CtcModel, Run]:
    """Return a model that an exporter can follow, and how it is run: adapters merged, experts chosen by ``topk``."""
    if model.experts is None:
        return merged(model).eval(), lambda given, rows, lengths: given(rows, lengths)
    chosen, top_k = ChosenExperts(), model.experts.top_k

    def run(given: CtcModel, rows: Tensor, lengths: Tensor) -> CtcOutputs:
        chosen.experts = chosen.weights = None
        chosen.choose(given.gate, given.read_for_gate(rows, lengths), top_k)
        states, lengths = given.encode(rows, lengths)
        return CtcOutputs(given.project(states), lengths)

    return gathered(model, "", chosen), run


AXES = {"features": {0: "row", 2: "frame"}, "feature_lengths": {0: "row"}}


def write_ctc_onnx(model: CtcModel, vocabulary: Vocabulary, features: FrameFeatures, folder: Path) -> float:
    """Write ``folder``, completely or not at all; return the largest difference from PyTorch's log-probabilities.

    Raises UserError as ``write_onnx`` does, and if the folder has something in it.
    """

    exported_model, run = exportable(model)

    def call(given: CtcModel, rows: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        outputs = run(given, rows, lengths)
        return outputs.log_probs(), outputs.lengths

    def inputs(*lengths: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(lengths))
        rows = torch.randn(len(lengths), features.num_bins, max(lengths), generator=generator)
        return {"features": rows, "feature_lengths": torch.tensor(lengths)}

    # An axis whose size became a constant in tracing fails with other sizes. 3 frames are less than one of the
    # encoder's with the usual subsampling of 4.
    others = [inputs(11), inputs(200, 3, 57)]
    exported = OnnxModule(
        ExportWrapper(exported_model, call), inputs(40, 33), AXES, ("log_probs", "frame_lengths"), others
    )
    about = {**features.extract.config.model_dump(mode="json"), "subsampling": features.subsampling}
    with whole_folder(folder) as made:
        difference = write_onnx(made / "ctc.onnx", exported)
        vocabulary.save(made)
        write_json(made / "features.json", about)
    return difference


SHERPA_FEATURES = {
    "feature_type": "fbank",
    "frame_length": 0.025,
    "frame_shift": 0.01,
    "round_to_power_of_two": True,
    "remove_dc_offset": True,
    "preemph_coeff": 0.97,
    "window_type": "povey",
    "dither": 0.0,
    "snip_edges": False,
    "use_energy": False,
    "use_fft_mag": False,
    "low_freq": 20.0,
    "high_freq": -400.0,
}
"""The options of features that sherpa-onnx has for such a model; rate and number of filters are told to it."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


def refused_by_sherpa(audio: AudioConfig) -> str | None:
    """Return why sherpa-onnx can't make the features of a model; None if it can."""
    for name, value in SHERPA_FEATURES.items():
        if getattr(audio, name) != value:
            return f"sherpa-onnx has features with global_config.{name} {value}, not {getattr(audio, name)}"
    return None


def write_sherpa(
    model: CtcModel,
    vocabulary: Vocabulary,
    features: FrameFeatures,
    folder: Path,
    quantization: str | None,
    chunk: int | None = None,
) -> None:
    """Write ``folder``, completely or not at all, for sherpa-onnx's ``OfflineRecognizer.from_zipformer_ctc``.

    With ``quantization`` int8, there is ``model.int8.onnx``, too: weights of matrices in 8 bits, by onnxruntime. With
    ``chunk``, a number of the encoder's frames, there is ``online.onnx`` for ``OnlineRecognizer.from_wenet_ctc``.

    Raises UserError as ``write_onnx`` does, and if the folder has something in it.
    """
    ids = vocabulary.ids
    lowered = torch.zeros(ids.size).index_fill(0, torch.tensor(ids.never, dtype=torch.long), -MASKED_LOGIT)

    exported_model, run = exportable(model)

    def call(given: CtcModel, x: Tensor, x_lens: Tensor) -> tuple[Tensor, ...]:
        outputs = run(given, x.transpose(1, 2), x_lens)
        # sherpa-onnx has no list of tokens to leave out, so the file itself makes them improbable.
        return outputs.log_probs() + lowered, outputs.lengths

    def inputs(*lengths: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(lengths))
        x = torch.randn(len(lengths), max(lengths), features.num_bins, generator=generator)
        return {"x": x, "x_lens": torch.tensor(lengths)}

    axes = {"x": {0: "row", 1: "frame"}, "x_lens": {0: "row"}}
    # sherpa-onnx chooses its reader by model_type; that of a Zipformer has these inputs and outputs, whatever is
    # between.
    metadata = {"model_type": "zipformer2_ctc", "version": "1", "subsampling_factor": str(features.subsampling)}
    metadata |= {"vocab_size": str(ids.size), "comment": "a Conformer of Vaak"}
    names, others = ("log_probs", "log_probs_len"), [inputs(11), inputs(200, 3, 57)]
    exported = OnnxModule(ExportWrapper(exported_model, call), inputs(40, 33), axes, names, others, metadata)
    with whole_folder(folder) as made:
        write_onnx(made / "model.onnx", exported)
        if quantization is not None:
            quantize(made / "model.onnx", made / "model.int8.onnx")
        if chunk is not None:
            write_onnx(made / "online.onnx", _make_online(exported_model, lowered, chunk))
        write_text(made / "tokens.txt", "".join(f"{name} {number}\n" for number, name in enumerate(_names(vocabulary))))


KALDI_SCALE = 2 * math.log(32768)
"""How much higher log powers of 16-bit numbers are than those of samples within ±1."""
LOWEST_LOG_POWER = math.log(torch.finfo(torch.float32).eps)
"""The floor of the mel filters."""


def refused_online(config: ConformerConfig, chunk: int) -> str | None:
    """Return why sherpa-onnx's online recogniser can't have a Conformer that reads ``chunk`` frames; None if it can."""
    if config.left_frames < chunk or config.left_frames % chunk:
        return f"model.conformer.left_frames ({config.left_frames}) isn't a multiple of a chunk's {chunk} frames"
    if (
        config.num_key_value_heads not in (None, config.num_heads)
        or config.head_width * config.num_heads != config.d_model
    ):
        return "it has as many keys and values as queries, which together are as wide as the stream"
    return "it needs model.conformer.kernel_size 3 or more" if config.kernel_size < 3 else None


def _make_online(model: CtcModel, lowered: Tensor, chunk: int) -> OnnxModule:
    """Return a streaming model as a function of one chunk of ``chunk`` frames, in the form of WeNet's.

    ``lowered``, (token,), is added to the log-probabilities.
    """
    config, stack, subsampling = model.config, cast("ConformerStack", model.encoder.stack), model.encoder.subsampling
    width = config.head_width

    def call(given: CtcModel, x: Tensor, offset: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        size, keys, frames, seen = kept
        cache = stack.new_cache()
        for number, layer in enumerate(cache.self_attention):
            one = keys[number : number + 1]
            layer.tensors = {"keys": one[..., :width], "values": one[..., width:], "convolution": frames[number].mT}
        # Both have the same floor on their own scale, so digital silence is as low here once it is clamped.
        rows = given.normalise((x - KALDI_SCALE).clamp(min=LOWEST_LOG_POWER), size)
        states = stack.next_chunk(subsampling.whole_frames(rows), cache, offset, seen[0, 0])
        layers = [layer.tensors for layer in cache.self_attention]
        return (
            given.project(states).log_softmax(-1) + lowered,
            torch.cat([torch.cat((one["keys"], one["values"]), -1) for one in layers]),
            torch.stack([one["convolution"].mT for one in layers]),
        )

    inputs, *others = (_draw_chunk(model, chunk, past) for past in (0, chunk, config.left_frames))
    metadata = {
        "head": config.num_heads,
        "num_blocks": config.num_layers,
        "output_size": config.d_model,
        "cnn_module_kernel": config.kernel_size,
        "right_context": subsampling.read_on,
        "subsampling_factor": subsampling.factor,
        "vocab_size": len(lowered),
        "chunk_size": chunk,
        "left_chunks": config.left_frames // chunk,
    }
    names = ("log_probs", "next_attn_cache", "next_conv_cache")
    strings = {"model_type": "wenet_ctc", **{name: str(value) for name, value in metadata.items()}}
    return OnnxModule(ExportWrapper(model, call), inputs, {}, names, others, strings)


def _draw_chunk(model: CtcModel, chunk: int, past: int) -> dict[str, Tensor]:
    """Draw inputs of a streaming model for a chunk of ``chunk`` frames that comes after ``past`` others."""
    config, subsampling = model.config, model.encoder.subsampling
    left, generator = config.left_frames, torch.Generator().manual_seed(past)
    # As many feature frames as a chunk needs; those after its last frame are read again by the next chunk.
    num_features = (chunk - 1) * subsampling.factor + subsampling.read_on + 1

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "x": draw(1, num_features, len(model.get_buffer("mean"))) * 4 + 12,
        "offset": torch.tensor([left + past]),
        "required_cache_size": torch.tensor([left]),
        "attn_cache": draw(config.num_layers, config.num_heads, left, 2 * config.head_width),
        "conv_cache": draw(config.num_layers, 1, config.d_model, config.kernel_size - 1),
        "attn_mask": (torch.arange(left + chunk) >= left - past)[None, None],
    }


def _names(vocabulary: Vocabulary) -> list[str]:
    """Return the name of each token for sherpa-onnx. Raises UserError for one that a line of tokens.txt can't hold."""
    ids, found = vocabulary.ids, list[str]()
    for number, piece in enumerate(decode_tokens(vocabulary)):
        own = vocabulary.backend.id_to_token(number) or ""
        if number == ids.pad:
            name = "<blk>"
        elif number in ids.never:
            name = f"<never-{number}>"
        elif BYTE.fullmatch(own):
            # Sherpa-onnx joins bytes to characters.
            name = own
        else:
            # sherpa-onnx writes ▁ as a space.
            name = "▁" + piece[1:] if piece[:1] == " " else piece
        if not name or "\ufffd" in name or any(one.isspace() for one in name):
            raise UserError(
                f"--format sherpa-onnx: tokens.txt can't have the token {own!r}; use data.tokenizer.type "
                "character or bpe"
            )
        found.append(name)
    return found
