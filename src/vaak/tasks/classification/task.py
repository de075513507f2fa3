"""The classification task, as the engine calls it.

- ``prepare``: labelled texts, classes, tokenizer, token stores, once (data.py)
- ``dataset``: rows of tokens with their classes (data.py)
- ``losses``: cross-entropy of each label column, summed; per text
- ``meters``: accuracy, F1, calibration (metrics.py)
- ``predict``: texts with their labels (predict.py)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.storage.files import in_temporary_folder
from vaak.core.task import Baselines, Meters, Outputs
from vaak.data.batching import largest_rows
from vaak.engine.distributed.launcher import pick_device
from vaak.nn.lora import merged
from vaak.nn.losses import Loss, losses_of_logits, make_loss
from vaak.nn.models import TransformerModel
from vaak.nn.new_tokens import get_stored_weight
from vaak.runs.prepared import Recipe, prepared_folder
from vaak.tasks.base import without_unread_files
from vaak.tasks.batches import Embedded
from vaak.tasks.classification.config import ClassificationDataConfig, ClassificationExperiment
from vaak.tasks.classification.data import (
    OUT_OF_SCOPE,
    Change,
    ClassWeights,
    LabelSources,
    PreparedLabels,
    RowFormat,
    TextDataset,
    TextExample,
    class_weights,
    collate,
    name_unit,
    read_classes_of_run,
    recipe,
    write_targets,
)
from vaak.tasks.classification.export import explain_no_hf, export_hf, export_onnx, export_peft
from vaak.tasks.classification.metrics import (
    EMBEDDING_BASELINE,
    ClassMeters,
    ScopeMeters,
    baseline_scores,
    by_column,
    compute_metrics,
    embed_texts,
    targets_by_column,
)
from vaak.tasks.classification.model import TextClassifier, TextCNN, TransformerClassifier
from vaak.tasks.classification.predict import Labeller, Prediction
from vaak.tasks.classification.pretrained import PRETRAINED_KEY, Pretrained, load_head, read_config
from vaak.tasks.classification.spec import SPEC
from vaak.tasks.pretrained import find_model, load_or_init, resolve_source
from vaak.tasks.quantised import Frozen
from vaak.tasks.text_task import TextTask
from vaak.text.augmentation import OF_SYNONYMS, Augmenter, NeighbourSynonyms, named_synonyms
from vaak.text.corpora.labelled import LabelledCorpus, TextStore, labelled_text
from vaak.text.corpora.readers import Record, find_files
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")

SHOWN_TEXTS = 5


class ClassificationTask(TextTask[ClassificationExperiment, PreparedLabels, TextClassifier]):
    """Trains a transformer or a TextCNN to label texts."""

    data: ClassificationDataConfig
    SPEC = SPEC
    PREPARED = PreparedLabels
    also_trained = ("head",)

    def __init__(self, experiment: ClassificationExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.options = experiment.model
        self.multi_label = self.data.corpus.multi_label
        self.weights = self.options.label_weights or (1.0,) * len(self.data.corpus.label_columns)

    # Data.

    def corpora(self) -> list[LabelledCorpus]:
        return [LabelledCorpus(self.data.corpus)]

    def sources(self) -> list[Path]:
        """Return the files of corpus, tokenizer and word vectors. Raises DataError for one that doesn't exist."""
        vectors = self.options.word_vectors
        outside = find_files(self.data.corpus.out_of_scope, "corpus.out_of_scope")
        return [*super().sources(), *outside, *([Path(vectors.path)] if vectors and vectors.path else [])]

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        begun = None if self.experiment.training.checkpoint.resume is None else read_classes_of_run(self.directory)
        return recipe(LabelSources(self.experiment, self.folder, begun=begun), splits)

    @property
    def pretrained_name(self) -> str | None:
        name: str | None = self.options.pretrained_model
        return name

    def prepare(self) -> None:
        if self.data.augmentation.synonyms != "vectors":
            # Missing synonyms show now.
            self.change()
        super().prepare()
        # Class weights that don't fit the classes show now, too.
        assert self.losses_of_columns

    def prepare_eval_data(self, own: ClassificationExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        """Prepare ``splits`` with the run's tokenizer and classes; where the corpus is its own, use its data."""
        # texts of no class are told from those of test
        super().prepare_eval_data(
            own, folder, tuple(dict.fromkeys((*splits, "test"))) if OUT_OF_SCOPE in splits else splits
        )

    def eval_corpus(self, splits: tuple[str, ...]) -> Any:
        return without_unread_files(self.data.corpus, tuple(split for split in splits if split != OUT_OF_SCOPE))

    def eval_recipe(self, data: ClassificationDataConfig, splits: tuple[str, ...]) -> Recipe:
        experiment = self.experiment.model_copy(update={"data": data})
        return recipe(LabelSources(experiment, self.folder, self.prepared.classes), splits)

    def dataset(self, split: str) -> TextDataset:
        names = ("test", OUT_OF_SCOPE) if split == OUT_OF_SCOPE else (split,)
        stores = [self.prepared.stores(name) for name in names]
        options = self.data.augmentation
        change = self.change() if split == "train" else None
        # the share of its tokens by which a text may grow; one that would grow more isn't augmented this time
        growing = {"random_insertion", "synonym_replacement"} & set(options.techniques)
        growth = math.ceil(20 * options.probability * len(growing)) / 10
        # Evaluations count texts.
        weights = self.class_weights if split == "train" else None
        return TextDataset(stores, self.rows, change, growth, weights)

    def make_dataset_from(self, data: Iterable[Any]) -> TextDataset:
        """Rows such as {"text": …, "label": …}, or (text, label, …), read as those of an evaluation."""
        corpus = self.data.corpus
        columns = (corpus.text_column, *corpus.label_columns)
        texts = []
        for number, given in enumerate(data):
            values = dict(zip(columns, given, strict=False)) if isinstance(given, list | tuple) else given
            if not isinstance(values, dict) or not set(columns) <= set(values):
                raise UserError(f"example {number}: a classifier is evaluated on rows with {', '.join(columns)}")
            texts.append(labelled_text(Record(values, f"example {number}"), corpus))

        def made(folder: Path) -> TextDataset:
            store = TextStore.write(folder, texts)
            prepared = self.prepared
            targets = write_targets(store, prepared.classes, prepared.tokenizer, self.multi_label)
            return TextDataset([targets], self.rows)

        return in_temporary_folder(made)

    @property
    def rows(self) -> RowFormat:
        """The conversion of texts to the model's inputs."""
        return RowFormat(self.prepared.tokenizer, self.options.architecture == "transformer", self.data.max_length)

    def change(self) -> Change | None:
        """Return the augmentation of training texts. Raises UserError where its synonyms are missing."""
        options = self.data.augmentation
        if not options.enabled:
            return None
        synonyms = None
        if set(OF_SYNONYMS) & set(options.techniques):
            near, name = options.synonyms == "vectors", options.synonyms
            synonyms = self._neighbours if near else named_synonyms(name, folder=self.folder)
        return Augmenter(options.techniques, options.probability, synonyms, options.keep_negation)

    @cached_property
    def _neighbours(self) -> NeighbourSynonyms:
        folder = prepared_folder(self.directory)
        if self.options.pretrained_model is not None:
            found = np.load(folder / "neighbours.npz")
            return NeighbourSynonyms(found["words"].tolist(), found["vectors"])
        tokenizer = self.prepared.tokenizer
        words = [tokenizer.readable(token) for token in range(tokenizer.vocab_size)]
        return NeighbourSynonyms(words, np.load(folder / "vectors.npy"))

    # Training.

    def meta_model(self) -> TextClassifier | None:
        return None if self.options.word_vectors is not None else super().meta_model()

    def longest_example(self) -> float:
        return self.data.max_length

    def meta_pretrained(self, folder: Path, config: Any) -> TextClassifier | None:
        if self.options.architecture == "cnn":
            # Its embedding has the words of the data.
            return None
        base = Pretrained.drawn(folder, config.vocab_size, self.options)
        return self.add_adapters(TransformerClassifier(self.options, base, self.options.num_labels or 2))

    def meta_batch(self) -> Batch:
        """Return a microbatch of one repeated token, as large as one may become."""
        length, targets = self.data.max_length, np.zeros(1, dtype=np.int64)
        if self.multi_label:
            targets = np.zeros(self.options.num_labels or 2, dtype=np.int8)
        example = TextExample(np.zeros(length, dtype=np.int64), targets)
        return collate([example] * largest_rows(self.experiment.training, length), 0)

    def new_model(self, *vocab_sizes: int) -> TextClassifier:
        return self._from_scratch(vocab_sizes[0], self.options.num_labels or 2)

    def _from_scratch(self, vocab_size: int, num_classes: int, vectors: Tensor | None = None) -> TextClassifier:
        options = self.options
        if options.architecture == "cnn":
            return TextCNN(options, vocab_size, num_classes, vectors)
        transformer = TransformerModel(options, vocab_size, causal=False, max_length=self.data.max_length)
        return TransformerClassifier(options, transformer, num_classes)

    def model(self) -> TextClassifier:
        vocab_size, num_classes = self.prepared.tokenizer.vocab_size, sum(map(len, self.prepared.classes.values()))
        if self.options.pretrained_model is not None and self.options.architecture != "cnn":
            return self.add_adapters(self._pretrained(vocab_size, num_classes))
        vectors = None
        if self.options.architecture == "cnn" and self.options.word_vectors is not None:
            vectors = torch.from_numpy(np.load(prepared_folder(self.directory) / "vectors.npy"))
        return self.add_adapters(self._from_scratch(vocab_size, num_classes, vectors))

    def _pretrained(self, vocab_size: int, num_classes: int) -> TransformerClassifier:
        """On the pretrained model. Where a run has checkpoints, which have all weights, it may have gone."""
        options = self.options

        def loaded() -> TransformerClassifier:
            source = self._base_source()
            frozen = None if options.lora is None else Frozen(prepared_folder(self.directory), options.lora)
            model = TransformerClassifier(options, Pretrained.load(source, vocab_size, options, frozen), num_classes)
            load_head(model.head, source, options.pooling, [*chain(*self.prepared.classes.values())])
            return model

        def drawn() -> TransformerClassifier:
            base = Pretrained.drawn(prepared_folder(self.directory), vocab_size, options)
            return TransformerClassifier(options, base, num_classes)

        return load_or_init(self.directory, loaded, drawn)

    def _base_source(self) -> str:
        """Return the folder or the Hub's name of the pretrained model."""
        assert self.options.pretrained_model is not None
        return resolve_source(PRETRAINED_KEY, self.options.pretrained_model, self.folder)

    def make_main_loss(self) -> Loss:
        """Return the loss of ``training.loss.main``; of texts with several labels, cross-entropy is binary."""
        return self._loss({"type": "bce"} if self.multi_label else {})

    def _loss(self, options: dict[str, Any]) -> Loss:
        """Return the main loss; ``options`` replace the user's, where that is cross-entropy."""
        config = self.experiment.training.loss
        if config.main.type == "cross_entropy":
            unweighted = {"weight": None} if "weight" in config.main.options else {}
            config = config.model_copy(update={"main": config.main.model_copy(update={**unweighted, **options})})
        return make_loss(config, self.folder)

    @cached_property
    def class_weights(self) -> ClassWeights | None:
        """The weights of the classes in the loss; None where they have none."""
        main = self.experiment.training.loss.main
        given = main.options.get("weight") if main.type == "cross_entropy" else None
        if given is None:
            return None
        return class_weights(given, self.prepared.stores("train").targets, self.prepared.classes)

    @cached_property
    def losses_of_columns(self) -> dict[str, Loss]:
        """The main loss of each label column, with the weights of its classes."""
        weights = self.class_weights
        if weights is None:
            return dict.fromkeys(self.prepared.classes, self.main_loss)
        return {column: self._loss({"weight": found.tolist()}) for column, found in weights.items()}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        classes, auxiliary = self.prepared.classes, self.experiment.training.loss.auxiliary
        scores = by_column(model(batch["inputs"], batch["mask"]), classes)
        targets = targets_by_column(batch["targets"], classes, self.multi_label)
        every = torch.ones(batch.num_rows, dtype=torch.bool, device=batch["targets"].device)
        totals: dict[tuple[str, str], Tensor] = {}
        for column, weight in zip(classes, self.weights, strict=True):
            loss = self.losses_of_columns[column]
            terms = losses_of_logits(loss, auxiliary, scores[column], targets[column], per="example", valid=every)
            for name, term in terms.items():
                one = name, "example"
                # Losses of columns that are weighed by class have different units, and can't be added.
                if self.class_weights is not None and name == self.main_loss.name:
                    one = name if len(self.class_weights) == 1 else f"{name}/{column}", name_unit(column)
                totals[one] = totals.get(one, torch.zeros_like(term.total)) + weight * term.total
        return {name: Term(total, per=unit) for (name, unit), total in totals.items()}

    def row_names(self) -> dict[str, Sequence[str]]:
        labels = [f"{column}: {name}" for column, names in self.prepared.classes.items() for name in names]
        return {"labels": labels, "tokens": self.prepared.tokenizer.token_names()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        classifier = cast("TextClassifier", model)
        yield classifier.head.weight, "labels"
        yield classifier.head.bias, "labels"
        network: Any = getattr(classifier, "transformer", classifier)
        base = network.base.get_input_embeddings() if isinstance(network, Pretrained) else network.embedding
        yield get_stored_weight(base), "tokens"

    def token_modules(self, model: TextClassifier) -> list[nn.Module]:
        network = getattr(model, "transformer", None)
        return [network.base.get_input_embeddings()] if isinstance(network, Pretrained) else []

    def outputs(self) -> Outputs:
        rows, classes = self.rows, self.prepared.classes
        weights = dict(zip(classes, self.weights, strict=True))
        if self.multi_label:
            classes = {_name_label_logits(column): names for column, names in classes.items()}
            weights = {_name_label_logits(column): weight for column, weight in weights.items()}
        reading = f"{rows.tokenizer.fingerprint}-{rows.ends}-{rows.max_length}"
        return Outputs(classes, "example", reading, weights)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the logits of each label column; with several labels a text, those of no and yes for each."""
        scores = by_column(model(batch["inputs"], batch["mask"]), self.prepared.classes)
        if not self.multi_label:
            return scores
        return {_name_label_logits(name): torch.stack([torch.zeros_like(one), one], -1) for name, one in scores.items()}

    def readable_elsewhere(self, split: str) -> list[Any]:
        texts = self.prepared.stores(split).texts
        return [(row.text, *(list(one) if self.multi_label else one[0] for one in row.labels)) for row in texts]

    def baselines(self, split: str) -> Baselines:
        """The most frequent class, a linear SVM on tf-idf, and logistic regression on a pretrained model's embeddings.

        Raises UserError for texts of no class.
        """
        if split == OUT_OF_SCOPE:
            raise UserError(f"{split} has no classes to predict; give --split valid or test")
        dataset, prepared, found = self.dataset(split), self.prepared, {}
        texts = [row.text for row in prepared.stores(split).texts]
        embeddings = self._embeddings(dataset)
        scores = baseline_scores(prepared.stores("train"), texts, prepared.classes, self.multi_label, embeddings)
        for name, one in scores:
            found[name] = compute_metrics(one, dataset, self.meters(split))
        return Baselines("accuracy", True, found)

    def _embeddings(self, dataset: TextDataset) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the pretrained model's embeddings of the texts of training and of a dataset; None where it is missing.

        A pretrained model that is no longer at its place is reported: the run doesn't need it.
        """
        if self.options.pretrained_model is None:
            return None
        try:
            base = Pretrained.load(self._base_source(), self.prepared.tokenizer.vocab_size, self.options)
        except UserError as error:
            log.warning("%s is left out: %s", EMBEDDING_BASELINE, error)
            return None
        base.to(pick_device(self.experiment.training.device))
        # The texts are read without augmentation.
        train = TextDataset([self.prepared.stores("train")], self.rows)
        return embed_texts(base, train), embed_texts(base, dataset)

    def meters(self, split: str) -> Meters:
        # Metrics are per text, whatever its tokens are.
        protocol = {"split": split}
        if split == OUT_OF_SCOPE:
            return ScopeMeters(protocol | {"score": "probability of the class"}, self.prepared.classes, self.weights)
        protocol["classes"] = ", ".join(f"{column}: {len(names)}" for column, names in self.prepared.classes.items())
        get_text = self.dataset(split).get_text
        return ClassMeters(protocol, self.prepared.classes, self.multi_label, self.weights, get_text)

    def show(self, batch: Batch) -> list[str]:
        """Return the text of each row, special tokens written out, as the model reads it."""
        tokenizer = self.prepared.tokenizer
        rows = zip(batch["inputs"].cpu(), batch["mask"].cpu(), strict=True)
        return [tokenizer.decode(row[real].tolist(), skip_special_tokens=False) for row, real in rows]

    # Use.

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prepared.tokenizer

    def predict(self, model: nn.Module, inputs: Iterable[str], batch_size: int | None = None) -> Iterator[Prediction]:
        """Return the labels of each text with their probabilities."""
        return self._labeller(model).label(inputs, batch_size)

    def embed(
        self, model: nn.Module, texts: Iterable[str], batch_size: int | None = None
    ) -> Iterator[tuple[str, list[float]]]:
        """Yield each text with its embedding, from which classes are computed; one log line says how it is pooled."""
        pooling = "max" if self.options.architecture == "cnn" else self.options.pooling
        log.info("--embeddings: pooling %s, of %d tokens at most, not normalised", pooling, self.data.max_length)
        return self._labeller(model).embed(texts, batch_size)

    def embed_batch(self, model: nn.Module, texts: list[str]) -> list[Embedded]:
        """Return the embedding of each text as ``embed`` does, all computed at once."""
        return self._labeller(model).embed_batch(texts)

    def _labeller(self, model: nn.Module) -> Labeller:
        return Labeller(model, self.rows, self.prepared.classes, self.multi_label)

    def export_hf(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that transformers loads as a sequence classifier."""
        prepared = self.prepared
        export_hf(model, prepared.tokenizer, prepared.folder, prepared.classes, self.multi_label, folder)

    def refused_exports(self) -> dict[str, str]:
        base = None if self.options.pretrained_model is None else read_config(prepared_folder(self.directory))
        reason = explain_no_hf(base, self.options.pooling, self.prepared.classes)
        return {**super().refused_exports(), **({"hf": reason} if reason else {})}

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write the low-rank adapters and the head, for the pretrained encoder or the run that this one began with."""
        if self.options.pretrained_model is None:
            super().export_peft(model, folder)
        else:
            base = find_model(self.options.pretrained_model, self.folder)
            given = self.prepared.classes, self.multi_label, self.prepared.tokenizer.vocab_size
            export_peft(cast("TransformerClassifier", model), *given, base, folder)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write a file that onnxruntime runs without Vaak, with the tokenizer."""
        export_onnx(merged(model.eval()), self.rows, self.prepared.classes, folder)

    def samples(self, model: nn.Module) -> list[str]:
        """Return the labels of the first validation texts, with the true ones."""
        texts = self.prepared.stores("valid").texts
        rows = [texts[index] for index in range(min(SHOWN_TEXTS, len(texts)))]
        found = self.predict(model, (row.text for row in rows))
        labels = ["\t".join("|".join(one) for one in row.labels) for row in rows]
        return [
            f"{row.text[:80]} → {one} (label: {label})" for row, one, label in zip(rows, found, labels, strict=True)
        ]


def _name_label_logits(column: str) -> str:
    """Return the name of a group of logits that chooses for each label whether a text has it."""
    return f"each label of {column}"
