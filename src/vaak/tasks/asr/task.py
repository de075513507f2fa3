"""The speech recognition task: what the engine asks, answered.

- ``prepare``: corpora as utterances, and the vocabulary of transcripts, once (prepare.py)
- ``dataset``: Whisper's features and tokens of transcripts (data.py)
- ``losses``: cross-entropy of each token given the audio and the true tokens before it; per token
- ``count_choices``: the first pass, which balancing a mixture's experts by a loss needs
- ``meters``: loss and accuracy, WER and CER in total and by group (metrics.py)
- ``predict``: audio files as transcripts (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from torch import Tensor, nn

from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.findings import cut_findings
from vaak.audio.cuts.recordings import UNUSABLE
from vaak.core.batch import Batch, FirstPass, Term
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import DataFinding
from vaak.core.task import Outputs as TaskOutputs
from vaak.nn.lora import USE, load_balancing, uses_of
from vaak.nn.losses import IGNORED, losses_of_logits
from vaak.runs.prepared import Recipe
from vaak.tasks.asr.checks import LOAD_BALANCING
from vaak.tasks.asr.config import SCRATCH, AsrDecodingConfig, AsrExperiment
from vaak.tasks.asr.data import AsrDataset, WhisperFeatures
from vaak.tasks.asr.estimate import meta_batch, meta_model, source_files
from vaak.tasks.asr.export import mean_weight, write_adapter, write_mixture, write_mixture_onnx, write_whisper
from vaak.tasks.asr.metrics import AsrMeters
from vaak.tasks.asr.model import AsrModel, AsrOutputs, Encoded
from vaak.tasks.asr.predict import Transcriber, Transcript
from vaak.tasks.asr.prepare import MAY_DIFFER, READING, AsrSources, PreparedUtterances, recipe
from vaak.tasks.asr.spec import SPEC
from vaak.tasks.asr.whisper import base_of, loaded_whisper, name_of, positions_of, random_whisper, scratch_config
from vaak.tasks.base import PreparedTask, refuse_other_options
from vaak.tasks.prepared_cuts import corpora_of, read_for, training_cuts
from vaak.tasks.pretrained import load_or_init

HEARD = "heard"
"""The tensor of a batch that has what the gate reads."""
VOICES = (DatasetConfig(type="voices"),)
SHOWN = 5
"""Validation utterances whose transcripts are shown after training."""


class AsrTask(PreparedTask[AsrExperiment, PreparedUtterances]):
    """Trains a Whisper model to transcribe speech."""

    SPEC = SPEC
    PREPARED = PreparedUtterances
    grouped_by = "speaker"
    auxiliary_losses = (LOAD_BALANCING,)

    def __init__(self, experiment: AsrExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.options, self.data, self.audio = experiment.model, experiment.data, experiment.global_config
        self.datasets = experiment.datasets or VOICES
        self._datasets: dict[str, AsrDataset] = {}
        experts = experiment.model.experts
        if experts is not None and LOAD_BALANCING in experiment.training.loss.auxiliary:
            self.first_pass = self.count_choices
        if experts is not None and experts.balancing_bias:
            self.observed = tuple(f"{USE}/{expert}" for expert in range(experts.num_experts))

    # Data.

    def corpora(self) -> list[AudioCorpus]:
        return corpora_of(self.datasets, self.audio)

    def examples_at_most(self) -> Iterator[float] | None:
        cuts = None if self.data.too_long == "split" else training_cuts(self.corpora())
        return None if cuts is None else (float(max(1, len(cut.supervisions))) for cut in cuts)

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        return recipe(AsrSources.of(self.experiment, self.datasets, self.folder), splits)

    def prepare_eval_data(self, own: AsrExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        """With the run's vocabulary and base. If the corpora are the run's own, its utterances are used.

        Raises UserError for other features.
        """
        refuse_other_options(own.global_config, self.audio, "global_config", READING)
        refuse_other_options(own.data, self.data, "data", MAY_DIFFER)
        datasets = own.datasets or VOICES
        differ = datasets != self.datasets or self.data.group != own.data.group
        if splits and (differ or self.prepared.lacks(splits)):
            others = AsrSources.of(self.experiment, read_for(splits, self.datasets), self.folder)
            self.prepared = PreparedUtterances.make(recipe(others, splits, self.prepared), folder)
        self._datasets.clear()

    def dataset(self, split: str) -> AsrDataset:
        if split not in self._datasets:
            is_train = split == "train"
            self._datasets[split] = AsrDataset(
                self.prepared.utterances(split),
                self.prepared.vocabulary,
                self.features,
                self.audio,
                self.data.augmentation if is_train else None,
                self.data.decoding.valid_examples if split == "valid" else None,
            )
        return self._datasets[split]

    @property
    def features(self) -> WhisperFeatures:
        """Those that the model reads."""
        scratch = self.options.base == SCRATCH
        num_bins = self.audio.num_mel_bins if scratch else self.prepared.base_config.num_mel_bins
        return WhisperFeatures(num_bins, self.data.max_duration)

    def sources(self) -> list[Path]:
        """The files that ``prepare`` would read. Raises DataError for one that doesn't exist."""
        return source_files(self.experiment, self.datasets, self.folder)

    def prepare_for_check(self) -> None:
        data = self.data.model_copy(update={"on_bad_example": "skip", "cache_dir": None})
        self.experiment = self.experiment.model_copy(update={"data": data})
        self.prepare()

    def data_findings(self, split: str) -> Iterator[DataFinding]:
        """What can't be used, what is left out, and what is wrong with the audio of the utterances."""
        about = self.prepared.about["statistics"][split]
        mark: Literal["problem", "warning"] = "warning" if self.data.on_bad_example == "skip" else "problem"
        yield from (DataFinding(one["name"], "unusable", one["reason"], mark) for one in about["unusable"])
        for reason, number in about["left_out"].items():
            if reason != UNUSABLE:
                yield DataFinding("", "left out", f"{number:,} {reason}", "warning")
        yield from cut_findings(self.prepared.utterances(split).cuts, self.audio)

    # Training.

    def meta_model(self) -> AsrModel | None:
        """A model like the trained one, before its vocabulary is known; None for a base of the Hub."""
        return meta_model(self.experiment, self.folder)

    def meta_batch(self) -> Batch | None:
        """A microbatch as large as one of training may become; None for a base of the Hub."""
        return meta_batch(self.experiment, self.folder)

    def model(self) -> AsrModel:
        """The base, with what is added to it.

        Where a run has checkpoints, which have all weights, its base may have gone.
        """
        options, seconds = self.options, self.data.max_duration
        if options.base == SCRATCH:
            ids = self.prepared.vocabulary.ids
            whisper = random_whisper(scratch_config(options.scratch, ids, self.audio.num_mel_bins, seconds))
            return AsrModel(whisper)
        whisper = load_or_init(
            self.directory,
            lambda: loaded_whisper(base_of(options, self.folder), seconds),
            lambda: self._random_whisper(seconds),
        )
        return AsrModel(whisper, options.lora, options.experts)

    def _random_whisper(self, seconds: float) -> Any:
        config = self.prepared.base_config
        config.max_source_positions = positions_of(seconds)
        return random_whisper(config)

    def count_choices(self, model: nn.Module, batch: Batch) -> FirstPass:
        """How often each expert is chosen, and what the gate reads."""
        listener = cast("AsrModel", model)
        heard = listener.hear(batch["features"])
        return FirstPass(uses_of(listener.route(heard)[1]), {HEARD: heard})

    def _outputs(self, model: nn.Module, batch: Batch) -> AsrOutputs:
        outputs: AsrOutputs = model(batch["features"], batch["inputs"], batch.tensors.get(HEARD))
        return outputs

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        outputs = self._outputs(model, batch)
        auxiliary, encoded = self.experiment.training.loss.auxiliary, outputs.encoded
        terms = losses_of_logits(self.main_loss, auxiliary, outputs.logits, batch["targets"], per="token")
        if encoded.gate is not None and encoded.weights is not None:
            if LOAD_BALANCING in auxiliary:
                alone = batch.step_sums is None  # outside of a step, a batch is all of it
                uses = uses_of(encoded.weights) if batch.step_sums is None else batch.step_sums
                terms[LOAD_BALANCING] = Term(load_balancing(encoded.gate, uses), "example", splittable=not alone)
            if self.observed:
                terms |= {name: Term(times, per="example") for name, times in uses_of(encoded.weights).items()}
        return terms

    def outputs(self) -> TaskOutputs:
        vocabulary, features = self.prepared.vocabulary, self.features
        ids = asdict(vocabulary.ids)
        reading = fingerprint_of([vocabulary.content, ids, features.num_mel_bins, features.seconds])
        return TaskOutputs({"token": vocabulary.tokens()}, "token", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = self._outputs(model, batch)
        return {"token": outputs.logits[batch["targets"] != IGNORED]}

    def meters(self, split: str) -> AsrMeters:
        decoding, dataset = self.data.decoding, self.dataset(split)
        protocol = {"split": split, "normaliser": self.data.normaliser, "decoding": decoding.method}
        if decoding.method == "beam":
            protocol |= {name: str(getattr(decoding, name)) for name in ("beam_size", "length_penalty")}
        protocol["transcribed"] = str(min(dataset.num_transcribed, len(dataset.utterances)))

        def transcribe(model: AsrModel, encoded: Encoded) -> list[str]:
            return self.transcriber(model).texts_of(encoded)

        return AsrMeters(protocol, transcribe, dataset.utterances.group_names)

    def show(self, batch: Batch) -> list[str]:
        """The name and the transcript of each row."""
        return [f"{name}: {text}" for name, text in zip(batch.extra["names"], batch.extra["texts"], strict=True)]

    # Use.

    def transcriber(self, model: nn.Module, **options: Any) -> Transcriber:
        """The model with what it reads and writes; ``options`` override those of ``data.decoding``."""
        decoding = AsrDecodingConfig(**{**self.data.decoding.model_dump(), **options})
        vocabulary = self.prepared.vocabulary
        return Transcriber(cast("AsrModel", model), vocabulary, self.features, decoding, self.audio.channels)

    def predict(self, model: nn.Module, inputs: Iterable[Path | str]) -> Iterator[Transcript]:
        """The transcript of each audio file."""
        transcriber = self.transcriber(model)
        return (transcriber.transcribe(Path(path)) for path in inputs)

    def expert_weight(self, expert: int, checkpoint: Path) -> float:
        """What the change of an expert is multiplied by, where it is exported. Raises UserError if that isn't known."""
        known = self.options.experts
        if known is None or not 0 <= expert < known.num_experts:
            raise UserError(
                f"--expert {expert}: choose one of the experts, 0 to {known.num_experts - 1 if known else 0}"
            )
        return mean_weight(self.directory, checkpoint, expert)

    def export_hf(self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
        """Write a Whisper that transformers loads, low-rank adapters merged; of experts, one, times its ``weight``."""
        write_whisper(self.transcriber(model), folder, expert, weight)

    def export_peft(self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
        """Write the low-rank adapters for peft, which loads them on the base; of experts, one, times its ``weight``."""
        options = self.options.model_copy(update={"base": name_of(self.options.base, self.folder)})
        write_adapter(cast("AsrModel", model), options, folder, expert, weight)

    def export_mixture(self, model: nn.Module, folder: Path) -> None:
        """Write gate and experts as one thing, which a loader of a few lines puts on the base in transformers."""
        base = name_of(self.options.base, self.folder)
        write_mixture(cast("AsrModel", model), self.prepared.vocabulary, base, folder)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write the encoder and the decoder of a mixture, gate and base in them, for onnxruntime."""
        base = name_of(self.options.base, self.folder)
        write_mixture_onnx(cast("AsrModel", model), self.prepared.vocabulary, base, folder)

    def refused_exports(self) -> dict[str, str]:
        if self.options.experts is not None:
            return {}
        reason = "only a mixture of experts (model.experts) is written so"
        return {"mixture": reason, "onnx": reason + "; other tools convert the folder of --format hf"}

    def samples(self, model: nn.Module) -> list[str]:
        """What is written for the first validation utterances, with their transcripts."""
        dataset, rng = self.dataset("valid"), np.random.default_rng(0)
        examples = [dataset.example(index, rng) for index in range(min(SHOWN, len(dataset.utterances)))]
        texts = self.transcriber(model).texts(np.stack([one.features for one in examples]))
        return [f"{one.name}: {text} (reference: {one.text})" for one, text in zip(examples, texts, strict=True)]
