"""Speech recognition by a pretrained network with a decoder, or by a language model that listens.

- ``prepare``: the base's tokens, and which transcripts its decoder can write
- ``dataset``: samples of any length, and the transcript between the tokens that begin and end it
- ``losses``: cross-entropy of each token given the audio and the true tokens before it; per token
- ``meters``: loss and accuracy, WER and CER (vaak.tasks.asr.metrics)
- ``predict``: audio files as transcripts, written by transformers' ``generate``
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term, read_together, send
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint, read_json, whole_folder, write_json
from vaak.core.task import Outputs, Padding
from vaak.nn.cross_entropy import IGNORED, target_losses, unless_many
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.lora import iterate_adapters, merged, write_adapter
from vaak.nn.losses import losses_of_logits
from vaak.runs.prepared import Recipe
from vaak.tasks.asr.bases import DECODER_BASES, DecoderBase, ListenerBase, explain_kind
from vaak.tasks.asr.config import DECODER, AsrDecodingConfig, AsrModelConfig
from vaak.tasks.asr.ctc.data import Waveforms, padded_features
from vaak.tasks.asr.data import AsrDataset, AsrExample
from vaak.tasks.asr.decoder.listener import MOST_TOKENS, PretrainedListener
from vaak.tasks.asr.decoder.model import Encoded, PretrainedDecoder
from vaak.tasks.asr.decoder.request import (
    NO_POSITION,
    ListenedAudio,
    keep_listener,
    load_audio,
    make_listener_vocabulary,
)
from vaak.tasks.asr.export import VOCABULARY_FOLDER
from vaak.tasks.asr.long_form import Window
from vaak.tasks.asr.metrics import AsrMeters
from vaak.tasks.asr.model import BASE_KEY, PURPOSE, find_frozen, name_base, resolve_base
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.prepare import BASE, AsrSources, PreparedUtterances, recipe
from vaak.tasks.asr.task import SpeechRecognitionTask
from vaak.tasks.asr.transcripts import Segment
from vaak.tasks.asr.utterances import TokenLimit, decoder_limit
from vaak.tasks.asr.vocabulary import SpecialIds, Vocabulary
from vaak.tasks.base import pad_rows
from vaak.tasks.fetching import GENERATION, SAFELY, fetch_model, import_transformers, load_generation, load_tokenizer
from vaak.tasks.older_names import write_older_names
from vaak.tasks.pretrained import load_config, load_or_init, note_own_head, tell_untied
from vaak.tasks.quantised import layers_in_nf4
from vaak.tasks.speech_task import Datasets

PREPROCESSOR = "preprocessor_config.json"
MARGIN_TOKENS = 16
"""Tokens beyond the longest reference that a text may have in a rehearsal."""


def keep_base(source: str, folder: Path) -> Any:
    """Write all of a base but its weights to ``folder``: sizes, tokenizer, features, how it generates; return sizes.

    Raises UserError for another kind of model.
    """
    auto, config = import_transformers(PURPOSE, "asr"), load_config(BASE_KEY, source)
    reason = explain_kind(config.model_type, DECODER)
    if reason is not None:
        raise UserError(f"{BASE_KEY}: {source} {reason}")
    kind = DECODER_BASES[config.model_type]
    note_own_head(config, source, BASE_KEY)
    config.save_pretrained(folder)
    if isinstance(kind, ListenerBase):
        keep_listener(source, kind, folder)
    else:
        load_tokenizer(BASE_KEY, source).save_pretrained(folder)
        extractor = fetch_model(BASE_KEY, source, lambda: auto.AutoFeatureExtractor.from_pretrained(source, **SAFELY))
        write_json(folder / PREPROCESSOR, extractor.to_dict())
    generation = load_generation(BASE_KEY, source) or auto.GenerationConfig.from_model_config(config)
    generation.save_pretrained(folder)
    return config


class DecoderSources(AsrSources):
    """Everything that utterances are made of, and the base's own tokens."""

    def base_vocabulary(self, folder: Path) -> Vocabulary | None:
        source = resolve_base(self.model, self.folder)
        config = keep_base(source, folder / BASE)
        if isinstance(DECODER_BASES[config.model_type], ListenerBase):
            return make_listener_vocabulary(folder / BASE, config, self.data.language)
        found = load_tokenizer(BASE_KEY, str(folder / BASE))
        end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
        pad = end if found.pad_token_id is None else found.pad_token_id
        special = {one for one, token in found.added_tokens_decoder.items() if token.special} - {end}
        begin = (config.decoder_start_token_id,)
        ids = SpecialIds(begin, end, pad, config.vocab_size, tuple(sorted(special)))
        return Vocabulary(found.backend_tokenizer.to_str(), ids)

    def token_limit(self, vocabulary: Vocabulary, folder: Path) -> TokenLimit:
        config = load_config(BASE_KEY, str(folder / BASE))
        if isinstance(DECODER_BASES[config.model_type], ListenerBase):
            features = load_audio(folder / BASE, self.data.max_duration, self.data.language)
            longest = config.text_config.max_position_embeddings - features.longest_prompt
            return decoder_limit(min(MOST_TOKENS, longest))
        return decoder_limit(config.max_position_embeddings - len(vocabulary.ids.prompt))

    def data_options(self) -> dict[str, Any]:
        options = {**super().data_options(), "architecture": "decoder"}
        del options["max_target_length"]
        return options


