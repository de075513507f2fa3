"""The language-model task, as the engine calls it.

- ``prepare``: corpus, tokenizer, token stores, once (data.py)
- ``dataset``: windows of tokens (data.py), or minimal pairs (metrics.py)
- ``losses``: cross-entropy of the next token, or of masked ones, summed; per token. Of pairs of answers, DPO or ORPO;
  per pair (preferences.py)
- ``meters``: perplexity, bits per byte, accuracy on pairs (metrics.py)
- ``predict``: text continued (predict.py)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import tee
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term, find_counted
from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import compute_fingerprint, in_temporary_folder
from vaak.core.task import Baselines, Outputs
from vaak.data.batching import largest_rows
from vaak.data.mixing import StepWeights
from vaak.engine.checkpoint.files import resolve_checkpoint
from vaak.engine.distributed.launcher import pick_device
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.feed_forward import counted_loads, load_names, load_terms
from vaak.nn.kernels.random_features import NORM_REG, SquaredNorms, norm_reg
from vaak.nn.losses import losses_of_logits
from vaak.nn.new_tokens import get_stored_weight
from vaak.nn.own_network import OwnNetwork
from vaak.runs.open_run import begin_with_weights
from vaak.runs.prepared import Recipe, prepared_folder
from vaak.tasks.batches import Batches, Embedded
from vaak.tasks.kept_base import BASE_FOLDER, read_new_tokens
from vaak.tasks.lm import pretrained
from vaak.tasks.lm.config import LanguageModelDataConfig, LanguageModelExperiment
from vaak.tasks.lm.data import (
    ChatDataset,
    Corruption,
    SpecialTokens,
    StreamDataset,
    TextDataset,
    TokenSequence,
    collate,
    corrupt,
)
from vaak.tasks.lm.export import ExportableTask
from vaak.tasks.lm.metrics import (
    ACCURACY,
    NGRAM_ORDER,
    PairDataset,
    PairMeters,
    TextMeters,
    get_visibility,
    ngram_metrics,
    read_pairs,
)
from vaak.tasks.lm.model import AnyLanguageModel, LanguageModel, TransformersDecoder, add_adapters
from vaak.tasks.lm.ngram import NGRAM_FILE, TokenNgram
from vaak.tasks.lm.predict import (
    SHOWN_TOKENS,
    Reading,
    TokenReader,
    WordScores,
    draw_rows,
    embed_rows,
    generate,
    generate_batch,
    split_text,
)
from vaak.tasks.lm.preferences import (
    PreferenceDataset,
    PreferenceMeters,
    PreferencePair,
    collate_pairs,
    preference_losses,
    with_reference,
    write_reference,
)
from vaak.tasks.lm.prepare import PreparedText, choose_learned, describe_lost_text, recipe, with_ngrams
from vaak.tasks.lm.spec import PREFERENCES, SPEC
from vaak.tasks.pretrained import load_or_init
from vaak.text.chat_template import ChatTemplate, Messages, Tools, template_in
from vaak.text.corpora.corpus import CorpusBuilder, unread_labels
from vaak.text.corpora.readers import find_files
from vaak.text.corpora.stores import TokenStore, write_tokens
from vaak.text.corpora.tool_calls import NO_OPTIONS, Options
from vaak.text.detokenizer import pieces
from vaak.text.tokenizer import Tokenizer, normalise

log = logging.getLogger("vaak")

SHOWN_SAMPLES = 5


class LanguageModelTask(ExportableTask):
    """Trains a decoder on the next token, or an encoder on masked tokens."""

    SPEC = SPEC
    PREPARED = PreparedText
    auxiliary_losses = (NORM_REG,)

    def __init__(self, experiment: LanguageModelExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.causal, self.chats = self.own.model_type == "decoder", self.data.corpus.type == "chat"
        self.preferences = self.data.corpus.type == PREFERENCES
        self.compares = self.preferences and experiment.training.loss.main.type == "dpo"
        if self.data.minimal_pairs and not self.causal:
            raise UserError(
                "data.minimal_pairs: an encoder gives no probability of a sentence; use model_type: decoder"
            )
        moe = None if self.own.pretrained else self.own.moe
        if moe is not None and moe.balancing_bias:
            self.logged_terms = tuple(load_names(map(str, self.own.mixture_layers), moe.num_experts))
        self.evaluation_splits = ("valid", "pairs") if self.data.minimal_pairs else ("valid",)

    # Data.

    def corpora(self) -> list[CorpusBuilder]:
        return [CorpusBuilder(self.data.corpus, self.data.corpus.seed)]

    def examples_at_most(self) -> Iterator[float] | None:
        """Windows of each document, if each of its bytes were a token; composing sentences is part of preparing."""
        if self.data.corpus.has_answers or self.data.corpus.type == "grammar":
            return None
        at_least = 0 if self.data.layout == "stream" else 1
        texts = (text for corpus in self.corpora() for text in corpus.documents("train"))
        return (at_least + (len(text.encode()) + 2) / self._stride() for text in texts)

    def longest_example(self) -> float:
        return self.data.max_length

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        own = self._with_reference(recipe(self.data, splits, self.folder, self.base), self.data)
        # Other splits are prepared for evaluations, which use the n-grams of the run.
        if self.own.ngram is None or splits is not None:
            return own
        return with_ngrams(own, self.own.ngram.order, ends_with_bos=self.data.layout == "stream")

    def _with_reference(self, own: Recipe, data: LanguageModelDataConfig) -> Recipe:
        """Return a recipe that also has the reference's log-probabilities of answers, if the loss needs them."""
        if not self.compares:
            return own
        init_from = self.experiment.training.checkpoint.init_from
        begins = None if init_from is None else resolve_checkpoint(Path(init_from))
        weights = [Path(one) for one in (self.base and self.base.source, begins) if one]
        about = {"max_length": data.max_length, "long_chats": data.long_chats}
        return with_reference(own, about, weights, self._write_references)

    def _write_references(self, folder: Path, splits: tuple[str, ...]) -> None:
        tokenizer, base = Tokenizer.load(folder / "tokenizer"), self.base
        of_base = folder if (folder / BASE_FOLDER).is_dir() else prepared_folder(self.directory)
        if base is None:
            model: AnyLanguageModel = self.new_model(tokenizer.vocab_size)
        else:
            model = pretrained.load_model(base.source, of_base, self.own, tokenizer.vocab_size)
        training = self.experiment.training
        names = {"tokens": tokenizer.token_names()}
        # The reference is the model that training begins with: the base, and what checkpoint.init_from puts over it.
        begin_with_weights(self._adapted(model), self, training.checkpoint, names)
        device = pick_device(training.device)
        for split in splits:
            pairs = self._pairs(TokenStore(folder / split), tokenizer.pad_id, reference=False)
            write_reference(model.to(device), pairs, device)

    def _pairs(self, store: TokenStore, pad: int, *, reference: bool) -> PreferenceDataset:
        length, longer = self.data.max_length, self.data.long_chats
        return PreferenceDataset(store, pad, max_length=length, longer=longer, reference=reference)

    def prepare(self) -> None:
        if (label := unread_labels(self.data.corpus)) is not None:
            what = f"task lm reads the texts alone: {label!r} of data.corpus.train isn't used"
            log.warning("%s; task: classification learns it", what)
        super().prepare()
        if self.chats and (doubt := self.chat_template.doubt) is not None:
            learned = self.data.loss_on == "all" and bool(self.chat_template.end_ids)
            stops = "" if learned else "a model that is trained so doesn't stop, and "
            log.warning("%s: %sno accuracy of answers is reported", doubt, stops)
        for split in self.prepared.about["statistics"] if self.data.corpus.has_answers else ():
            chats = self.dataset(split)
            assert isinstance(chats, ChatDataset | PreferenceDataset)
            longest = f"data.max_length ({self.data.max_length} tokens)"
            if not len(chats.lengths):
                raise DataError(f"corpus: {split} is empty: no conversation has an answer within {longest}")
            if chats.num_cut or chats.num_dropped:
                what = "pairs of answers" if self.preferences else "conversations"
                counts = f"{chats.num_cut:,} {what} are cut, {chats.num_dropped:,} dropped"
                log.warning("%s: %s: they are longer than %s", split, counts, longest)
        if self.causal and (reason := self._without_bytes("valid")):
            log.warning("valid: no bits per byte: %s", reason)
        if self.data.minimal_pairs:
            # Read only so that a fault in them is reported here, and not at the first evaluation.
            self.dataset("pairs")

    def prepare_eval_data(self, own: LanguageModelExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        super().prepare_eval_data(own, folder, tuple(split for split in splits if split != "pairs"))

    def eval_recipe(self, data: LanguageModelDataConfig, splits: tuple[str, ...]) -> Recipe:
        return self._with_reference(recipe(data, splits, self.folder), data)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The one by which the run was trained, or its pretrained model. Raises UserError if there is none."""
        content = template_in(prepared_folder(self.directory) / "tokenizer")
        if content is None:
            raise UserError("the run has no chat template: it was trained on text, not on conversations")
        return ChatTemplate(content, self.tokenizer, choose_learned(self.data), self.data.chat_template_kwargs)

    def refused_endpoints(self) -> dict[str, str]:
        try:
            _ = self.chat_template
        except UserError as error:
            return {"chat": str(error)}
        return {}

    def dataset(self, split: str) -> TextDataset | StreamDataset | PairDataset | PreferenceDataset:
        special, length = self._special_tokens(), self.data.max_length
        if split == "pairs":
            return PairDataset(read_pairs(self.data.minimal_pairs), self.tokenizer, special, length)
        store = self.prepared.store(split)
        if self.preferences:
            return self._pairs(store, self.tokenizer.pad_id, reference=self.compares)
        masking = 0.0 if self.causal else self.data.masking_probability
        if split == "train":
            corruption = Corruption(dropout=self.data.token_dropout if self.causal else 0.0, masking=masking)
            if self.chats:
                return self._conversations(store, corruption, "all" if self.data.loss_on == "all" else "answers")
            if self.begins_windows and self.data.bos_in_windows is None:
                log.info("every window begins with %s, as the base's texts do", self.tokenizer.special_tokens["bos"])
            whole: TextDataset | StreamDataset
            if self.data.layout == "stream":
                whole = StreamDataset(store, special, corruption, max_length=length, shift=self.data.shift_windows)
            else:
                # Windows of training don't overlap: each token is learned once an epoch.
                whole = TextDataset(store, special, corruption, max_length=length, stride=length)
            if not self.data.mixture:
                return whole
            knots = tuple((one.step, one.weights) for one in self.data.mixture)
            weights = StepWeights(knots, self.experiment.training.gradient_accumulation_steps)
            return whole.mix(self.prepared.sources(), weights, self.data.corpus.train)
        return self._conversations(store, Corruption(), "answers") if self.chats else self._evaluated(store, masking)

    def _conversations(
        self, store: TokenStore, corruption: Corruption, predicted: Literal["answers", "all"]
    ) -> ChatDataset:
        length, longer = self.data.max_length, self.data.long_chats
        return ChatDataset(
            store, self._special_tokens(), corruption, max_length=length, predicted=predicted, longer=longer
        )

    def make_dataset_from(self, data: Iterable[str]) -> TextDataset:
        """Texts, each a document, read as those of an evaluation. Raises UserError for anything but text."""
        if self.preferences:
            raise UserError("a run of preferences is evaluated on pairs of answers: give files (data.corpus)")
        texts = list(data)
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"a language model is evaluated on texts, not on a {type(text).__name__}")

        def made(folder: Path) -> TextDataset:
            store = write_tokens(folder / "texts", map(normalise, texts), self.tokenizer)
            if self.causal and (reason := describe_lost_text(store)):
                log.warning("no bits per byte: %s", reason)
            return self._evaluated(store, 0.0 if self.causal else self.data.masking_probability)

        return in_temporary_folder(made)

    def _evaluated(self, store: TokenStore, masking: float) -> TextDataset:
        """Documents as an evaluation reads them."""
        special, corruption = self._special_tokens(), Corruption(masking=masking)
        return TextDataset(store, special, corruption, max_length=self.data.max_length, stride=self._stride())

    def _stride(self) -> int:
        return min(self.data.stride or self.data.max_length, self.data.max_length)

    def _special_tokens(self) -> SpecialTokens:
        tokenizer = self.tokenizer
        eos = None if self.data.layout == "stream" else tokenizer.eos_id
        pad, bos, mask, size = tokenizer.pad_id, tokenizer.bos_id, tokenizer.mask_id, tokenizer.vocab_size
        return SpecialTokens(pad, bos, mask, eos, size, begins_windows=self.begins_windows)

    @cached_property
    def begins_windows(self) -> bool:
        """Whether whatever the model reads begins with [bos], also where a text is cut.

        Gemma 3 270M is lost without: 0.96 bits per byte of Hindi in place of 0.75, in windows of 128 tokens.
        """
        if self.data.bos_in_windows is not None:
            return self.data.bos_in_windows
        return self.own.pretrained is not None and self.tokenizer.begins_texts

    @property
    def reads(self) -> Reading:
        """How much of a text the model reads to continue it."""
        return Reading(self.longest_read, self.tokenizer.bos_id if self.begins_windows else None)

    def sources(self) -> list[Path]:
        """Return the files of corpus, tokenizer and minimal pairs. Raises DataError for one that doesn't exist."""
        pairs = tuple(name for name in self.data.minimal_pairs if name != "grammar")
        return [*super().sources(), *(find_files(pairs, "data.minimal_pairs") if pairs else [])]

    # Training.

    def new_model(self, *vocab_sizes: int) -> LanguageModel:
        [vocab_size] = vocab_sizes
        model = LanguageModel(self.own, vocab_size, self.data.max_length)
        if isinstance(model.stack, OwnNetwork) and self.experiment.training.batching.type == "packed":
            model.stack.require_packing("training.batching.type is packed")
        return model

    def meta_batch(self) -> Batch:
        """Return a microbatch of one repeated token, as large as one may become; packed rows have two documents."""
        data, training = self.data, self.experiment.training
        masking = 0.0 if self.causal else data.masking_probability
        special = SpecialTokens(pad=0, bos=0, mask=0, eos=None, vocab_size=1)
        documents = 2 if training.batching.type == "packed" else 1
        ids, rng = np.zeros(data.max_length // documents + 1, dtype=np.int64), np.random.default_rng(0)
        if self.preferences:
            one = TokenSequence(ids[:-1], ids[1:], 0)
            pair = PreferencePair(one, one, np.zeros(2, np.float32))
            return collate_pairs([[pair]] * largest_rows(training, data.max_length), special.pad)
        example = corrupt(ids, ids[1:], 0, Corruption(masking=masking), special, rng)
        return collate([[example] * documents] * largest_rows(training, data.max_length), special.pad)

    def model(self) -> AnyLanguageModel:
        vocab_size, base = self.tokenizer.vocab_size, self.base
        if base is None:
            return self._mixed(self.add_adapters(self.new_model(vocab_size)))
        given = prepared_folder(self.directory), self.own, vocab_size
        model = load_or_init(
            self.directory,
            lambda: pretrained.load_model(base.source, *given),
            lambda: pretrained.init_model(*given),
        )
        return self._mixed(self._adapted(model))

    def meta_pretrained(self, folder: Path, config: Any) -> AnyLanguageModel:
        pretrained.require_decoder(config, self.own.pretrained or "")
        # Losses ask for these, which otherwise come from prepared data.
        self.options = pretrained.options_in(folder, self.own)
        return self._adapted(pretrained.init_model(folder, self.own, config.vocab_size))

    def add_adapters(self, model: AnyLanguageModel) -> AnyLanguageModel:
        new = range(0) if self.own.pretrained is None else read_new_tokens(prepared_folder(self.directory)).ids
        return add_adapters(model, self.own.lora, new)

    def _mixed(self, model: AnyLanguageModel) -> AnyLanguageModel:
        """Return the model with the n-grams of ``model.ngram``. Raises DataError where they can't be read."""
        if self.own.ngram is not None:
            file = prepared_folder(self.directory) / NGRAM_FILE
            own = self.own.ngram
            model.ngram = TokenNgram.load(file, own.weight, self.tokenizer.bos_id, own.geometric)
        return model

    def _adapted(self, model: AnyLanguageModel) -> AnyLanguageModel:
        """A pretrained model with its trainable parts. Raises UserError where it can't be trained as requested."""
        self.add_adapters(model)
        if not isinstance(model, TransformersDecoder):
            return model
        if self.experiment.training.batching.type == "packed":
            model.require_packing("training.batching.type is packed")
        if self.own.lora is not None and self.own.lora.base_dtype != "fp32":
            model.require_dtype(f"model.lora.base_dtype is {self.own.lora.base_dtype}")
        return model

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        compute = partial(preference_losses, self.main_loss) if self.preferences else self._token_losses
        if not self.logged_terms:
            return compute(model, batch)
        with counted_loads(model) as loads:
            return compute(model, batch) | load_terms(loads, self.logged_terms)

    def _token_losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        auxiliary = self.experiment.training.loss.auxiliary
        targets, norms = batch["targets"], None
        options: dict[str, object] = {**get_visibility(self.options, batch)}
        if NORM_REG in auxiliary:
            norms = options["norms"] = SquaredNorms(batch["documents"] >= 0)
        # An encoder predicts few places: they are picked before they grow as wide as the vocabulary.
        if not self.causal:
            scored, is_real = find_counted(targets != IGNORED, batch, "token")
            options["select"], targets = scored, torch.where(is_real, targets.flatten()[scored], IGNORED)
        logits = model(batch["inputs"], **options, **self.main_loss.model_options(model, targets))
        terms = losses_of_logits(self.main_loss, auxiliary, logits, targets, per="token")
        if norms is not None:
            terms[NORM_REG] = norm_reg(norms)
        return terms

    def row_names(self) -> dict[str, Sequence[str]]:
        return {"tokens": self.tokenizer.token_names()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        assert isinstance(model, AnyLanguageModel)
        for module in model.token_modules():
            yield get_stored_weight(module), "tokens"
            yield getattr(module, "bias", None), "tokens"

    def outputs(self) -> Outputs:
        vocabulary = [self.tokenizer.readable(token) for token in range(self.tokenizer.vocab_size)]
        reading = f"{self.tokenizer.fingerprint}-{self.options.model_type}-{self.data.max_length}"
        reading += "-bos" if self.begins_windows else ""
        return Outputs({"token": vocabulary}, "token", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        scored = batch["targets"] != IGNORED
        options = get_visibility(self.options, batch)
        if not self.causal:
            return {"token": model(batch["inputs"], **options, select=scored)}
        return {"token": model(batch["inputs"], **options)[scored]}

    def baselines(self, split: str) -> Baselines:
        """Return an n-gram model of the run's tokens. Raises UserError for an encoder, and for minimal pairs."""
        train, evaluated = self.dataset("train"), self.dataset(split)
        pairs = PairDataset | PreferenceDataset
        if not self.causal or isinstance(train, pairs) or isinstance(evaluated, pairs):
            raise UserError("an n-gram model predicts each token from those before it: a decoder's baseline, of texts")
        metrics = ngram_metrics(train, evaluated, self.tokenizer.vocab_size)
        metric = "bits_per_byte" if "bits_per_byte" in metrics else "loss"
        return Baselines(metric, False, {f"{NGRAM_ORDER}-gram, modified Kneser-Ney": metrics})

    def meters(self, split: str) -> TextMeters | PairMeters | PreferenceMeters:
        protocol = {"split": split, "objective": "causal" if self.causal else "masked"}
        if split == "pairs":
            pairs = {"pairs": ", ".join(self.data.minimal_pairs), "ties": "wrong"}
            return PairMeters(protocol | pairs, self.options)
        if self.preferences:
            template = self._describe_template()
            about = {"loss": self.main_loss.name, "longer": self.data.long_chats, "template": template}
            return PreferenceMeters({"split": split, "max_length": str(self.data.max_length), **about}, self.main_loss)
        windows = {"max_length": str(self.data.max_length), "stride": str(self._stride()), "layout": self.data.layout}
        windows |= {"begins": "every window, with [bos]"} if self.begins_windows else {}
        others = {"newline": self._newlines(), "tokenizer": self.tokenizer.fingerprint}
        if self.own.ngram is not None:
            product = f", product with exponent {self.own.ngram.geometric:g}" if self.own.ngram.geometric else ""
            others["mixture"] = f"{self.own.ngram.weight:g} of a {self.own.ngram.order}-gram model{product}"
        if self.causal:
            is_stream = self.data.layout == "stream"
            others["scored"] = "every token, [bos] too" if is_stream else "every token and [eos], after a given [bos]"
        else:
            others["masked"] = f"{self.data.masking_probability:g}"
        if self.chats:
            template = self._describe_template()
            windows = {"max_length": str(self.data.max_length), "longer": self.data.long_chats}
            ends = "answers and what ends them" if self.chat_template.doubt is None else "answers without an end"
            others |= {"newline": "as in the answers", "scored": ends + self._scored_turns(), "template": template}
            others |= {} if self.chat_template.doubt is None else {ACCURACY: f"withheld, {self.chat_template.doubt}"}
        reason = self._without_bytes(split) if self.causal else ""
        withheld = {"bits_per_byte": f"withheld, {reason}"} if reason else {}
        # Samples are drawn at every evaluation.
        drawn = partial(self.samples, number=3, max_new_tokens=30)
        return TextMeters(protocol | windows | others | withheld, self.options, drawn)

    def _without_bytes(self, split: str) -> str:
        """Return why a split has no bits per byte; empty if it has."""
        if self.preferences or split not in self.prepared.about["statistics"]:
            return ""
        chats = self.dataset(split) if self.chats else None
        if isinstance(chats, ChatDataset) and chats.num_cut:
            return f"{chats.num_cut:,} conversations are cut"
        return describe_lost_text(self.prepared.store(split))

    def _newlines(self) -> str:
        """Return which newlines of the files are scored and counted as bytes, in words."""
        if self.data.layout == "document":
            return "one at the end of each document"
        whole = self.data.corpus.type == "text" and self.data.corpus.document == "file"
        return "every one counted" if whole else "none between documents"

    def show(self, batch: Batch) -> list[str]:
        """Return the text of each row, special tokens written out, as the model reads it."""
        inputs = batch["inputs"].cpu()
        rows = (row[row != self.tokenizer.pad_id].tolist() for row in inputs.view(-1, inputs.shape[-1]))
        return [self.tokenizer.decode(row, skip_special_tokens=False) for row in rows]

    # Use.

    def sampling(self, **options: object) -> SamplingSettings:
        """Sampling settings that stop where a document ends, and where a pretrained base stops."""
        stop = (self.tokenizer.eos_id, self.tokenizer.bos_id, self.tokenizer.pad_id, *self.base_ends)
        return SamplingSettings(stop_ids=tuple(dict.fromkeys(stop)), **options)  # type: ignore[arg-type]

    def predict(
        self,
        model: nn.Module,
        inputs: Iterable[str],
        settings: SamplingSettings | None = None,
        batch_size: int | None = None,
    ) -> Iterator[str]:
        """Yield each input with the model's continuation, the same as alone."""
        settings = settings or self.sampling()
        texts, read = tee(inputs)
        asked = ((self.prompt(text), settings.seed) for text in read)
        for text, continuation in zip(texts, self.written(model, asked, settings, batch_size), strict=True):
            yield text + continuation

    def _describe_template(self) -> str:
        """Return the fingerprint of the chat template, and what it is given besides."""
        given = self.data.chat_template_kwargs
        found = compute_fingerprint(self.chat_template.content)
        return f"{found}, {json.dumps(given, sort_keys=True)}" if given else found

    def _scored_turns(self) -> str:
        """Which turns of conversations are scored, where it isn't each answer; empty where it is."""
        learned = self.chat_template.learned
        roles = "" if learned.roles == ("assistant",) else f", of {' and '.join(learned.roles)}"
        last = ", the last one alone" if learned.only_last else ""
        return roles + last + ("" if learned.reasoning == "keep" else f", thoughts: {learned.reasoning}")

    def words(self, model: nn.Module) -> WordScores:
        """The model as a language model of words, for a recogniser. Raises UserError for one that isn't a decoder."""
        if not self.causal:
            raise UserError("an encoder can't score the words of a text one after another; expected a decoder")
        assert isinstance(model, AnyLanguageModel)
        end = self.tokenizer.bos_id if self.data.layout == "stream" else self.tokenizer.eos_id
        return WordScores(model, self.tokenizer, end, self.reads)

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a text that is to be continued."""
        return [self.tokenizer.bos_id, *self.tokenizer.encode(normalise(text))]

    def stream(self, model: nn.Module, text: str, settings: SamplingSettings) -> Iterator[str]:
        """Yield the model's continuation of ``text`` while it is drawn, in pieces of whole characters."""
        yield from self._continued(model, self.prompt(text), settings)

    def answer(
        self,
        model: nn.Module,
        messages: Messages,
        settings: SamplingSettings,
        tools: Tools = (),
        options: Options = NO_OPTIONS,
    ) -> Iterator[str]:
        """Yield the model's answer to a conversation, as ``stream`` gives it; ends where the template ends an answer.

        It may call ``tools``, which are those of transformers' ``apply_chat_template``; ``options`` are what the
        template is given besides, before the run's own.
        """
        prompt = self.chat_template.prompt(messages, "the messages", tools, options)
        yield from self._continued(model, prompt, self.answering(settings))

    def _continued(self, model: nn.Module, prompt: list[int], settings: SamplingSettings) -> Iterator[str]:
        assert isinstance(model, AnyLanguageModel)
        return pieces(self.tokenizer, prompt, generate(model, prompt, settings, self.reads))

    def answering(self, settings: SamplingSettings) -> SamplingSettings:
        """Sampling settings that also stop where the chat template ends an answer."""
        return replace(settings, stop_ids=(*settings.stop_ids, *self.chat_template.end_ids))

    def written(
        self,
        model: nn.Module,
        asked: Iterable[tuple[list[int], int]],
        settings: SamplingSettings,
        batch_size: int | None = None,
    ) -> Iterator[str]:
        """Return the continuation of each prompt of tokens, drawn with its own seed; several are written together."""
        assert isinstance(model, AnyLanguageModel)

        def together(some: list[tuple[list[int], int]]) -> list[str]:
            prompts, seeds = zip(*some, strict=True)
            found = generate_batch(model, prompts, settings, self.reads, seeds)
            return ["".join(pieces(self.tokenizer, *one)) for one in zip(prompts, found, strict=True)]

        batches = Batches(model.embedding.weight.device, batch_size)
        return batches.results(asked, lambda one: len(one[0]), together)

    def continue_rows(
        self,
        model: nn.Module,
        asked: Sequence[tuple[list[int], int]],
        settings: SamplingSettings,
        reader: TokenReader,
    ) -> Iterator[list[int | None]]:
        """Yield the next token of each prompt, drawn with its own seed, step by step; None where it has ended.

        All are written together; ``reader`` may end some, and see the scores from which tokens are drawn.
        """
        assert isinstance(model, AnyLanguageModel)
        prompts, seeds = zip(*asked, strict=True)
        return draw_rows(model, prompts, settings, self.reads, seeds, reader)

    def examples_to_try(self, number: int) -> list[tuple[str, str]]:
        """Return the beginnings of some validation texts, each with what follows it there, both shortened.

        None for an encoder, for conversations, and where the prepared texts aren't there any more.
        """
        try:
            if not self.causal or self.chats or self.preferences or "valid" not in self.prepared.about["statistics"]:
                return []
            store = self.prepared.store("valid")
        except (UserError, OSError):
            return []
        places = {round(place * (len(store) - 1) / max(1, number - 1)) for place in range(min(number, len(store)))}
        texts = (self.tokenizer.decode(store.document(place)[:SHOWN_TOKENS].tolist()) for place in sorted(places))
        return [pair for text in texts if all(pair := split_text(text))]

    def embed_batch(self, model: nn.Module, texts: list[str]) -> list[Embedded]:
        """Return for each text the mean of an encoder's vectors of its tokens, all computed at once."""
        assert isinstance(model, LanguageModel)
        return embed_rows(model, [self.prompt(text) for text in texts], self.data.max_length)

    def samples(self, model: nn.Module, number: int = SHOWN_SAMPLES, max_new_tokens: int = 40) -> list[str]:
        """Samples that begin from nothing; an encoder has none."""
        if not self.causal:
            return []
        assert isinstance(model, AnyLanguageModel)
        settings, seeds = self.sampling(max_new_tokens=max_new_tokens, temperature=0.8), range(number)
        prompts = [[self.tokenizer.bos_id]] * number
        drawn = generate_batch(model, prompts, settings, self.reads, seeds)
        return [self.tokenizer.decode(ids).split("\n")[0] for ids in drawn]
