"""A CTC model as an ONNX file: features in, log-probabilities out.

ctc.onnx         inputs: features (row, bin, frame) float32, as global_config says; feature_lengths (row,) int64
                 outputs: log_probs (row, frame, vocab), frame_lengths (row,)
tokenizer.json   vocabulary.json: the tokens; the blank is ``pad``, and those of ``never`` are no text
features.json    the options of features (Kaldi's names, of samples within 1), and how many of the encoder's frames
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vaak.core.storage.files import whole_folder, write_json
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, write_onnx
from vaak.tasks.asr.ctc.data import FrameFeatures
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.whisper import Vocabulary

AXES = {"features": {0: "row", 2: "frame"}, "feature_lengths": {0: "row"}}


def write_ctc_onnx(model: CtcModel, vocabulary: Vocabulary, features: FrameFeatures, folder: Path) -> float:
    """Write ``folder``, completely or not at all; return the largest difference from PyTorch's log-probabilities.

    Raises UserError as ``write_onnx`` does, and where the folder has something in it.
    """

    def call(given: CtcModel, rows: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        outputs: CtcOutputs = given(rows, lengths)
        return outputs.log_probs(), outputs.lengths

    def inputs(*lengths: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(lengths))
        rows = torch.randn(len(lengths), features.num_bins, max(lengths), generator=generator)
        return {"features": rows, "feature_lengths": torch.tensor(lengths)}

    others = [inputs(11), inputs(200, 3, 57)]
    exported = OnnxModule(
        ExportWrapper(model.eval(), call), inputs(40, 33), AXES, ("log_probs", "frame_lengths"), others
    )
    about = {**features.extract.config.model_dump(mode="json"), "subsampling": features.subsampling}
    with whole_folder(folder) as made:
        difference = write_onnx(made / "ctc.onnx", exported)
        vocabulary.save(made)
        write_json(made / "features.json", about)
    return difference