class DecoderDataset(AsrDataset):
    """A split's utterances; the length of each is its duration in seconds."""

    features: Waveforms | ListenedAudio

    def collate(self, rows: list[list[AsrExample]]) -> Batch:
        """Return a batch; each row is one utterance."""
        examples, ids = [row[0] for row in rows], self.vocabulary.ids
        heard = gather(self.features, [one.features for one in examples])
        numbers = torch.tensor([len(one.ids) + 1 for one in examples])
        read = [np.concatenate([np.array(ids.prompt), one.ids]) for one in examples]
        # A position aims at the token after it, so the prompt's last one at the text's first.
        aims = [np.concatenate([[IGNORED] * (len(ids.prompt) - 1), one.ids, [ids.end]]) for one in examples]
        tensors = {
            **heard,
            "inputs": torch.from_numpy(pad_rows([one.astype(np.int64) for one in read], ids.pad)),
            "targets": torch.from_numpy(pad_rows([one.astype(np.int64) for one in aims], IGNORED)),
        }
        positions = torch.tensor([self.features.encoded(length) for length in heard["feature_lengths"].tolist()])
        counts = {"token": numbers, "position": positions + numbers, "example": torch.ones(len(examples))}
        extra: dict[str, Any] = {
            name: [getattr(one, attribute) for one in examples]
            for name, attribute in {"names": "name", "texts": "text", "groups": "group"}.items()
        }
        extra["transcribed"] = [one.is_transcribed for one in examples]
        return Batch(tensors, counts, extra=extra)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        return {
            "features": self.features.padding(),
            "prompts": Padding(NO_POSITION),
            "inputs": Padding(self.vocabulary.ids.pad),
            "targets": Padding(IGNORED),
        }


class DecoderMeters(AsrMeters):
    """Loss and accuracy of true transcripts, and error rates of the model's."""

    _is_rehearsal = False

    def expect_rehearsal(self) -> None:
        self._is_rehearsal = True

    def transcripts(self, model: nn.Module, encoded: Any, batch: Batch) -> list[str]:
        longest = (batch["targets"].shape[1] + MARGIN_TOKENS,) if self._is_rehearsal else ()
        return self._transcribe(model, encoded, *longest)

    def update(self, model: nn.Module, batch: Batch) -> None:
        network, targets = cast("PretrainedDecoder", model), batch["targets"]
        encoded = network.encode(batch["features"], batch["feature_lengths"], batch.tensors.get("prompts"))
        scored = network.head_inputs if unless_many(model, targets) else network.decode
        tokens = batch.totals()["token"]
        nats, right = read_together(*target_losses(scored(batch["inputs"], encoded), targets, tokens))
        found = [("loss", float(nats.double().sum()), tokens), ("accuracy", float(right.sum()), tokens)]
        self.add([*found, *self.errors(model, batch, encoded)])


