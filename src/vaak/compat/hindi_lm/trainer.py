"""The trainer of the library: one's own model and batches on the engine, as a whole run or epoch by epoch."""

from __future__ import annotations

import atexit
import collections
import contextlib
import shutil
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from vaak.callbacks.step_log import LossTally
from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.compat.hindi_lm.texts import TextLoader
from vaak.compat.stages import Stages
from vaak.config.load import Loaded
from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.checkpoint.files import step_folder
from vaak.engine.checkpoint.names import parse_step
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import PREFIXES, Evaluator
from vaak.engine.metrics_file import Record
from vaak.engine.optim.optimizers import build_parameter_optimizers, trained_parameters
from vaak.engine.precision import keeping_kernels, make_deterministic
from vaak.engine.trainer import Trainer
from vaak.runs import start
from vaak.runs.prepared import PREPARED_FILE, prepared_folder
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.prepare import fingerprint
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text.corpora import corpus
from vaak.text.corpora.stores import write_tokens
from vaak.text.tokenizer import Tokenizer

HISTORY = ("train_loss", "val_loss", "perplexity", "learning_rate")


class HindiLanguageModelTrainer:
    """Trains ``model`` in place, into the configuration's run directory.

    ``config`` is an ``ExperimentConfig`` or its ``__dict__``. ``train`` is a whole run, which ``vaak eval`` and the
    others use like any other, and which ``training.checkpoint.resume`` resumes. Called again, it continues with the
    present model, on the same batches or others, as a further stage: a separate run, NAME-2 and so on, which takes
    over the optimizer's moments. With ``train_epoch``, ``evaluate`` and ``save_checkpoint`` the loop is the caller's,
    who ends it with ``close``, or by leaving the program. ``metrics`` has a value for each epoch of ``train``.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        config: ExperimentConfig | Mapping[str, Any],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model, self.tokenizer, self.callbacks = model, tokenizer, tuple(callbacks)
        self.config = dict(config if isinstance(config, Mapping) else vars(config))
        self.metrics: dict[str, list[float]] = {name: [] for name in HISTORY}
        self.device = pick_device(ExperimentConfig(self.config).experiment.training.device)
        self._history = _EpochHistory(self.metrics)
        self._held = contextlib.ExitStack()
        # This also runs at the end of a program that didn't call close.
        weakref.finalize(self, self._held.close)
        self._source: TextLoader | None = None
        self._loaders: tuple[TextLoader, TextLoader] | None = None
        self._stage = 0
        self._stages = Stages()
        self._before: Optimizer | None = None
        if model.vocab_size < tokenizer.vocab_size:
            raise UserError(f"the model has {model.vocab_size} tokens, the tokenizer {tokenizer.vocab_size}")

    @property
    def engine(self) -> Trainer:
        """The engine's trainer (optimizers, position, …). Raises UserError before training has begun."""
        if self._history.engine is None:
            raise UserError("training hasn't begun: call train or train_epoch first")
        return self._history.engine

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the last training or, before any, that of the configuration.

        A learning rate that is set in its ``param_groups`` is the peak rate of the next ``train``.
        """
        if self._history.engine is not None:
            return self._history.engine.state.optimizers[0]
        if self._before is None:
            options = self._load_experiment(None).experiment.training.optimizer
            self._before = build_parameter_optimizers(trained_parameters(self.model), options, Path())[0]
            self._stages.remember(self._before, options.lr)
        return self._before

    def train(
        self,
        train_dataloader: TextLoader | None = None,
        val_dataloader: TextLoader | None = None,
        num_epochs: int | None = None,
        *,
        epochs: int | None = None,
    ) -> dict[str, list[float]]:
        """Run to the end and return ``metrics``; ``num_epochs``, or ``epochs``, replaces the configuration's.

        Loaders that are left out are those of the last call. Evaluates at the end of each epoch, and whenever the
        configuration requires it.
        """
        if self._source is not None:
            raise UserError("this trainer is in the middle of train_epoch; train requires one that has not begun")
        if num_epochs is not None and epochs is not None:
            raise UserError("num_epochs and epochs are the same: give one of them")
        given = (train_dataloader, val_dataloader)
        train, valid = (new or old for new, old in zip(given, self._loaders or (None, None), strict=True))
        if train is None or valid is None:
            raise UserError("the first train requires train_dataloader and val_dataloader")
        loaded = self._load_experiment(num_epochs or epochs)
        task = self._task(loaded, train, valid)
        self._stages.take_over(self._history.engine)
        start.train(loaded, (*self.callbacks, self._history, self._stages), task)
        self._loaders, self._stage = (train, valid), self._stage + 1
        self._stages.remember(self.optimizer, self._stages.peak)
        return self.metrics

    def train_epoch(self, dataloader: TextLoader) -> float:
        """Train to the end of the epoch and return its loss per token. Neither evaluates nor saves."""
        engine = self._begun(dataloader)
        if engine.position.step >= engine.total_steps:
            raise UserError(f"the {engine.config.epochs} epochs of the configuration are over; set num_epochs higher")
        reports: list[StepReport] = []
        with engine.ending_well(), contextlib.closing(engine.upcoming()) as steps:
            for data in steps:
                if engine.is_over:
                    break
                report = engine.take_step(data)
                # The evaluation is the caller's.
                engine.position.schedule_pending = False
                engine.notify("on_step_end", report)
                reports.append(report)
                if report.ends_epoch:
                    engine.notify_epoch_end(report.epoch)
                    break
        tally = LossTally()
        for report in reports:
            for name, unit in report.units.items():
                tally.add(name, float(report.losses[name]), report.counts.get(unit, 0.0))
        return tally.means(engine.loss_weights)["loss"]

    def evaluate(self, dataloader: TextLoader) -> dict[str, float]:
        """``val_loss``, the mean over all tokens, and ``perplexity``, its exponential."""
        training = ExperimentConfig(self.config).experiment.training
        ranks = self.engine.ranks if self._source is not None else Ranks(self.device)
        split, model = dataloader.split, self.model.to(ranks.device)
        with keeping_kernels():
            make_deterministic(training, ranks.device)
            metrics = Evaluator(dataloader.task, training, ranks, dataloader.reader.skip_bad).evaluate(model, split)
        prefix = PREFIXES.get(split, f"{split}_")
        return {"val_loss": metrics[f"{prefix}loss"], "perplexity": metrics[f"{prefix}perplexity"]}

    def save_checkpoint(self, epoch: int, val_loss: float) -> Path:
        """Write a checkpoint of this step, the best one if ``val_loss`` is the least so far; return its folder."""
        engine = self.engine
        if engine.state.best.metric == "val_loss":
            engine.state.best.observe({"val_loss": val_loss}, engine.position.step)
        snapshot = engine.saving.snapshot()
        snapshot.state["saved_with"] = {"epoch": epoch, "val_loss": val_loss}
        if engine.ranks.is_main:
            engine.saving.writer.write(snapshot, engine.saving.is_best)
        # Its log line comes before those of the next epoch.
        engine.finish_saving()
        return engine.checkpoints / step_folder(engine.position.step)

    def close(self) -> None:
        """End a training by ``train_epoch``: the run directory is free for others."""
        self._source = None
        self._held.close()

    def _begun(self, dataloader: TextLoader) -> Trainer:
        """The engine's trainer of ``train_epoch``, made on the first call."""
        if self._source is None:
            loaded = self._load_experiment(None)
            training = loaded.experiment.training
            if training.early_stopping is not None or training.scheduler.type == "plateau":
                raise UserError("early stopping and the plateau schedule require scheduled evaluations: use train")
            task = self._task(loaded, dataloader, None)
            engine = self._held.enter_context(start.open_trainer(loaded, (*self.callbacks, self._history), task))
            self._source = dataloader
            engine.notify("on_fit_start")
            self._held.callback(engine.notify, "on_fit_end", "closed")
            # what trackers register for the exit runs after what is registered later: the run has to end before them
            atexit.register(self._held.close)
            self._held.callback(atexit.unregister, self._held.close)
        if self._source is not dataloader:
            raise UserError("train_epoch was begun with another dataloader; an epoch's plan belongs to one")
        return self.engine

    def _load_experiment(self, num_epochs: int | None) -> Loaded:
        """The experiment of the stage to come: the first is the configuration's, the others draw differently.

        Its prepared data is in the run directory, not in a shared cache.
        """
        values = self.config if num_epochs is None else self.config | {"num_epochs": num_epochs}
        loaded = ExperimentConfig(values).loaded
        experiment, training = loaded.experiment, loaded.experiment.training
        changed: dict[str, Any] = {}
        optimizer = self._before if self._history.engine is None else self.optimizer
        rate = self._stages.rate(optimizer, training.optimizer.lr)
        if rate is not None:
            changed["optimizer"] = training.optimizer.model_copy(update={"lr": rate})
        if self._stage:
            changed["random_seed"] = training.random_seed + self._stage
        data = experiment.data.model_copy(update={"cache_dir": None})
        named: dict[str, Any] = {"data": data, "training": training.model_copy(update=changed)}
        if self._stage:
            ending = f"-{self._stage + 1}"
            run_dir = experiment.run_dir
            named |= {"name": experiment.name + ending, "run_dir": run_dir.with_name(run_dir.name + ending)}
        return replace(loaded, experiment=experiment.model_copy(update=named))

    def _task(self, loaded: Loaded, train: TextLoader, valid: TextLoader | None) -> _GivenTask:
        loaders = {"train": train} if valid is None else {"train": train, "valid": valid}
        for name, loader in loaders.items():
            if not isinstance(loader, TextLoader):
                raise UserError(f"the {name} dataloader was not made by CorpusBuilder.create_dataloader")
            if loader.task.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise UserError(f"the {name} dataloader was made with another tokenizer than the trainer's")
        return _GivenTask(loaded, self.model, loaders)


