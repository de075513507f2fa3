"""Speech recognition by CTC, where it differs from a Whisper.

- ``prepare``: transcripts that don't fit the encoder's frames are left out (data.py)
- ``dataset``: features of any number of frames and tokens of transcripts (data.py)
- ``losses``: the negative log-probability of each transcript, summed over all its places in the frames; per token
- ``meters``: the same, and error rates (vaak.tasks.asr.metrics)
- ``predict``: audio files as transcripts (predict.py)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from vaak.audio.features.extractors import count_dims
from vaak.core.batch import Batch, Term, find_places, read_together
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Outputs, TunedOptions
from vaak.data.batching import largest_rows
from vaak.nn.ctc import ctc_log_likelihoods
from vaak.nn.lora import iterate_adapters, merged, write_adapter
from vaak.nn.speech.masks import length_mask
from vaak.runs.folder.directory import has_checkpoints
from vaak.runs.open_run import open_run
from vaak.runs.prepared import Recipe, is_prepared
from vaak.tasks.asr.config import SCRATCH, AsrDecodingConfig, MaskingConfig
from vaak.tasks.asr.ctc.data import (
    CtcDataset,
    FrameFeatures,
    FrameSections,
    Hidden,
    collate,
    longest_example,
    padded_features,
)
from vaak.tasks.asr.ctc.export import refused_by_sherpa, refused_online, write_ctc_onnx, write_sherpa
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.ctc.predict import CtcTranscriber, decode_tokens, weigh
from vaak.tasks.asr.ctc.prepare import CtcSources, OwnEncoder, about_run
from vaak.tasks.asr.ctc.pretrained import (
    NOT_CALLED,
    PROJECTIONS,
    PretrainedCtc,
    config_in,
    drawn_base,
    find_kind,
    load_base,
    span_mask,
    write_pretrained,
)
from vaak.tasks.asr.export import require_one, write_encoder_mixture
from vaak.tasks.asr.metrics import AsrMeters
from vaak.tasks.asr.model import BASE_KEY, find_frozen, find_run, name_base, resolve_base
from vaak.tasks.asr.prepare import BASE, PreparedUtterances, recipe
from vaak.tasks.asr.spec import USUAL_CHUNK
from vaak.tasks.asr.task import GATE_INPUT, SpeechRecognitionTask
from vaak.tasks.pretrained import load_config, load_or_init
from vaak.tasks.speech_task import NOT_TUNED_ON, Datasets

log = logging.getLogger("vaak")
LOSS = "ctc"
NUM_NORMALISED_BY = 500
"""Training utterances whose features are the mean and the deviation of a model that streams."""


def ctc_loss(outputs: CtcOutputs, batch: Batch, blank: int) -> Tensor:
    """Return the sum of the negative log-probabilities of a batch's transcripts."""
    lengths = outputs.lengths, batch["target_lengths"]
    return -ctc_log_likelihoods(outputs.log_probs(), batch["targets"], *lengths, blank).sum()


class CtcMeters(AsrMeters):
    """The loss of true transcripts, and error rates of the model's."""

    def __init__(self, *arguments: Any, blank: int, find_chunk: Callable[[nn.Module], int | None], **more: Any) -> None:
        """``find_chunk`` gives the encoder's frames in a chunk, by the model; None where audio is read as a whole."""
        super().__init__(*arguments, **more)
        self.blank, self._find_chunk = blank, find_chunk

    def update(self, model: nn.Module, batch: Batch) -> None:
        chunk = self._find_chunk(model)
        how = {} if chunk is None else {"chunk": chunk}
        outputs: CtcOutputs = model(batch["features"], batch["feature_lengths"], **how)
        loss = float(ctc_loss(outputs, batch, self.blank).double())
        routed = read_together(*(one for one in (outputs.gate, outputs.weights) if one is not None))
        self.add([("loss", loss, batch.totals()["token"]), *self.errors(model, batch, outputs, *routed)])


