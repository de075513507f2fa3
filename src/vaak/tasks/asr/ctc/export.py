"""A CTC model as an ONNX file: features in, log-probabilities out; for onnxruntime, or for sherpa-onnx.

onnx
ctc.onnx         inputs: features (row, bin, frame) float32, as global_config says; feature_lengths (row,) int64
                 outputs: log_probs (row, frame, vocab), frame_lengths (row,)
tokenizer.json   vocabulary.json: the tokens; the blank is ``pad``, and those of ``never`` aren't text
features.json    the options of features (Kaldi's names, of samples within 1), and how many of the encoder's frames

sherpa-onnx      as icefall's Zipformers, whose features have ``SHERPA``'s options
model.onnx       inputs: x (row, frame, bin) float32; x_lens (row,) int64
                 outputs: log_probs (row, frame, vocab), log_probs_len (row,); what is never said has
                 less by ``MASKED_LOGIT``
tokens.txt       a token and its number in each line; the blank is <blk>, a space before a word ▁
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vaak.audio.config import AudioConfig
from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder, write_json, write_text
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

    Raises UserError as ``write_onnx`` does, and where the folder has something in it.
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


SHERPA = {
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
    """Why sherpa-onnx can't make the features of a model; None where it can."""
    for name, value in SHERPA.items():
        if getattr(audio, name) != value:
            return f"sherpa-onnx has features with global_config.{name} {value}, not {getattr(audio, name)}"
    return None


def write_sherpa(
    model: CtcModel, vocabulary: Vocabulary, features: FrameFeatures, folder: Path, quantization: str | None
) -> None:
    """Write ``folder``, completely or not at all, for sherpa-onnx's ``OfflineRecognizer.from_zipformer_ctc``.

    With ``quantization`` int8, there is ``model.int8.onnx``, too: weights of matrices in 8 bits, by onnxruntime.

    Raises UserError as ``write_onnx`` does, and where the folder has something in it.
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
        write_text(made / "tokens.txt", "".join(f"{name} {number}\n" for number, name in enumerate(_names(vocabulary))))


def _names(vocabulary: Vocabulary) -> list[str]:
    """The name of each token for sherpa-onnx. Raises UserError for one that a line of tokens.txt can't hold."""
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