class _GivenTask(LanguageModelTask):
    """The language-model task with a model and texts that the caller made."""

    def __init__(self, loaded: Loaded, model: LanguageModel, loaders: dict[str, TextLoader]) -> None:
        super().__init__(loaded.experiment, loaded.experiment.run_dir, loaded.folder)
        self.given_model, self.loaders = model, loaders

    def prepare(self) -> None:
        """Copy tokenizer and tokens into the run directory, where every use of the run finds them."""
        folder = prepared_folder(self.directory)
        try:
            if folder.is_symlink():
                # It leads to a cache, which isn't this run's to change.
                folder.unlink()
            (folder / PREPARED_FILE).unlink(missing_ok=True)
            statistics = {split: loader.statistics.to_json() for split, loader in self.loaders.items()}
            for split, loader in self.loaders.items():
                shutil.copytree(loader.folder / loader.split, folder / split, dirs_exist_ok=True)
                loader.task.tokenizer.save(folder / "tokenizer")
            statistics |= self._test_split(folder, next(iter(self.loaders.values())).task.tokenizer)
            files.write_json(
                folder / PREPARED_FILE, {"fingerprint": fingerprint(self.data, self.folder), "statistics": statistics}
            )
        except OSError as error:
            raise UserError(f"prepared data can't be written to {folder}: {error.strerror or error}") from error

    def _test_split(self, folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
        """The statistics of the test split, made of the configuration's corpus where it has one."""
        texts = corpus.CorpusBuilder(self.data.corpus, self.data.corpus.seed)
        if "test" not in texts.splits:
            return {}
        documents = texts.documents("test")
        if (folder / "test").exists():
            collections.deque(documents, maxlen=0)
        else:
            write_tokens(folder / "test", documents, tokenizer)
        return {"test": texts.statistics["test"].to_json()}

    def model(self) -> LanguageModel:
        return self.given_model


class _EpochHistory(Callback):
    """Fills ``metrics`` at each epoch's end, has the model evaluated there, and prints what the original prints."""

    def __init__(self, metrics: dict[str, list[float]]) -> None:
        self.metrics = metrics
        self.engine: Trainer | None = None
        self.said: str | None = None
        """The epoch that begins, to be printed once the checkpoint of the one before is written and reported."""
        self.reported_step = 0
        self.learning_rate = 0.0
        self.evaluation: Record = {}

    def on_fit_start(self, trainer: Run) -> None:
        assert isinstance(trainer, Trainer)
        self.engine = trainer
        trainer.records.subscribe(self.read)
        self.reported_step = trainer.position.step
        self._announce_epoch()
        self._print_epoch()
        if trainer.position.schedule_pending and trainer.position.place == 0:
            trainer.request_evaluate()

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        self.learning_rate = report.learning_rate
        self._print_epoch()
        if report.ends_epoch:
            trainer.request_evaluate()

    def read(self, record: Record) -> None:
        """Take note of an evaluation; at an epoch's end, of everything."""
        if record["kind"] == "evaluation":
            self.evaluation = record
        elif record["kind"] == "epoch" and self.evaluation:
            metrics = (record["train_loss"], self.evaluation["val_loss"], self.evaluation["val_perplexity"])
            for name, value in zip(HISTORY, (*metrics, self.learning_rate), strict=True):
                self.metrics[name].append(float(value))
            print(f"Train Loss: {metrics[0]:.4f}\nVal Loss: {metrics[1]:.4f}\nPerplexity: {metrics[2]:.2f}", flush=True)
            self._announce_epoch()

    def on_checkpoint(self, trainer: Run, path: Path) -> None:
        if trainer.ranks.is_main:
            print(f"Checkpoint saved: {path}", flush=True)
        self.reported_step = max(self.reported_step, parse_step(path) or 0)
        self._print_epoch()

    def _announce_epoch(self) -> None:
        """Have the epoch that begins printed, where there is another."""
        if self.engine is not None and self.engine.ranks.is_main and not self.engine.is_over:
            self.said = f"\nEpoch {self.engine.position.epoch + 1}/{self.engine.config.epochs}"

    def _print_epoch(self) -> None:
        """Print what was announced; checkpoints are written in the background, and those in flight come first."""
        if self.said is None or self.engine is None or self.engine.saving.saved_step > self.reported_step:
            return
        print(self.said, flush=True)
        self.said = None

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "learning_rate": self.learning_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learning_rate = state["learning_rate"]
        for name, values in state["metrics"].items():
            self.metrics[name][:] = values
