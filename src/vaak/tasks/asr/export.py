"""A trained recogniser for other software: a Whisper for transformers, or an adapter for peft.

    hf      config.json  model.safetensors, and what processor.py writes
    peft    adapter_config.json  adapter_model.safetensors

Low-rank adapters are merged in the first, and alone in the second. Of a mixture, one expert is exported so. Its change
is multiplied by the weight that the gate gives it, which differs from utterance to utterance: by the mean weight of the
validation utterances that chose it, unless another is given. At that weight, it is the mixture's.
"""

from __future__ import annotations

from pathlib import Path

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.engine.checkpoint.names import step_of
from vaak.engine.records.metrics_file import read_records
from vaak.nn import lora
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.metrics import EXPERT_WEIGHT
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.processor import generation_of, write_processor


def _demand_one(model: AsrModel, expert: int | None) -> None:
    """Raises UserError where a model has experts, and none of them is chosen."""
    experts = model.experts
    if experts is None and expert is not None:
        raise UserError("an expert was chosen, but this model has none")
    if experts is not None and (expert is None or not 0 <= expert < experts.num_experts):
        raise UserError(f"choose one of the experts, 0 to {experts.num_experts - 1}")


def mean_weight(run: Path, checkpoint: Path, expert: int) -> float:
    """The mean weight that an expert had in the validation utterances that chose it, in a run's last evaluation.

    It is the last one up to the checkpoint. Raises UserError where none of them chose it, or that isn't known.
    """
    found = None
    if (run / "metrics.jsonl").exists():
        for record in read_records(run / "metrics.jsonl"):
            if record["kind"] == "evaluation" and record["step"] <= step_of(checkpoint):
                found = record.get(f"val_{EXPERT_WEIGHT}/{expert}")
    if not isinstance(found, float):
        raise UserError(
            f"--expert {expert}: what weight the gate gives this expert is not known: no validation utterance chose it "
            "in the last evaluation, or that was made by an earlier version, or the run is not there; give "
            "--expert-weight, such as 1"
        )
    return found


def write_whisper(transcriber: Transcriber, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
    """Write ``folder``, completely or not at all: the Whisper that transcribes as ``transcriber`` does.

    All changes are merged; that of an ``expert`` times ``weight``.

    Raises UserError where the folder has something in it, or no ``expert`` is chosen of several.
    """
    model, vocabulary = transcriber.model, transcriber.vocabulary
    _demand_one(model, expert)
    merged = lora.merged(model.whisper, expert, weight)
    with whole_folder(folder) as temporary:
        merged.save_pretrained(temporary)
        generation_of(model, vocabulary, transcriber.decoding).save_pretrained(temporary)
        write_processor(vocabulary, transcriber.features, temporary)


def write_adapter(
    model: AsrModel, options: AsrModelConfig, folder: Path, expert: int | None = None, weight: float = 1.0
) -> None:
    """Write ``folder``, completely or not at all, with the low-rank adapters alone; of an ``expert``, times ``weight``.

    They name the base of ``options``, which is to be the one that peft finds (``vaak.tasks.asr.base.name_of``).

    Raises UserError for a model without any, where the folder has something in it, or no ``expert`` is chosen.
    """
    _demand_one(model, expert)
    section = options.experts or options.lora
    targets = section.targets if section is not None else ()
    lora.write_adapter(list(lora.adapters_of(model.whisper, expert, weight)), section, targets, options.base, folder)
