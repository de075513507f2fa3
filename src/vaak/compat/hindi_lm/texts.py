"""Documents, tokenizer and batches of a language model, in the caller's hands."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.config.experiment import Experiment
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.names import require_known
from vaak.core.random_keys import EVALUATION_SEED, Purpose
from vaak.core.splits import SPLITS
from vaak.core.storage import files
from vaak.data.batching import evaluation_plan, training_planner
from vaak.data.loader import MicrobatchReader, evaluation_addresses, load, training_addresses
from vaak.data.plan import BatchPlan, Planner
from vaak.runs.prepared import PREPARED_FILE
from vaak.tasks.lm.prepare import PreparedText
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text import tokenizer_training as tokenizer_factory
from vaak.text.corpora import corpus
from vaak.text.corpora.statistics import SplitStatistics
from vaak.text.corpora.stores import write_tokens
from vaak.text.tokenizer import Tokenizer, normalise

SPLIT_NAMES_OF_LOADER = {"val": "valid", "validation": "valid"}


class CorpusBuilder(corpus.CorpusBuilder):
    """The configuration's corpus: ``load_splits()`` gives its documents, ``create_dataloader`` batches of any."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        options = config.experiment.data.corpus
        super().__init__(options, options.seed)

    def create_dataloader(self, texts: Iterable[str], tokenizer: Tokenizer, split: str) -> TextLoader:
        """Batches of ``texts`` for ``split`` (train, val, test), in which each text is a document."""
        return TextLoader(self.config.experiment, texts, tokenizer, SPLIT_NAMES_OF_LOADER.get(split, split))


class TextLoader:
    """Batches of one split: each loop over it gives the ``len(loader)`` of an epoch, one epoch after another.

    A batch has ``inputs`` and ``targets`` ``(batch, time)``, the targets shifted already, −100 where nothing is scored;
    ``input_ids`` is another name of ``inputs``, and ``attention_mask`` is True where there is text. The tokens are in a
    temporary folder as long as the loader exists.
    """

    def __init__(
        self, experiment: Experiment[Any, Any], texts: Iterable[str], tokenizer: Tokenizer, split: str
    ) -> None:
        require_known([split], SPLITS, "unknown split", error=UserError)
        self.folder = Path(tempfile.mkdtemp(prefix="vaak-texts-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.split, self.training, self.epoch = split, experiment.training, 0
        self.statistics = SplitStatistics()
        tokenizer.save(self.folder / "tokenizer")
        write_tokens(self.folder / split, self._count_texts(texts), tokenizer)
        files.write_json(self.folder / PREPARED_FILE, {"statistics": {split: self.statistics.to_json()}})
        self.task = LanguageModelTask(experiment, self.folder, self.folder)
        self.task.prepared = PreparedText(self.folder)
        self.dataset = self.task.dataset(split)
        self.reader = MicrobatchReader(
            self.dataset,
            (Purpose.DATA,) if split == "train" else (Purpose.EVALUATION, split),
            self.training.random_seed if split == "train" else EVALUATION_SEED,
            skip_bad=experiment.skips_bad_examples,
        )

    def _count_texts(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            text = normalise(text)
            self.statistics.add(text)
            yield text

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        if self.split == "train":
            return self._planner().num_microbatches
        return len(self._plan())

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, in the order in which the engine trains on them."""
        if self.split == "train":
            steps = self.training.gradient_accumulation_steps
            addresses = training_addresses(
                self._planner(), steps, step=0, epoch=self.epoch, place=0, rank=0, world_size=1
            )
        else:
            addresses = evaluation_addresses(self._plan(), rank=0, world_size=1)
        self.epoch += 1
        pinned = torch.cuda.is_available() and self.training.performance.pin_memory is not False
        for microbatch in load(self.reader, islice(addresses, len(self)), self.training.performance, pinned):
            if microbatch.batch is not None:
                batch = microbatch.batch
                batch.tensors |= {"input_ids": batch["inputs"], "attention_mask": batch["documents"] >= 0}
                yield batch

    def _planner(self) -> Planner:
        return training_planner(self.training, self.dataset)

    def _plan(self) -> BatchPlan:
        return evaluation_plan(self.dataset.lengths, self.training.validation.batch_size or self.training.batch_size)


class TokenizerFactory(tokenizer_factory.TokenizerFactory):
    """Makes the configuration's tokenizer: ``create_tokenizer(texts)``."""

    def __init__(self, config: ExperimentConfig) -> None:
        super().__init__(config.experiment.data.tokenizer)
