"""The speech recognition task, as the engine calls it, where all architectures are alike: data, and use.

whisper/task.py and ctc/task.py have the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor, nn

from vaak.audio.augmentation.pipeline import longest_factor
from vaak.audio.formats.annotation_lines import name_recordings
from vaak.core.batch import Batch, FirstPass, Term
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.engine.checkpoint.files import resolve_checkpoint
from vaak.nn.lora_experts import USE, count_uses, load_balancing
from vaak.scoring.normalisers import Normaliser, normaliser
from vaak.tasks.asr.config import LOAD_BALANCING, SCRATCH, AsrDataConfig, AsrExperiment, AsrModelConfig
from vaak.tasks.asr.data import AsrDataset
from vaak.tasks.asr.export import mean_weight
from vaak.tasks.asr.features import AudioFeatures
from vaak.tasks.asr.model import find_run, resolve_base
from vaak.tasks.asr.predict import Transcriber, make_hotwords
from vaak.tasks.asr.prepare import MAY_DIFFER, READING_OPTIONS, PreparedUtterances
from vaak.tasks.asr.spec import SPEC
from vaak.tasks.asr.transcripts import Transcript
from vaak.tasks.asr.utterances import TOLERATED_SECONDS
from vaak.tasks.base import refuse_other_options
from vaak.tasks.speech_task import SpeechTask, collect_results

AnyAsrDataset = TypeVar("AnyAsrDataset", bound=AsrDataset)
NUM_SHOWN_UTTERANCES = 5
"""Validation utterances whose transcripts are shown after training."""
GATE_INPUT = "gate_input"
"""The tensor of a batch that has what the gate of experts reads."""


class SpeechRecognitionTask(SpeechTask[AsrExperiment, PreparedUtterances, AsrDataset]):
    """Transcribes speech.

    OF_BEAMS
        Options of ``data.decoding`` that a beam search reads.
    """

    options: AsrModelConfig
    data: AsrDataConfig
    SPEC = SPEC
    PREPARED = PreparedUtterances
    MAY_DIFFER = READING_OPTIONS
    OF_BEAMS: ClassVar[tuple[str, ...]] = ("beam_size",)
    grouped_by = "speaker"
    auxiliary_losses = (LOAD_BALANCING,)

    def __init__(self, experiment: AsrExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        experts = experiment.model.experts
        if experts is not None and LOAD_BALANCING in experiment.training.loss.auxiliary:
            self.first_pass = self.count_choices
        if experts is not None and experts.balancing_bias:
            self.logged_terms = tuple(f"{USE}/{expert}" for expert in range(experts.num_experts))

    @property
    def begins_pretrained(self) -> bool:  # type: ignore[override]
        return self.options.base != SCRATCH

    def sources(self) -> list[Path]:
        """Return the files of corpora, tokenizer and base. Raises DataError for one that doesn't exist."""
        path = self.data.tokenizer.path
        if self.options.base == SCRATCH:
            return [*super().sources(), *([Path(path).expanduser()] if path else [])]
        run = find_run(self.options.base, self.folder)
        base = Path(resolve_base(self.options, self.folder)) if run is None else resolve_checkpoint(run)
        return [*super().sources(), *(sorted(base.glob("*.safetensors")) if base.is_dir() else [])]

    def examples_at_most(self) -> Iterator[float] | None:
        cuts = None if self.data.too_long == "split" else self.training_cuts()
        return None if cuts is None else (float(max(1, len(cut.supervisions))) for cut in cuts)

    def longest_example(self) -> float:
        augmentation = self.data.augmentation
        return (self.data.max_duration + TOLERATED_SECONDS) * (
            1.0 if augmentation is None else longest_factor(augmentation)
        )

    def refuse_other_inputs(self, own: AsrExperiment) -> None:
        super().refuse_other_inputs(own)
        refuse_other_options(own.data, self.data, "data", MAY_DIFFER)

    def has_other_corpora(self, own: AsrExperiment) -> bool:
        return super().has_other_corpora(own) or self.data.group != own.data.group

    @property
    def normalise(self) -> Normaliser:
        """The normaliser, which brings references and transcripts into the form in which they are compared."""
        return normaliser(self.data.normaliser)

    def protocol(self, split: str) -> dict[str, str]:
        """Return the conditions under which a split is evaluated."""
        decoding, dataset = self.data.decoding, self.dataset(split)
        found = {"split": split, "normaliser": self.normalise.name, "decoding": decoding.method}
        if decoding.method == "beam":
            found |= {name: str(getattr(decoding, name)) for name in self.OF_BEAMS}
        if decoding.hotwords:
            found |= {"hotwords": ", ".join(decoding.hotwords), "hotword_weight": f"{decoding.hotword_weight:g}"}
        return {**found, "transcribed": str(min(dataset.num_transcribed, len(dataset.utterances)))}

    @property
    def features(self) -> AudioFeatures:
        """The features that the model reads."""
        raise NotImplementedError

    @property
    def feature_maker(self) -> AudioFeatures:
        """Makes features on the device."""
        raise NotImplementedError

    def make_utterance_dataset(self, kind: type[AnyAsrDataset], split: str) -> AnyAsrDataset:
        """Return a split's utterances as a dataset of a ``kind``; only training augments them."""
        return kind(
            self.prepared.utterances(split),
            self.prepared.vocabulary,
            self.get_loader_features(split),
            self.audio,
            self.data.augmentation if split == "train" else None,
            self.data.decoding.valid_examples if split == "valid" else None,
        )

    def get_loader_features(self, split: str) -> AudioFeatures:
        """Return the features that the loader makes from a split's audio."""
        return self.feature_maker if split == "train" and self.data.features_on == "device" else self.features

    def compute_features(self, batch: Batch) -> Tensor:
        """Return the features of a batch ``(row, bin, frame)``, made here, on its device, if it has samples."""
        return batch["features"] if "features" in batch.tensors else self.feature_maker.of_batch(batch.tensors)

    def get_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the encoder's inputs from a batch."""
        return (self.compute_features(batch),)

    @property
    def states_shape(self) -> tuple[int, int]:
        """The positions of the longest utterance, and the width, of what the encoder makes of it."""
        raise NotImplementedError

    def compute_states(self, model: nn.Module, features: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
        """The encoder's states ``(row, position, width)`` of features, and how many are real; None where all are."""
        raise NotImplementedError

    def require_transcribing_base(self) -> None:
        """Raises UserError where the base has no tokenizer, as a Whisper always has."""

    def meta_model(self, fetches: bool = False) -> nn.Module | None:
        """Return a model like the trained one, before its vocabulary is known.

        None for a base of the Hub, unless this ``fetches`` its sizes.
        """
        raise NotImplementedError

    def export_peft(
        self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0, base: str | None = None
    ) -> None:
        """Write the low-rank adapters for peft, which loads them on the base; of experts, one, times its ``weight``.

        ``base`` is its name for peft, unless that is where this run found it.
        """
        raise NotImplementedError

    def count_choices(self, model: nn.Module, batch: Batch) -> FirstPass:
        """Return how often each expert is chosen, and what the gate reads."""
        listener: Any = model
        gate_input = listener.read_for_gate(*self.get_inputs(batch))
        return FirstPass(count_uses(listener.route(gate_input).weights), {GATE_INPUT: gate_input})

    def routing_terms(self, gate: Tensor | None, weights: Tensor | None, batch: Batch) -> dict[str, Term]:
        """Return the terms that balance experts, by the gate's logits and weights: the loss, and each one's use."""
        terms: dict[str, Term] = {}
        if gate is None or weights is None:
            return terms
        if LOAD_BALANCING in self.experiment.training.loss.auxiliary:
            # Outside of a step, a batch is all of it.
            alone = batch.step_sums is None
            uses = count_uses(weights) if batch.step_sums is None else batch.step_sums
            terms[LOAD_BALANCING] = Term(load_balancing(gate, uses), "example", splittable=not alone)
        if self.logged_terms:
            terms |= {name: Term(times, per="example") for name, times in count_uses(weights).items()}
        return terms

    def expert_weight(self, expert: int, checkpoint: Path) -> float:
        """Return the factor of an expert's change where it is exported. Raises UserError if that isn't known."""
        known = self.options.experts
        if known is None or not 0 <= expert < known.num_experts:
            raise UserError(
                f"--expert {expert}: choose one of the experts, 0 to {known.num_experts - 1 if known else 0}"
            )
        return mean_weight(self.directory, checkpoint, expert)

    def left_out_of_exports(self) -> list[str]:
        hotwords = self.data.decoding.hotwords
        about = f"{list_names(hotwords)} (data.decoding.hotwords) aren't in it; only Vaak's own search prefers them"
        return [about] if hotwords else []

    def report_hotwords(self) -> None:
        """Report the hotwords that the vocabulary can't write. Raises UserError for those that can't be read."""
        decoding = self.data.decoding
        if decoding.hotwords:
            make_hotwords(self.prepared.vocabulary, decoding.hotwords, decoding.hotword_weight)

    def show(self, batch: Batch) -> list[str]:
        """Return the name and the transcript of each row."""
        return [f"{name}: {text}" for name, text in zip(batch.extra["names"], batch.extra["texts"], strict=True)]

    def transcriber(self, model: nn.Module, **options: Any) -> Transcriber:
        """Return the model with what it reads and writes; ``options`` override those of ``data.decoding``."""
        raise NotImplementedError

    def predict(
        self, model: nn.Module, inputs: Iterable[Path | str], batch_size: int | None = None
    ) -> Iterator[Transcript]:
        """Return the transcript of each audio file. Raises UserError for one that can't be read."""
        return collect_results(self.predict_files(model, [*map(Path, inputs)], batch_size))

    def predict_files(
        self, model: nn.Module, paths: Sequence[Path], batch_size: int | None = None
    ) -> Iterator[tuple[Path, Transcript | UserError]]:
        """Yield the transcript of each audio file, or why it can't be read."""
        names = name_recordings(paths)
        for path, found in zip(paths, self.transcriber(model).transcribe_files(paths, batch_size), strict=True):
            yield path, found if isinstance(found, UserError) else replace(found, name=names[path])

    def samples(self, model: nn.Module) -> list[str]:
        """Return the model's transcripts of the first validation utterances, with the true ones."""
        dataset, rng = self.dataset("valid"), np.random.default_rng(0)
        examples = [dataset.example(index, rng) for index in range(min(NUM_SHOWN_UTTERANCES, len(dataset.utterances)))]
        texts = self.transcriber(model).texts([one.features for one in examples])
        return [f"{one.name}: {text} (reference: {one.text})" for one, text in zip(examples, texts, strict=True)]