@dataclass(frozen=True)
class DecoderTranscriber(Transcriber):
    """A network with a decoder, and the search for transcripts."""

    def segments_of_windows(self, windows: list[Window]) -> list[list[Segment]]:
        texts = self.texts_of_windows([window.features for window in windows])
        return [[Segment(one.start, one.end, text)] for one, text in zip(windows, texts, strict=True)]

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        model = cast("PretrainedDecoder", self.model)
        heard = gather(cast("Waveforms | ListenedAudio", self.features), features)
        with without_dropout(model), torch.inference_mode():
            encoded = model.encode(*(send(one, self.device) for one in heard.values()))
        return self.decode_texts(encoded)

    def decode_texts(self, encoded: Encoded, longest: int | None = None) -> list[str]:
        """Return the transcript of each row of encoded audio, of ``longest`` tokens at most."""
        model = cast("PretrainedDecoder", self.model)
        with without_dropout(model), torch.inference_mode():
            rows = model.write(encoded, self.vocabulary.ids.prompt, **self.make_search(longest))
        return [self.vocabulary.decode(self._cut(row)) for row in rows]

    def _cut(self, row: Sequence[int]) -> Sequence[int]:
        """Return the tokens after the language that a model may write first."""
        kind = cast("PretrainedDecoder", self.model).kind
        if not isinstance(kind, ListenerBase) or kind.marker is None:
            return row
        marker = self.vocabulary.token(kind.marker)
        return row[len(row) - row[::-1].index(marker) :] if marker in row else row

    def make_search(self, longest: int | None = None) -> dict[str, Any]:
        """Return the options of transformers' ``generate`` for texts of ``longest`` tokens at most."""
        options, ids = self.decoding, self.vocabulary.ids
        remaining = cast("PretrainedDecoder", self.model).max_target_length - len(ids.prompt)
        ends = cast("PretrainedDecoder", self.model).list_ends(ids.end)
        search: dict[str, Any] = {"num_beams": 1, "do_sample": False, "eos_token_id": ends, "pad_token_id": ids.pad}
        if options.method == "beam":
            search |= {"num_beams": options.beam_size, "length_penalty": options.length_penalty}
            search["early_stopping"] = True if options.early_stopping else "never"
        return {**search, "max_new_tokens": min(one for one in (remaining, options.max_new_tokens, longest) if one)}


