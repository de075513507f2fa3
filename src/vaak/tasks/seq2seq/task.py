"""The sequence-to-sequence task.

- ``prepare``: pairs of texts, tokenizers, token stores, once (data.py)
- ``dataset``: pairs of token sequences (data.py)
- ``losses``: cross-entropy of each target token given the true ones before it, summed; per token
- ``meters``: perplexity and accuracy, BLEU and chrF of translations (metrics.py)
- ``predict``: texts translated (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from vaak.core.batch import Batch, Term, read_together
from vaak.core.errors import UserError
from vaak.core.storage.files import in_temporary_folder
from vaak.core.task import Baselines, Outputs
from vaak.data.batching import largest_rows
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.feed_forward import counted_loads, load_names, load_terms
from vaak.nn.kernels.random_features import NORM_REG, SquaredNorms, norm_reg
from vaak.nn.losses import losses_of_logits
from vaak.nn.new_tokens import get_stored_weight
from vaak.runs.prepared import Recipe, prepared_folder
from vaak.runs.use import require_format
from vaak.tasks.base import RehearsedTexts, without_unread_files
from vaak.tasks.ct2 import write_ct2
from vaak.tasks.pretrained import find_model, load_or_init
from vaak.tasks.seq2seq import pretrained
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig, Seq2SeqExperiment
from vaak.tasks.seq2seq.data import (
    PairDataset,
    PairExample,
    PairTokens,
    PreparedPairs,
    collate,
    recipe,
    write_split_tokens,
)
from vaak.tasks.seq2seq.export import ct2_scores, export_onnx, export_peft
from vaak.tasks.seq2seq.metrics import TranslationMeters, scores, translation_protocol, translators
from vaak.tasks.seq2seq.model import Seq2SeqModel
from vaak.tasks.seq2seq.predict import (
    DecodingSettings,
    Translator,
    compute_mean_attention,
    decoding_settings,
    draw_translation,
)
from vaak.tasks.seq2seq.spec import SPEC
from vaak.tasks.text_task import TextTask
from vaak.text.corpora.parallel import Pair, ParallelCorpus, cleaned
from vaak.text.corpora.stores import PairStore
from vaak.text.tokenizer import Tokenizer

SHOWN_TRANSLATIONS = 5
ATTENTION_PAGE_NAME = "attention.html"
GIVEN = "given"
"""The name, in messages, of the split of pairs that were not prepared."""


class Seq2SeqTask(TextTask[Seq2SeqExperiment, PreparedPairs, Seq2SeqModel]):
    """Trains an encoder and a decoder to turn one text into another."""

    data: Seq2SeqDataConfig
    SPEC = SPEC
    PREPARED = PreparedPairs
    TOKENIZERS = ("tokenizer", "target_tokenizer")
    auxiliary_losses = (NORM_REG,)

    def __init__(self, experiment: Seq2SeqExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.own = experiment.model
        if self.own.pretrained is None:
            for side, stack in (("encoder", self.own.encoder), ("decoder", self.own.decoder)):
                if stack.moe is not None and stack.moe.balancing_bias:
                    layers = (f"{side}.{number}" for number in stack.mixture_layers)
                    self.logged_terms += tuple(load_names(layers, stack.moe.num_experts))

    # Data.

    def corpora(self) -> list[ParallelCorpus]:
        return [ParallelCorpus(self.data.corpus)]

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        return recipe(self.data, splits, code=self.folder, base=self.base)

    def eval_corpus(self, splits: tuple[str, ...]) -> Any:
        return without_unread_files(self.data.corpus, splits, ("", "_target"))

    def eval_recipe(self, data: Seq2SeqDataConfig, splits: tuple[str, ...]) -> Recipe:
        return recipe(data, splits, self.prepared.dictionary, self.folder)

    def dataset(self, split: str) -> PairDataset:
        return PairDataset(self.prepared, split, self.data)

    def make_dataset_from(self, data: Iterable[tuple[str, str | Sequence[str]]]) -> PairDataset:
        """Pairs of a source and its target, or its targets, read as those of an evaluation.

        Raises UserError for anything else.
        """
        pairs = [_given_pair(one, f"example {number}") for number, one in enumerate(data)]
        tokenizers = {"source": self.prepared.source_tokenizer, "target": self.prepared.target_tokenizer}

        def made(folder: Path) -> PairDataset:
            store = PairStore.write(folder, pairs)
            stores = write_split_tokens(GIVEN, store, tokenizers, self.prepared.dictionary)
            return PairDataset(self.prepared, GIVEN, self.data, stores)

        return in_temporary_folder(made)

    # Training.

    def new_model(self, *vocab_sizes: int) -> Seq2SeqModel:
        source, target = vocab_sizes
        return Seq2SeqModel(self.own, self.data, source, target)

    def longest_example(self) -> float:
        # Each side has the token of the end.
        return 2 * (max(self.data.max_source_length, self.data.max_target_length) + 1)

    def meta_batch(self) -> Batch:
        """Return a microbatch of one repeated token, as large as one may become."""
        lengths = self.data.max_source_length, self.data.max_target_length
        source, target = (np.zeros(length, dtype=np.int64) for length in lengths)
        special = PairTokens(*[0] * len(fields(PairTokens)))
        rows = largest_rows(self.experiment.training, 2 * max(lengths))
        return collate([PairExample(source, target, target)] * rows, special, with_texts=False)

    def model(self) -> Seq2SeqModel:
        vocab_sizes = self.prepared.source_tokenizer.vocab_size, self.prepared.target_tokenizer.vocab_size
        base = self.base
        if base is None:
            return self.add_adapters(self.new_model(*vocab_sizes))
        given = prepared_folder(self.directory), self.own, self.data, vocab_sizes[0]
        return self.add_adapters(
            load_or_init(
                self.directory,
                lambda: pretrained.load_model(base.source, *given),
                lambda: pretrained.init_model(*given),
            )
        )

    def meta_pretrained(self, folder: Path, config: Any) -> Seq2SeqModel:
        pretrained.detect_family(config.to_dict(), self.pretrained_name or "")
        return self.add_adapters(pretrained.init_model(folder, self.own, self.data, config.vocab_size))

    def token_modules(self, model: Seq2SeqModel) -> list[nn.Module]:
        return [model.target_embedding, model.source_embedding, *([] if model.head is None else [model.head])]

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        auxiliary, targets = self.experiment.training.loss.auxiliary, batch["targets"]
        norms = None
        if NORM_REG in auxiliary:
            norms = SquaredNorms(batch["source_mask"]), SquaredNorms(targets != IGNORED)
        options = self.main_loss.model_options(model, targets)
        with counted_loads(model) as loads:
            logits = model(
                batch["source"],
                batch["source_mask"],
                batch["inputs"],
                norms=norms,
                target_mask=targets != IGNORED if self.logged_terms else None,
                **options,
            )
        terms = losses_of_logits(self.main_loss, auxiliary, logits, targets, per="token")
        if norms is not None:
            terms[NORM_REG] = norm_reg(*norms)
        return terms | load_terms(loads, self.logged_terms)

    def row_names(self) -> dict[str, Sequence[str]]:
        source, target = self.prepared.source_tokenizer, self.prepared.target_tokenizer
        return {"source tokens": source.token_names(), "tokens": target.token_names()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        translator = cast("Seq2SeqModel", model)
        yield get_stored_weight(translator.source_embedding), "source tokens"
        yield get_stored_weight(translator.target_embedding), "tokens"
        yield None if translator.head is None else get_stored_weight(translator.head), "tokens"
        yield translator.output_bias, "tokens"

    def outputs(self) -> Outputs:
        tokenizers = self.prepared.source_tokenizer, self.prepared.target_tokenizer
        vocabulary = [tokenizers[1].readable(token) for token in range(tokenizers[1].vocab_size)]
        lengths = self.data.max_source_length, self.data.max_target_length
        return Outputs({"token": vocabulary}, "token", f"{[one.fingerprint for one in tokenizers]}-{lengths}")

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        predicted: Tensor = model(batch["source"], batch["source_mask"], batch["inputs"])
        return {"token": predicted[batch["targets"] != IGNORED]}

    def baselines(self, split: str) -> Baselines:
        """Translators made of the training pairs, on the pairs of a split that evaluations translate."""
        train, evaluated = self.dataset("train"), self.dataset(split)
        training = [(pair.source, pair.targets) for pair in train.first_pairs(len(train.lengths))]
        pairs = [(pair.source, pair.targets) for pair in evaluated.first_pairs(evaluated.num_translated)]
        if not pairs:
            raise UserError("data.decoding.valid_examples is 0: nothing of valid is translated; give --split test")
        found = {name: scores(translate, pairs) for name, translate in translators(training).items()}
        return Baselines("chrf", True, found)

    def meters(self, split: str) -> TranslationMeters:
        protocol = {"split": split, "max_target_length": str(self.data.max_target_length)}
        for side in ("source", "target"):
            protocol[f"{side}_tokenizer"] = getattr(self.prepared, f"{side}_tokenizer").fingerprint
        references = self.dataset(split).num_references()
        protocol |= translation_protocol(self.data.decoding, self.data.max_target_length, references)
        pairs = self.dataset(split).get_pairs
        translate = partial(self._translations, split)
        return TranslationMeters(protocol, translate, lambda index: pairs([index])[0].source, self._attention)

    def _attention(self, model: nn.Module) -> dict[str, Any]:
        """The cross-attention in the translation of the first validation source; that of an own network isn't known."""
        if self.own.decoder.is_own:
            return {}
        translator = self.translator(model)
        sources = [pair.source for pair in self.dataset("valid").first_pairs(1)]
        found = [one for one in translator.translate(sources, self.decoding()) if one.candidates]
        return compute_mean_attention(translator, found[0]) if found else {}

    def _translations(self, split: str, model: nn.Module, batch: Batch, is_rehearsal: bool) -> list[str]:
        """Return the translation of each row's source."""
        translator, settings = self.translator(model), self.decoding()
        bound = RehearsedTexts.of_targets(split, batch["targets"], settings.max_new_tokens) if is_rehearsal else None
        if bound is not None:
            settings = replace(settings, max_new_tokens=bound.longest)
        source, mask = read_together(batch["source"], batch["source_mask"])
        rows = zip(source.tolist(), mask.sum(1).tolist(), strict=True)
        written = translator.written([row[:length] for row, length in rows], settings)
        if bound is not None:
            bound.report([hypotheses[0].ended for hypotheses in written])
        return [translator.candidate(hypotheses[0], settings).text for hypotheses in written]

    def show(self, batch: Batch) -> list[str]:
        """Source and target of each row, special tokens written out, as the model reads them."""
        sides = []
        for name, tokenizer in (
            ("source", self.prepared.source_tokenizer),
            ("inputs", self.prepared.target_tokenizer),
        ):
            rows = (row[row != tokenizer.pad_id].tolist() for row in batch[name].cpu())
            sides.append([tokenizer.decode(row, skip_special_tokens=False) for row in rows])
        return [f"{source} → {target}" for source, target in zip(*sides, strict=True)]

    # Use.

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of both sides; None if each has its own."""
        source, target = self.prepared.source_tokenizer, self.prepared.target_tokenizer
        return source if source is target else None

    def decoding(self, **asked: object) -> DecodingSettings:
        """Decoding options: ``data.decoding``, with overrides."""
        return decoding_settings(self.data.decoding, self.data.max_target_length, **asked)

    def translator(self, model: nn.Module) -> Translator:
        """Return the model with its tokenizers."""
        prepared = self.prepared
        assert isinstance(model, Seq2SeqModel)
        longest = self.experiment.data.max_source_length
        return Translator(model, prepared.source_tokenizer, prepared.target_tokenizer, longest, prepared.dictionary)

    def predict(
        self,
        model: nn.Module,
        inputs: Iterable[str],
        settings: DecodingSettings | None = None,
        batch_size: int | None = None,
    ) -> Iterator[str]:
        """Yield the translation of each input; a blank one has an empty translation."""
        settings = settings or self.decoding(batch_size=batch_size)
        for translation in self.translator(model).translate(list(inputs), settings):
            yield translation.text

    def export_hf(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that transformers loads without Vaak. Raises UserError for a model that began with none."""
        require_format(self, "hf")
        assert isinstance(model, Seq2SeqModel)
        pretrained.export_hf(model, prepared_folder(self.directory), self.prepared.target_tokenizer, folder)

    def export_ct2(self, model: nn.Module, folder: Path, quantization: str | None = None) -> None:
        """Write a folder that CTranslate2's Translator loads. Raises UserError for a model that began with none."""
        assert isinstance(model, Seq2SeqModel)
        tokenizer, longest = self.prepared.target_tokenizer, (self.data.max_source_length, self.data.max_target_length)
        check = partial(ct2_scores, model, tokenizer.bos_id, tokenizer.eos_id, longest)
        write_ct2(partial(self.export_hf, model), folder, quantization, check)

    def refused_exports(self) -> dict[str, str]:
        drawn = "transformers has no translator such as those that Vaak draws (only of model.pretrained)"
        return super().refused_exports() | (dict.fromkeys(("hf", "ct2"), drawn) if self.own.pretrained is None else {})

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write the low-rank adapters, for peft on the pretrained base or the run that this one began with."""
        assert isinstance(model, Seq2SeqModel)
        if self.own.pretrained is None:
            super().export_peft(model, folder)
        else:
            export_peft(model, prepared_folder(self.directory), find_model(self.own.pretrained, self.folder), folder)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write files that onnxruntime runs without Vaak, with the tokenizers."""
        assert isinstance(model, Seq2SeqModel)
        source, target = self.prepared.source_tokenizer, self.prepared.target_tokenizer
        tokenizers = {"": source} if source is target else {"source": source, "target": target}
        export_onnx(model, tokenizers, (self.data.max_source_length, self.data.max_target_length), folder)

    def samples(self, model: nn.Module) -> list[str]:
        """Translations of the first validation sources; writes a picture of the first one's cross-attention."""
        pairs = self.dataset("valid").first_pairs(SHOWN_TRANSLATIONS)
        translator = self.translator(model)
        translations = list(translator.translate([pair.source for pair in pairs], self.decoding()))
        if translations and not self.own.decoder.is_own:
            draw_translation(translator, translations[0], self.directory / ATTENTION_PAGE_NAME)
        return [
            f"{pair.source} → {translation.text} (reference: {pair.targets[0]})"
            for pair, translation in zip(pairs, translations, strict=True)
        ]


def _given_pair(example: Any, where: str) -> Pair:
    """Return a pair from a program. Raises UserError for what has not a source and at least one target."""
    if not isinstance(example, list | tuple) or len(example) != 2:
        raise UserError(f"{where}: a translator is evaluated on pairs (source, target), not on a {_kind(example)}")
    source, targets = example
    if not isinstance(source, str) or not isinstance(targets, str | list | tuple):
        raise UserError(f"{where}: a pair is (source, target) of texts, not ({_kind(source)}, {_kind(targets)})")
    targets = [targets] if isinstance(targets, str) else targets
    texts = [cleaned(text) if isinstance(text, str) else "" for text in (source, *targets)]
    if len(texts) < 2 or not all(texts):
        raise UserError(f"{where}: its source or a target is empty or not text")
    return Pair(texts[0], tuple(texts[1:]), where)


def _kind(value: Any) -> str:
    return type(value).__name__
