"""The diarization task.

- ``prepare``: corpora as cut stores, once (data.py)
- ``dataset``: features of recordings, windows or simulated conversations (data.py)
- ``losses``: the label type's cross-entropy in the best order of speakers, and its helpers (model.py)
- ``meters``: loss and accuracy per frame, DER and JER of recordings (metrics.py)
- ``predict``: who spoke when in audio files (predict.py)
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.audio_file import MAX_AUDIO_SECONDS, encode_wav
from vaak.audio.augmentation.pipeline import longest_factor
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.sources import CutSource
from vaak.audio.cuts.store import write_cuts
from vaak.audio.features.extractors import Features, FeaturesOnDevice
from vaak.audio.formats.annotation_lines import name_recordings
from vaak.audio.segments import AudioSource, Segment
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.progress import track
from vaak.core.random_keys import EVALUATION_SEED, Purpose, draw_key
from vaak.core.storage.files import compute_fingerprint, in_temporary_folder
from vaak.core.task import Baselines, Outputs, TunedOptions
from vaak.data.batching import evaluation_plan, largest_rows
from vaak.data.loader import Address, MicrobatchReader, evaluation_addresses
from vaak.engine.distributed.launcher import pick_device
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.kernels.random_features import NORM_REG, SquaredNorms, norm_reg
from vaak.nn.lora import add_lora
from vaak.nn.losses import Loss, losses_of_logits, make_loss
from vaak.report.audio import draw_timelines
from vaak.runs.prepared import Recipe, is_prepared
from vaak.runs.use import require_format
from vaak.scoring.diarization_errors import diarization_error
from vaak.tasks.diarization.config import (
    DiarizationDataConfig,
    DiarizationExperiment,
    DiarizationModelConfig,
    InferenceConfig,
    longest_example,
)
from vaak.tasks.diarization.data import (
    DiarizationDataset,
    PreparedRecordings,
    audio_source,
    given_cut,
    make_conversations,
    store_features,
    training_speakers,
)
from vaak.tasks.diarization.labels import (
    SPEECH,
    DiarizationCollator,
    DiarizationExample,
    LabelOptions,
    make_collator,
    one_hot_sets,
)
from vaak.tasks.diarization.metrics import (
    AUDIO,
    BASELINES,
    SHOWN_RECORDINGS,
    DiarizationMeters,
    ScoredBatch,
    ScoredRecording,
    add_score,
    compute_rates,
)
from vaak.tasks.diarization.model import (
    ATTRACTOR,
    CLUSTERING,
    SPEAKER,
    DiarizationModel,
    attractor_loss,
    clustering_loss,
    find_orders,
    frame_mask,
    lead_over_others,
    reorder_speakers,
    speaker_loss,
)
from vaak.tasks.diarization.predict import Diarized, Diarizer, export_onnx, tune
from vaak.tasks.diarization.pyannote import PretrainedDiarizer, SampleFrames, Sizes, read_checkpoint
from vaak.tasks.diarization.speaker_encoder import SpeakerEncoder, read_speaker_encoder
from vaak.tasks.diarization.spec import SPEC
from vaak.tasks.pretrained import load_or_init
from vaak.tasks.speech_task import NOT_TUNED_ON, READING_OPTIONS, VOICES, Datasets, SpeechTask, collect_results, recipe

log = logging.getLogger("vaak")
TIMELINES_PICTURE = "timelines.png"


class DiarizationTask(SpeechTask[DiarizationExperiment, PreparedRecordings, DiarizationDataset]):
    """Trains an encoder that predicts who speaks when."""

    options: DiarizationModelConfig
    data: DiarizationDataConfig
    SPEC = SPEC
    PREPARED = PreparedRecordings
    grouped_by = "speaker"
    auxiliary_losses = (CLUSTERING, SPEAKER, ATTRACTOR, NORM_REG)

    def __init__(self, experiment: DiarizationExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        if self.data.inference.window is None:
            inference = self.data.inference.model_copy(update={"window": longest_example(experiment)})
            self.data = self.data.model_copy(update={"inference": inference})
        self.make_frames: Callable[[AudioConfig], Features | SampleFrames]
        self.make_frames = Features if self.options.base is None else SampleFrames
        self.features, self.on_device = self.make_frames(self.audio), FeaturesOnDevice(self.audio)
        self._wavs: dict[tuple[str, int], bytes] = {}

    @property
    def begins_pretrained(self) -> bool:  # type: ignore[override]
        return self.options.base is not None

    # Data.

    def examples_at_most(self) -> Iterator[float] | None:
        """Windows of each recording; conversations are simulated from several recordings."""
        cuts = None if any(one.conversations for one in self.datasets) else self.training_cuts()
        return None if cuts is None else (1 + cut.duration / self.data.window for cut in cuts)

    def longest_example(self) -> float:
        return longest_example(self.experiment) * longest_factor(self.data.augmentation)

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedRecordings | None = None
    ) -> Recipe:
        # Kept with the data, so that a trained run no longer needs its base.
        base = {} if self.options.base is None else {"base": asdict(self.base_sizes)}
        return recipe(datasets, self.audio, splits, further=base, skip_bad=self.experiment.skips_bad_examples)

    def prepare(self) -> None:
        # Opened only so that an encoder that can't be read is reported before the data are prepared.
        self.speaker_encoder(self.data.inference, torch.device("cpu"))
        super().prepare()
        for split in self.prepared.about["statistics"]:
            # Reports too few speakers now, not at the first evaluation.
            make_conversations(self.prepared, split, self.datasets, self.audio)
        if self.audio.storage_path is not None:
            device = pick_device(self.experiment.training.device)
            skip_bad = self.experiment.skips_bad_examples
            store_features(self.prepared, self.datasets, self.audio, self.data, device, skip_bad)
        most = self.prepared.most_speakers("train")
        if self.label_type.orders and most > self.options.max_speakers:
            log.warning(
                "train has recordings of up to %s speakers: in a window with more than %s (model.max_speakers), those "
                "who speak longest are learned, the others count as silence",
                most,
                self.options.max_speakers,
            )

    def prepare_eval_data(self, own: DiarizationExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        # the speakers that the model knows
        known = "train" in self.prepared.about["statistics"]
        self.collator = self._collator(training_speakers(self.prepared, own.datasets or VOICES) if known else ())
        super().prepare_eval_data(own, folder, splits)

    def has_other_corpora(self, own: DiarizationExperiment) -> bool:
        """Return whether other recordings are read than by the run; conversations are simulated from the same."""
        here, there = (
            [one.model_copy(update={"conversations": None}) for one in datasets]
            for datasets in (self.datasets, own.datasets or VOICES)
        )
        return here != there

    def source(self, split: str) -> AudioSource:
        """The recordings of a split, with who speaks when."""
        return audio_source(self.prepared, split, self.datasets, self.audio, self.data)

    def dataset(self, split: str) -> DiarizationDataset:
        # Training reads features that may be stored only after a curriculum has measured it, so it isn't kept.
        return self.make_dataset(split) if split == "train" else super().dataset(split)

    def make_dataset(self, split: str) -> DiarizationDataset:
        augmentation = self.data.augmentation if split == "train" else None
        on_device = split == "train" and self.data.features_on == "device"
        made = self.source(split), self.features, self.collator, augmentation
        needs_audio = self.data.inference.speaker_encoder is not None
        return DiarizationDataset(*made, on_device=on_device, with_audio=needs_audio)

    def make_dataset_from(self, data: Iterable[Any]) -> DiarizationDataset:
        """Lhotse cuts, audio files with RTTM next to them, or pairs (audio, rttm), read as those of an evaluation.

        Raises UserError for anything else, DataError for a recording without labels.
        """
        cuts = [given_cut(one) for one in data]
        if repeated := [name for name, times in Counter(cut.id for cut in cuts).items() if times > 1]:
            raise UserError(f"two recordings are called {repeated[0]}; names must be unique")

        def made(folder: Path) -> DiarizationDataset:
            # Their features are kept.
            audio = self.audio.model_copy(update={"cache_gigabytes": 0.0})
            source = CutSource(write_cuts(folder, cuts), audio)
            needs_audio = self.data.inference.speaker_encoder is not None
            return DiarizationDataset(source, self.features, self.collator, None, with_audio=needs_audio)

        return in_temporary_folder(made)

    @cached_property
    def collator(self) -> DiarizationCollator:
        """The maker of frames' labels, which ``training.eval_knobs.label_type`` names."""
        # A base that is used untrained has no training, and knows no speakers.
        known = "train" in self.prepared.about["statistics"]
        return self._collator(training_speakers(self.prepared, self.datasets) if known else ())

    @property
    def label_type(self) -> DiarizationCollator:
        """The collator, or, before there are recordings, one that knows no speakers."""
        return self.__dict__.get("collator") or self._collator(())

    def _collator(self, training_speakers: tuple[str, ...]) -> DiarizationCollator:
        label_type, model = self.experiment.training.eval_knobs.label_type, self.options
        frame_seconds = self.features.frame_shift * model.output_subsampling
        steps = model.output_subsampling, model.subsampling
        has_sets = CLUSTERING in self.experiment.training.loss.auxiliary
        options = LabelOptions(frame_seconds, *steps, model.max_speakers, training_speakers, has_sets)
        return make_collator(label_type, options, self.folder)

    @cached_property
    def base_sizes(self) -> Sizes:
        """The sizes of ``model.base``: those kept with prepared data, or its own. Raises UserError without either."""
        assert self.options.base is not None
        if is_prepared(self.directory) and (kept := self.prepared.about.get("options", {}).get("base")):
            return Sizes(**kept)
        return read_checkpoint(self.base_source)[0]

    @property
    def base_source(self) -> str:
        """Where ``model.base`` is: a relative path is looked for in the folder of the YAML, too."""
        name = str(self.options.base)
        found = next((path for path in (Path(name).expanduser(), self.folder / name) if path.exists()), Path(name))
        return str(found)

    # Training.

    def meta_model(self) -> DiarizationModel:
        """A model like the trained one, before the speakers are known."""
        return add_lora(self._make_model(self._collator(("speaker",))), self.options.lora)

    def _make_model(self, collator: DiarizationCollator) -> DiarizationModel:
        if self.options.base is None:
            return DiarizationModel(self.options, self.features.dims, collator)
        return PretrainedDiarizer(self.options, collator, self.base_sizes)

    def meta_batch(self) -> Batch:
        """Return a microbatch of silence and one speaker, as large as one of training may become."""
        seconds = self.longest_example()
        num_frames = self.features.num_frames(round(seconds * self.features.config.sampling_rate))
        silence = np.zeros((num_frames, self.features.dims), dtype=np.float32)
        example = DiarizationExample("sketch", silence, (Segment(0.0, seconds, "speaker"),), seconds)
        return self._collator(("speaker",)).batch([example] * largest_rows(self.experiment.training, seconds))

    def model(self) -> DiarizationModel:
        model = self._make_model(self.collator)
        if isinstance(model, PretrainedDiarizer):
            load_or_init(self.directory, partial(model.load_base, self.base_source), lambda: None)
        return add_lora(model, self.options.lora)

    def make_main_loss(self) -> Loss:
        """The loss of ``training.loss.main``; for labels that are not classes, cross-entropy is binary."""
        config = self.experiment.training.loss
        if config.main.type == "cross_entropy" and not self.label_type.has_classes:
            config = config.model_copy(update={"main": config.main.model_copy(update={"type": "bce"})})
        return make_loss(config, self.folder)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return self.score(model, batch).terms

    def score(self, model: nn.Module, batch: Batch) -> ScoredBatch:
        """The losses of a batch, with what they were made of."""
        # torch.compile gives something of another type that has all it has.
        model = cast("DiarizationModel", model)
        collator, auxiliary, mask = model.collator, self.experiment.training.loss.auxiliary, batch["mask"]
        encoder_mask = frame_mask(batch["feature_mask"], self.options.subsampling)
        norms = SquaredNorms(encoder_mask) if NORM_REG in auxiliary else None
        outputs = model(self.compute_features(batch), batch["feature_mask"], norms)
        labels, numbers = batch["labels"], batch["speaker_numbers"]
        if collator.orders:
            scores = collator.speaker_scores(outputs.logits)
            orders = find_orders(scores, labels, mask, among_first=outputs.existence is not None)
            # From here on labels are in the model's order of speakers; so must the numbers be that the speaker loss
            # reads.
            labels, numbers = reorder_speakers(labels, orders), numbers.gather(1, orders)
        counted = mask & (labels != IGNORED) if labels.ndim == 2 else mask
        main, targets = self.main_loss, collator.targets(labels)
        if outputs.existence is None:
            terms = losses_of_logits(main, auxiliary, outputs.logits, targets, "frame", counted)
        else:
            terms = self._losses_of_first_speakers(outputs.logits, targets, counted)
        if norms is not None:
            terms[NORM_REG] = norm_reg(norms)
        if CLUSTERING in auxiliary:
            # A user's own collator may give batches without them.
            sets = batch["sets"] if "sets" in batch.tensors else one_hot_sets(batch["activity"])
            terms[CLUSTERING] = clustering_loss(model.cluster_vectors(outputs), sets, counted)
        if SPEAKER in auxiliary and collator.orders:
            # Pooled by the true labels, and not by the model's: embeddings learn from the first step on, while activity
            # is still wrong.
            embeddings = model.embeddings(outputs, lead_over_others(labels))
            if embeddings is not None:
                terms[SPEAKER] = speaker_loss(embeddings, numbers, model.speaker_table)
        if ATTRACTOR in auxiliary and outputs.existence is not None:
            terms[ATTRACTOR] = attractor_loss(outputs.existence, labels.any(1).sum(-1))
        return ScoredBatch(outputs, terms, main.name, labels)

    def compute_features(self, batch: Batch) -> Tensor:
        """Return the features of a batch ``(row, time, bins)``, made here, on its device, if it has samples."""
        if "features" in batch.tensors:
            return batch["features"]
        features, length = self.on_device(batch.tensors), batch["feature_mask"].shape[1]
        return F.pad(features, (0, 0, 0, length - features.shape[1]))

    def row_names(self) -> dict[str, Sequence[str]]:
        names: dict[str, Sequence[str]] = {"training speakers": self.collator.options.training_speakers}
        collator = self.collator
        if collator.has_classes and not collator.orders and collator.names:
            # The first class is that nobody speaks.
            names["speakers"] = ("", *collator.names)
        return names

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        diarizer = cast("DiarizationModel", model)
        yield diarizer.speaker_table, "training speakers"
        for name in ("weight", "bias"):
            yield getattr(getattr(diarizer, "head", None), name, None), "speakers"

    def outputs(self) -> Outputs:
        """Return the classes: whether each speaker speaks; of training speakers by name, who does."""
        collator, audio = self.collator, self.audio.model_dump(mode="json", exclude=set(READING_OPTIONS))
        steps = self.options.output_subsampling, self.options.subsampling
        classes = {f"each of {self.options.max_speakers} speakers" if collator.orders else SPEECH: ["silent", "speaks"]}
        if collator.has_classes and not collator.orders:
            classes = {"speaker": ["nobody", *(collator.names or ())]}
        return Outputs(classes, "frame", compute_fingerprint([audio, steps, list(classes)]))

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the logits of real frames, speakers in the order of their labels, not in the model's."""
        found = cast("DiarizationModel", model)(self.compute_features(batch), batch["feature_mask"], None)
        collator, labels, counted = self.collator, batch["labels"], batch["mask"]
        [name] = self.outputs().classes
        if labels.ndim == 2:
            return {name: found.logits[counted & (labels != IGNORED)]}
        scores = collator.speaker_scores(found.logits)
        if collator.orders:
            orders = find_orders(scores, labels, counted, among_first=found.existence is not None)
            scores = reorder_speakers(scores, orders.argsort(1))
        if found.existence is not None:
            # Attractors of speakers that aren't there aren't to be trained.
            scores = torch.where(labels.any(1, keepdim=True), scores, 0.0)
        return {name: torch.stack([torch.zeros_like(scores), scores], -1)[counted]}

    def _losses_of_first_speakers(self, logits: Tensor, targets: Tensor, counted: Tensor) -> dict[str, Term]:
        """The losses of logits within the first S outputs of a row with S speakers; others aren't to be trained.

        Source: Horiguchi et al. 2020, equation 11.
        """
        main, auxiliary = self.main_loss, self.experiment.training.loss.auxiliary
        numbers, terms = targets.any(1).sum(-1), {main.name: Term(0.0 * logits.sum(), per="frame")}
        for number in numbers[numbers > 0].unique().tolist():
            rows = numbers == number
            kept = logits[rows][..., :number], targets[rows][..., :number]
            for name, term in losses_of_logits(main, auxiliary, *kept, "frame", counted[rows]).items():
                terms[name] = Term(terms[name].total + term.total, term.per) if name in terms else term
        return terms

    def baselines(self, split: str) -> Baselines:
        """Diarizers without a network, scored on whole recordings as ``meters`` does."""
        audio = AUDIO.model_copy(update={"channels": self.audio.channels})
        source = audio_source(self.prepared, split, self.datasets, audio, self.data)
        dataset = self.dataset(split)
        totals: dict[str, dict[str, float]] = {name: {} for name in BASELINES}
        for index in track(range(len(dataset.lengths)), "baselines of recordings", len(dataset.lengths)):
            # The key of an evaluation: simulated conversations are those that the model is scored on.
            key = draw_key(Purpose.EVALUATION, split, EVALUATION_SEED, 0, index, 0)
            example = dataset.example(index, np.random.default_rng(key))
            reference = list(self.collator.reference(example))
            samples = source.load(index, np.random.default_rng(key)).samples
            conversation = ScoredRecording(samples, example.duration, reference)
            for name, diarize in BASELINES.items():
                add_score(totals[name], reference, diarize(conversation), example.uem, self.data.scoring)
        return Baselines("der", False, {name: compute_rates(sums) for name, sums in totals.items()})

    def meters(self, split: str) -> DiarizationMeters:
        return DiarizationMeters(self.data, split, self.diarizer, self.score, partial(self._encode_audio, split))

    def _encode_audio(self, split: str, index: int) -> bytes:
        """The beginning of a recording that evaluations read, as WAV; kept, since composing one takes a while."""
        if (split, index) not in self._wavs:
            rate = self.audio.sampling_rate
            key = draw_key(Purpose.EVALUATION, split, EVALUATION_SEED, 0, index, 0)
            samples = self.dataset(split).source.load(index, np.random.default_rng(key)).samples
            self._wavs[split, index] = encode_wav(samples[: 2 * MAX_AUDIO_SECONDS * rate], rate)
        return self._wavs[split, index]

    def show(self, batch: Batch) -> list[str]:
        """The name of each row, how long it is, and who speaks."""
        return [
            f"{example.name}: {example.duration:.2f} s, {', '.join(sorted({one.speaker for one in example.segments}))}"
            for example in batch.extra["examples"]
        ]

    # Use.

    def diarizer(self, model: nn.Module, inference: InferenceConfig | None = None) -> Diarizer:
        """The model with the options that turn its scores into segments: the run's, or ``inference``."""
        assert isinstance(model, DiarizationModel)
        inference = inference or self.data.inference
        if inference.window is None:
            inference = inference.model_copy(update={"window": self.data.inference.window})
        encoder = self.speaker_encoder(inference, next(model.parameters()).device)
        return Diarizer(model, inference, self.features.frame_shift, encoder, self.make_frames)

    def speaker_encoder(self, inference: InferenceConfig, device: torch.device) -> SpeakerEncoder | None:
        """The encoder that ``inference`` names. Raises UserError where it can't be read, or nothing is joined by it."""
        source = inference.speaker_encoder
        if source is None or not self.label_type.orders:
            return None
        return read_speaker_encoder(source, json.dumps(inference.speaker_features), self.audio.sampling_rate, device)

    def tune(self, model: nn.Module, split: str = "valid") -> TunedOptions:
        """The best inference options on development recordings, read as in an evaluation.

        Raises UserError for ``train`` and ``test``: metrics on data used for tuning are meaningless.
        """
        if split in NOT_TUNED_ON:
            raise UserError(f"can't tune on {split}: {NOT_TUNED_ON[split]}; use valid")
        lengths = self.dataset(split).lengths
        one_by_one = evaluation_addresses(evaluation_plan(lengths, 1), 0, 1)
        found = tune(self.diarizer(model), self._read(split, one_by_one), self.data.scoring, len(lengths))
        source = found.inference.speaker_encoder
        if source is not None and Path(source).exists():
            # It is read from other folders, too.
            resolved = {"speaker_encoder": str(Path(source).resolve())}
            found = replace(found, inference=found.inference.model_copy(update=resolved))
        return found.to_options()

    def _read(self, split: str, addresses: Iterable[Address]) -> Iterator[DiarizationExample]:
        """Examples as an evaluation reads them: without those that can't be read, if these are skipped."""
        dataset, skip_bad = self.dataset(split), self.experiment.skips_bad_examples
        reader = MicrobatchReader(dataset, (Purpose.EVALUATION, split), EVALUATION_SEED, skip_bad=skip_bad)
        for batch in (reader[address].batch for address in addresses):
            yield from batch.extra["examples"] if batch is not None else ()

    def predict(
        self, model: nn.Module, inputs: Iterable[Path | str], batch_size: int | None = None
    ) -> Iterator[Diarized]:
        """Yield who speaks when in each audio file. Raises UserError for one that can't be read."""
        return collect_results(self.predict_files(model, [*map(Path, inputs)], batch_size))

    def predict_files(
        self, model: nn.Module, paths: Sequence[Path], batch_size: int | None = None
    ) -> Iterator[tuple[Path, Diarized | UserError]]:
        """Yield who speaks when in each audio file, or why it can't be read."""
        names = name_recordings(paths)
        recordings = ((path, names[path]) for path in paths)
        return self.diarizer(model).diarize_files(recordings, self.audio, batch_size)

    def refused_exports(self) -> dict[str, str]:
        if self.options.base is not None:
            return {**super().refused_exports(), "onnx": "model.base: pyannote.audio exports its own networks"}
        reason = "model.head attractors reads frames in an order drawn for each length, which ONNX doesn't have"
        return {**super().refused_exports(), **({"onnx": reason} if self.options.head == "attractors" else {})}

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write a file that onnxruntime runs without Vaak: who speaks in a window of features.

        Raises UserError for a model with attractors.
        """
        require_format(self, "onnx")
        export_onnx(self.diarizer(model), self.features.dims, self.audio.model_dump_json(), folder)

    def samples(self, model: nn.Module) -> list[str]:
        """A line for each of the first validation recordings; writes a picture of their timelines."""
        one_by_one = (Address(0, 0, 0, [[index]]) for index in range(len(self.dataset("valid").lengths)))
        diarizer, lines, timelines = self.diarizer(model), list[str](), []
        for example in islice(self._read("valid", one_by_one), SHOWN_RECORDINGS):
            hypothesis = diarizer.segments(diarizer.joined(diarizer.of_example(example), len(example.features)))
            reference = list(diarizer.collator.reference(example))
            timelines.append((example.name, hypothesis, reference, example.duration))
            error = diarization_error(reference, hypothesis, uem=example.uem, collar=0.0, skip_overlap=False)
            wrong = error.miss + error.false_alarm + error.confusion
            lines.append(f"{example.name}: {wrong:.1f} s wrong of {error.scored:.1f} s of speech")
        try:
            draw_timelines(self.directory / TIMELINES_PICTURE, timelines)
        except UserError as error:
            # Training is finished and has succeeded.
            return [*lines, f"no timelines: {error}"]
        return [*lines, f"timelines: {self.directory / TIMELINES_PICTURE}"]