def gather(features: Waveforms | ListenedAudio, rows: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """Return the arguments of the network's ``encode`` for features ``(bin, frame)`` of several rows, in its order."""
    if isinstance(features, ListenedAudio):
        return features.gather(rows)
    padded, lengths = padded_features(rows)
    return {"features": padded, "feature_lengths": lengths}


def find_auto(config: Any) -> Any:
    """Return the automatic class of transformers that knows a base's network."""
    auto = import_transformers(PURPOSE, "asr")
    is_listener = isinstance(DECODER_BASES[config.model_type], ListenerBase)
    return auto.AutoModelForMultimodalLM if is_listener else auto.AutoModelForSpeechSeq2Seq


def wrap(base: Any, options: AsrModelConfig) -> PretrainedDecoder:
    """Return a base of transformers, ready for training."""
    is_listener = isinstance(DECODER_BASES[base.config.model_type], ListenerBase)
    return PretrainedListener(base, options) if is_listener else PretrainedDecoder(base, options)


class DecoderTask(SpeechRecognitionTask):
    """Trains a pretrained network with a decoder to transcribe speech."""

    OF_BEAMS = (*SpeechRecognitionTask.OF_BEAMS, "length_penalty", "early_stopping")

    # Data.

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedUtterances | None = None
    ) -> Recipe:
        return recipe(DecoderSources.of(self.experiment, datasets, self.folder), splits, own)

    def make_dataset(self, split: str) -> DecoderDataset:
        dataset = self.make_utterance_dataset(DecoderDataset, split)
        dataset.length_of_position = self.features.encoded_shift
        return dataset

    def get_loader_features(self, split: str) -> Waveforms | ListenedAudio:
        """Return the features of a split, which the loader makes wherever ``data.features_on`` says."""
        return self.features

    @property
    def _base(self) -> Path:
        return self.prepared.folder / BASE

    @cached_property
    def features(self) -> Waveforms | ListenedAudio:
        """The features that the model reads."""
        if self.is_listener:
            return load_audio(self._base, self.data.max_duration, self.data.language)
        about, kind = read_json(self._base / PREPROCESSOR), DECODER_BASES[self._config.model_type]
        assert isinstance(kind, DecoderBase)
        layers = tuple((kernel, stride) for kernel, stride, _ in kind.strides)
        return Waveforms(layers, about["sampling_rate"], about["do_normalize"], self.data.max_duration)

    @property
    def _config(self) -> Any:
        return load_config(BASE_KEY, str(self._base))

    @property
    def is_listener(self) -> bool:
        """Whether the base reads audio in its prompt."""
        return isinstance(DECODER_BASES[self._config.model_type], ListenerBase)

    # Training.

    def meta_model(self, fetches: bool = False) -> PretrainedDecoder | None:
        source = resolve_base(self.options, self.folder)
        if not fetches and not Path(source).is_dir():
            return None
        config = load_config(BASE_KEY, source)
        return wrap(find_auto(config).from_config(config), self.options)

    def model(self) -> PretrainedDecoder:
        """The base, with adapters; where a run has checkpoints, which have all weights, its base may have gone."""
        auto = find_auto(self._config)

        def load() -> Any:
            source = resolve_base(self.options, self.folder)
            options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, **SAFELY}
            with layers_in_nf4(source, find_frozen(self.options, self.prepared.folder)):
                return fetch_model(BASE_KEY, source, lambda: auto.from_pretrained(source, **options))

        return wrap(load_or_init(self.directory, load, lambda: auto.from_config(self._config)), self.options)

    @property
    def states_shape(self) -> tuple[int, int]:
        features = self.features
        number = features.frames(round(features.seconds * features.sampling_rate))
        if isinstance(features, ListenedAudio):
            return len(features.request.before) + number, self._config.text_config.hidden_size
        return number, self._config.hidden_size

    def compute_states(self, model: nn.Module, features: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
        device = next(model.parameters()).device
        heard = (one.to(device) for one in gather(self.features, features).values())
        return cast("PretrainedDecoder", model).encode(*heard)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        logits = self._logits(model, batch, **self.main_loss.model_options(model, batch["targets"]))
        auxiliary = self.experiment.training.loss.auxiliary
        return losses_of_logits(self.main_loss, auxiliary, logits, batch["targets"], per="token")

    def _logits(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        given = batch["features"], batch["feature_lengths"], batch["inputs"]
        return model(*given, prompts=batch.tensors.get("prompts"), **options)

    def row_names(self) -> dict[str, Sequence[str]]:
        return {"tokens": self.prepared.vocabulary.tokens()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        base = cast("PretrainedDecoder", model).base
        for part in (base.get_input_embeddings(), base.get_output_embeddings()):
            yield part.weight, "tokens"

    def outputs(self) -> Outputs:
        vocabulary = self.prepared.vocabulary
        reading = compute_fingerprint([vocabulary.content, self.features.key])
        return Outputs({"token": vocabulary.tokens()}, "token", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = self._logits(model, batch)
        return {"token": logits[batch["targets"] != IGNORED]}

    def meters(self, split: str) -> DecoderMeters:
        def transcribe(model: nn.Module, encoded: Encoded, longest: int | None = None) -> list[str]:
            return self.transcriber(model).decode_texts(encoded, longest)

        dataset = self.dataset(split)
        groups, audio = dataset.utterances.group_names, dataset.list_audio()
        return DecoderMeters(self.protocol(split), self.normalise, transcribe, groups, audio=audio)

    # Use.

    def transcriber(self, model: nn.Module, **options: Any) -> DecoderTranscriber:
        decoding = AsrDecodingConfig(**{**self.data.decoding.model_dump(), **options})
        features, vocabulary = self.features, self.prepared.vocabulary
        if isinstance(features, ListenedAudio) and decoding.language not in (None, self.data.language):
            features = load_audio(self._base, features.seconds, decoding.language, "data.decoding.language")
            ids = replace(vocabulary.ids, prompt=features.request.after)
            vocabulary = Vocabulary(vocabulary.content, ids, vocabulary.config)
        return DecoderTranscriber(model, vocabulary, features, decoding, self.audio.channels)

    def export_hf(self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
        """Write a model that transformers loads, low-rank adapters merged, with the base's tokenizer."""
        vocabulary, whole = self.prepared.vocabulary, merged(cast("PretrainedDecoder", model).base)
        tell_untied(whole)
        with whole_folder(folder) as made:
            whole.save_pretrained(made)
            for path in sorted(self._base.iterdir()):
                if path.name != "config.json":
                    shutil.copy(path, made)
            write_older_names(made)
            # transformers' pipeline searches with five beams, and for 256 tokens, unless this says otherwise.
            search = self.transcriber(model).make_search()
            write_json(made / GENERATION, {**read_json(made / GENERATION), **search, "max_length": None})
            vocabulary.save(made / VOCABULARY_FOLDER)

    def export_peft(
        self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0, base: str | None = None
    ) -> None:
        """Write the low-rank adapters for peft, which loads them on the base."""
        network = cast("PretrainedDecoder", model).base
        adapters = list(iterate_adapters(network))
        adapted = cast("PretrainedDecoder", model).lora
        targets = adapted.targets if adapted else ()
        base = base or name_base(self.options.base, self.folder)
        write_adapter(adapters, self.options.lora, targets, base, folder, kind=type(network))

    def refused_exports(self) -> dict[str, str]:
        hf = "use --format hf, which other tools convert"
        return super().refused_exports() | {
            "mixture": "only a mixture of experts (model.experts) is written so",
            **dict.fromkeys(("ct2", "onnx", "sherpa-onnx"), hf),
        }