class CtcTask(SpeechRecognitionTask):
    """Trains an encoder to transcribe speech by connectionist temporal classification."""

    OF_BEAMS = (*SpeechRecognitionTask.OF_BEAMS, "ngram", "lm", "alpha", "beta")
    also_trained = ("head",)

    # Data.

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedUtterances | None = None
    ) -> Recipe:
        return recipe(self._sources(datasets), splits, own)

    def _sources(self, datasets: Datasets) -> CtcSources:
        return CtcSources.of(self.experiment, datasets, self.folder)

    def make_dataset(self, split: str) -> CtcDataset:
        dataset = self.make_utterance_dataset(CtcDataset, split)
        dataset.length_of_position = dataset.features.encoded_shift
        if split == "train" and self.own is None:
            dataset.hide = self._hide
        return dataset

    @property
    def _hide(self) -> Callable[[int, np.random.Generator], Hidden] | None:
        """Draws what of a base's frames is hidden in training; None where features are hidden instead.

        Raises UserError where an option hides what the base doesn't have.
        """
        config, options, augmentation = config_in(self._base), self.options.masking, self.data.augmentation
        kind = find_kind(config)
        if kind.reads == "samples" and augmentation is not None and augmentation.spec_augment is not None:
            raise UserError(f"data.augmentation.spec_augment: {self.options.base} reads samples: use model.masking")
        return partial(draw_hidden, options, config.hidden_size) if kind.hides_frames else None

    @cached_property
    def own(self) -> OwnEncoder | None:
        """The Conformer; None where the network is transformers'."""
        return self._sources(self.datasets).own_encoder(self._kept)

    @property
    def _kept(self) -> Path:
        return self.folder if self.options.base == SCRATCH else self.prepared.folder

    @property
    def _base(self) -> Path:
        return self.prepared.folder / BASE

    @cached_property
    def features(self) -> FrameFeatures:
        """The features that the model reads."""
        return self._sources(self.datasets).features(self._kept)

    @cached_property
    def feature_maker(self) -> FrameFeatures:
        """Makes features on the device, of the sections of audio that the loader reads."""
        return FrameSections(self.audio, self.data.max_duration, self.options.conformer.subsampling)

    # Training.

    def meta_model(self, fetches: bool = False) -> CtcModel | PretrainedCtc | None:
        options = self.options
        if options.base == SCRATCH:
            drawn = CtcModel(options.conformer, count_dims(self.audio), self.data.tokenizer.vocab_size)
            return drawn.adapted(options.lora, options.experts)
        if (run := find_run(options.base, self.folder)) is not None:
            about = about_run(run)
            own = OwnEncoder.read(about)
            assert own is not None
            drawn = CtcModel(own.conformer, count_dims(own.audio), about["vocab_size"])
            return drawn.adapted(options.lora, options.experts)
        source = resolve_base(options, self.folder)
        if not fetches and not Path(source).is_dir():
            return None
        return PretrainedCtc(drawn_base(load_config(BASE_KEY, source)), options)

    def meta_batch(self) -> Batch | None:
        """Return a microbatch of silence, as large as one may become; None with a base."""
        if self.options.base != SCRATCH:
            return None
        rows = largest_rows(self.experiment.training, self.data.max_duration)
        return collate([longest_example(self.features)] * rows, self.features)

    def model(self) -> CtcModel | PretrainedCtc:
        """Return the network; where a run has checkpoints, which have all weights, its base may have gone."""
        options, ids = self.options, self.prepared.vocabulary.ids
        self.report_hotwords()
        if self.own is None:
            # The adapter of a language, some linear layers among it, is read later, and is trained.
            head = find_kind(config_in(self._base)).head
            frozen = None if options.adapter else find_frozen(options, self.prepared.folder, (head,))
            base = load_or_init(
                self.directory,
                lambda: load_base(
                    resolve_base(options, self.folder),
                    ids,
                    options.adapter,
                    frozen,
                    has_given_tokens=self.data.tokenizer.path is not None,
                ),
                lambda: drawn_base(config_in(self._base), ids),
            )
            return PretrainedCtc(base, options)
        drawn = partial(CtcModel, self.own.conformer, self.features.num_bins, ids.size)

        def of_run() -> CtcModel:
            run, found = find_run(options.base, self.folder), drawn()
            if run is None:
                raise UserError(f"{BASE_KEY}: no such run: {options.base}")
            found.load_state_dict(merged(open_run(run, device="cpu").model).state_dict())
            return found

        model = drawn() if options.base == SCRATCH else load_or_init(self.directory, of_run, drawn)
        # A stream has no whole utterance to take its mean from. Only at the start: checkpoints have these numbers.
        if options.base == SCRATCH and self.own.conformer.streaming and not has_checkpoints(self.directory):
            model.fix_normalisation(self._first_features())
        return model.adapted(options.lora, options.experts)

    def _first_features(self) -> Iterator[np.ndarray]:
        """Yield the features of the first training utterances, which normalise those of a model that streams."""
        dataset, rng = self.dataset("train"), np.random.default_rng(0)
        for index in range(min(NUM_NORMALISED_BY, len(dataset.utterances))):
            yield dataset.compute_features(dataset.example(index, rng))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        outputs = self._outputs(model, batch)
        terms = {LOSS: Term(ctc_loss(outputs, batch, self._blank), per="token")}
        return terms | self.routing_terms(outputs.gate, outputs.weights, batch)

    @property
    def states_shape(self) -> tuple[int, int]:
        features, own = self.features, self.own
        config = config_in(self._base) if own is None else None
        width = own.conformer.d_model if own is not None else find_kind(config).find_width(config)
        return features.frames(round(features.seconds * features.sampling_rate)), width

    def compute_states(self, model: nn.Module, features: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
        device = next(model.parameters()).device
        rows, lengths = (one.to(device) for one in padded_features(features))
        return cast("CtcModel | PretrainedCtc", model).encode(rows, lengths)

    def require_transcribing_base(self) -> None:
        if self.options.base != SCRATCH and self._sources(self.datasets).own_tokens() is None:
            raise UserError(f"model.base: {self.options.base} has no tokens (vocab.json); fine-tune it by CTC first")

    def get_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.compute_features(batch), batch["feature_lengths"]

    def _outputs(self, model: nn.Module, batch: Batch) -> CtcOutputs:
        more = {name: batch[name] for name in ("time_mask", "channel_mask", GATE_INPUT) if name in batch.tensors}
        outputs: CtcOutputs = model(*self.get_inputs(batch), **more)
        return outputs

    @property
    def _blank(self) -> int:
        # Vaak model show comes before.
        return self.prepared.vocabulary.ids.pad if is_prepared(self.directory) else 0

    def row_names(self) -> dict[str, Sequence[str]]:
        return {"tokens": self.prepared.vocabulary.tokens()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        head: Any = cast("PretrainedCtc | CtcModel", model).head
        yield head.weight, "tokens"
        yield head.bias, "tokens"

    def outputs(self) -> Outputs:
        vocabulary = self.prepared.vocabulary
        subsampling = (self.options if self.own is None else self.own).conformer.subsampling
        reading = compute_fingerprint([vocabulary.content, self.features.key, subsampling])
        return Outputs({"token": vocabulary.tokens()}, "position", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = self._outputs(model, batch)
        mask = length_mask(outputs.lengths, outputs.logits.shape[1])
        return {"token": outputs.logits.flatten(0, 1)[find_places(mask, batch.totals()["position"])]}

    def meters(self, split: str) -> CtcMeters:
        def transcribe(model: CtcModel, outputs: CtcOutputs) -> list[str]:
            return self.transcriber(model).decode_texts(outputs)

        dataset = self.dataset(split)
        groups, audio = dataset.utterances.group_names, dataset.list_audio()
        more: dict[str, Any] = {"blank": self._blank, "find_chunk": lambda model: self.transcriber(model).chunk_frames}
        return CtcMeters(self.protocol(split), self.normalise, transcribe, groups, audio=audio, **more)

    def protocol(self, split: str) -> dict[str, str]:
        chunk = self.data.decoding.chunk
        return super().protocol(split) | ({} if chunk is None else {"chunk": f"{chunk:g} s"})

    # Use.

    def transcriber(self, model: nn.Module, **options: Any) -> CtcTranscriber:
        decoding = AsrDecodingConfig(**{**self.data.decoding.model_dump(), **options})
        features = cast("Any", self.features)
        vocabulary = self.prepared.vocabulary
        found = CtcTranscriber(
            cast("Any", model), vocabulary, features, decoding, self.audio.channels, directory=self.directory
        )
        # A chunk that can't be is an error now, not with the first audio.
        _ = found.chunk_frames
        return found

    def tune(self, model: nn.Module, split: str = "valid") -> TunedOptions:
        """Return the weights of the language model that are best on development utterances.

        Raises UserError without one, and for ``train`` and ``test``.
        """
        if split in NOT_TUNED_ON:
            raise UserError(f"can't tune on {split}: {NOT_TUNED_ON[split]}; use valid")
        if self.data.decoding.ngram is None and self.data.decoding.lm is None:
            needed = "give data.decoding.ngram=WORDS.arpa or data.decoding.lm=RUN"
            raise UserError(f"vaak tune weighs the language model of a CTC run: {needed}")
        transcriber, dataset, rng = self.transcriber(model), self.dataset(split), np.random.default_rng(0)
        size, log_probs, texts = transcriber.decoding.batch_size, list[np.ndarray](), list[str]()
        for first in range(0, dataset.num_transcribed, size):
            indices = range(first, min(first + size, dataset.num_transcribed))
            examples = [dataset.example(index, rng) for index in indices]
            log_probs += transcriber.log_probs([one.features for one in examples])
            texts += [one.text for one in examples]
        return weigh(transcriber, log_probs, texts, self.normalise).to_options()

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write the encoder for onnxruntime, with its vocabulary and the options of its features."""
        write_ctc_onnx(cast("CtcModel", model), self.prepared.vocabulary, self.features, folder)

    def export_sherpa_onnx(self, model: nn.Module, folder: Path, quantization: str | None = None) -> None:
        """Write the encoder for sherpa-onnx, with its tokens."""
        network = cast("CtcModel", model)
        write_sherpa(network, self.prepared.vocabulary, self.features, folder, quantization, self._find_online(network))

    def _find_online(self, model: CtcModel) -> int | None:
        """The frames of a chunk in sherpa-onnx's online recogniser; None, reported, where it can't have the model."""
        if not model.config.streaming:
            return None
        chunk = self.transcriber(model, chunk=self.data.decoding.chunk or USUAL_CHUNK).chunk_frames
        assert chunk is not None
        reason = refused_online(model.config, chunk)
        if reason is None:
            log.info("online.onnx reads chunks of %d frames (data.decoding.chunk)", chunk)
            return chunk
        log.warning("online.onnx isn't written: %s", reason)
        return None

    def export_hf(self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
        """Write a model that transformers loads, low-rank adapters merged; of experts, one, times its ``weight``."""
        vocabulary, network = self.prepared.vocabulary, cast("PretrainedCtc", model)
        require_one(network, expert)
        whole = merged(network.base, expert, weight)
        write_pretrained(whole, vocabulary, decode_tokens(vocabulary), self._base, folder, self.options.adapter)

    def export_peft(
        self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0, base: str | None = None
    ) -> None:
        """The same, with the output layer, named as in transformers' model, or in the run that this one began with."""
        network: Any = model
        require_one(network, expert)
        if not self._calls_adapters:
            log.warning("these adapters are for Vaak: %s", NOT_CALLED)
        options, began = self.options, self.experiment.training.checkpoint.init_from
        if base is None and options.base != SCRATCH:
            base = name_base(options.base, self.folder)
        elif base is None and began is not None:
            base = str(Path(began).expanduser().absolute())
        head, kind = "head", None
        if self.own is None:
            network, head, kind = network.base, network.kind.head, type(network.base)
        adapters = list(iterate_adapters(network, expert, weight))
        targets = [one.name for one in adapters]
        whole = {head: network.get_submodule(head)}
        write_adapter(adapters, options.experts or options.lora, targets, base, folder, whole=whole, kind=kind)

    def export_mixture(self, model: nn.Module, folder: Path) -> None:
        """Write gate and experts as one thing, which a loader of a few lines puts on the base in transformers."""
        network, base = cast("PretrainedCtc", model), name_base(self.options.base, self.folder)
        rate = self.features.sampling_rate
        write_encoder_mixture(network, network.base, self.prepared.vocabulary, base, rate, folder)

    @property
    def _calls_adapters(self) -> bool:
        """Whether transformers calls the layers that have adapters."""
        adapted = self.options.experts or self.options.lora
        is_wavlm = self.own is None and config_in(self._base).model_type == "wavlm"
        ends = {target.rpartition(".")[2] for target in adapted.targets} if adapted is not None else set[str]()
        return not (is_wavlm and ends & {*PROJECTIONS})

    def refused_exports(self) -> dict[str, str]:
        refused = super().refused_exports() | {"ct2": "CTranslate2 reads Whispers, and this model is a CTC recogniser"}
        if self.options.experts is None:
            refused["mixture"] = "only a mixture of experts (model.experts) is written so"
        if self.own is None:
            refused |= {} if self._calls_adapters else dict.fromkeys(("peft", "mixture"), NOT_CALLED)
            if find_kind(config_in(self._base)).reads != "samples":
                refused.setdefault("mixture", "its loader reads samples, and this base features; use hf with --expert")
            return {**refused, **dict.fromkeys(("onnx", "sherpa-onnx"), "use --format hf, which other tools convert")}
        refused.setdefault("mixture", "transformers has no Conformer of Vaak's; use onnx, or peft with --expert")
        reason = refused_by_sherpa(self.own.audio)
        sherpa = {} if reason is None else {"sherpa-onnx": reason}
        return {
            **refused,
            **sherpa,
            "hf": "a Conformer of Vaak's has no counterpart in transformers; use --format onnx",
        }


def draw_hidden(options: MaskingConfig, width: int, num_frames: int, rng: np.random.Generator) -> Hidden:
    """Draw what of an utterance's frames, and of their ``width`` channels, is hidden."""
    return Hidden(
        span_mask(num_frames, options.time_prob, options.time_length, rng),
        span_mask(width, options.channel_prob, options.channel_length, rng),
    )
