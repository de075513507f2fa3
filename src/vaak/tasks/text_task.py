"""The base of tasks that read text: their files, the run's tokenizers for other texts, sizes of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

from torch import nn
from typing_extensions import TypeVar

from vaak.core.storage.files import scratch_folder
from vaak.nn.lora import add_lora, keep_token_vectors_in_bf16
from vaak.nn.new_tokens import train_new_rows
from vaak.runs.prepared import Recipe, prepared_folder
from vaak.tasks.base import AnyExperiment, Folder, PreparedTask, without_unread_files
from vaak.tasks.kept_base import read_new_tokens, save_config
from vaak.tasks.pretrained import Base
from vaak.text.config import TokenizerConfig
from vaak.text.corpora.sources import list_files
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

AnyModel = TypeVar("AnyModel", bound=nn.Module, default=nn.Module)


class TextTask(PreparedTask[AnyExperiment, Folder], Generic[AnyExperiment, Folder, AnyModel]):
    """A task that reads ``data.corpus`` with ``data.tokenizer``, or with the tokenizer of a pretrained model.

    TOKENIZERS
        Options of ``data`` that describe a tokenizer, and the folders of prepared data that hold them. A side without
        separate options is read with the first.
    """

    TOKENIZERS: ClassVar[tuple[str, ...]] = ("tokenizer",)

    def __init__(self, experiment: AnyExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.data: Any = experiment.data

    @property
    def pretrained_name(self) -> str | None:
        """The folder, or the name on the Hub, of the pretrained model that this one begins as."""
        name: str | None = self.experiment.model.pretrained
        return name

    @property
    def begins_pretrained(self) -> bool:  # type: ignore[override]
        return self.pretrained_name is not None

    @property
    def base(self) -> Base | None:
        """The pretrained model; None for one that is trained from scratch."""
        return None if self.pretrained_name is None else Base(self.pretrained_name, self.folder)

    @property
    def tokenizers(self) -> dict[str, TokenizerFactory]:
        """The maker of each tokenizer that the options describe."""
        given = {name: getattr(self.data, name) for name in self.TOKENIZERS}
        return {
            name: TokenizerFactory(options, self.folder, f"data.{name}") for name, options in given.items() if options
        }

    # Data.

    def sources(self) -> list[Path]:
        """Return the files of corpus and tokenizers; none for a dataset on the Hub, which isn't contacted.

        Raises DataError for files and patterns that don't exist.
        """
        corpus = self.data.corpus
        on_hub = corpus.type == "huggingface"
        files = list_files(corpus.name or "") if on_hub else [path for one in self.corpora() for path in one.files]
        paths = dict.fromkeys(factory.options.path for factory in self.tokenizers.values())
        return [*files, *(Path(path) for path in paths if path)]

    def examples_at_most(self) -> Iterator[float] | None:
        if self.data.corpus.type == "grammar":
            # Composing sentences is part of preparing.
            return None
        return (1.0 for corpus in self.corpora() for _ in corpus.read("train"))

    @property
    def reading(self) -> tuple[Callable[[Path], Tokenizer], ...]:
        if self.pretrained_name is not None:
            return (Tokenizer.load,)
        return tuple(factory.load for factory in self.tokenizers.values())

    def prepare_eval_data(self, own: AnyExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        """Prepare ``splits`` with what the run learned from its data; where the corpus is its own, use its data."""
        if not splits or (self.data.corpus == own.data.corpus and not self.prepared.lacks(splits)):
            return
        changes: dict[str, Any] = {"corpus": self.eval_corpus(splits)}
        for name in self.TOKENIZERS:
            path = self.prepared.folder / name
            # A pretrained model may have a tokenizer for each side.
            if name == "tokenizer" or path.is_dir():
                options: TokenizerConfig = getattr(self.data, name) or self.data.tokenizer
                changes[name] = options.model_copy(update={"path": str(path)})
        self.prepare_in(folder, self.eval_recipe(self.data.model_copy(update=changes), splits))

    def eval_corpus(self, splits: tuple[str, ...]) -> Any:
        """Return ``data.corpus`` without files that the evaluation of ``splits`` doesn't read."""
        return without_unread_files(self.data.corpus, splits)

    def eval_recipe(self, data: Any, splits: tuple[str, ...]) -> Recipe:
        """Return how ``splits`` of ``data``, whose tokenizers are the run's, are made."""
        raise NotImplementedError

    # Training.

    def new_model(self, *vocab_sizes: int) -> AnyModel:
        """Return a model that isn't pretrained, without adapters; a vocabulary size for each of ``TOKENIZERS``."""
        raise NotImplementedError

    def meta_pretrained(self, folder: Path, config: Any) -> AnyModel | None:
        """Return the model on a base of which ``folder`` has the configuration, as prepared data do, drawn at random.

        None where that doesn't say its size. Raises UserError for a base of another kind.
        """
        return None

    def add_adapters(self, model: AnyModel) -> AnyModel:
        """Return the model with the low-rank adapters of ``model.lora``, if it has any.

        The rows of tokens that a pretrained model lacked are trained next to them.
        """
        lora = self.experiment.model.lora
        add_lora(model, lora, self.also_trained)
        if lora is not None:
            if lora.base_dtype == "nf4":
                keep_token_vectors_in_bf16(self.token_modules(model))
            new = read_new_tokens(prepared_folder(self.directory)).ids
            train_new_rows(dict.fromkeys(self.token_modules(model)), new)
        return model

    def token_modules(self, model: AnyModel) -> Sequence[nn.Module]:
        """Return a model's embeddings and output layers, which have a row for each token."""
        return ()

    def meta_model(self) -> AnyModel | None:
        """Return a model with all tokens that its tokenizers may have, or have where they are given.

        One that begins pretrained is made by the base's configuration, which is all that is read of the base. None
        where that isn't on this machine, and for a user's tokenizer. Raises UserError where a given tokenizer or that
        configuration can't be read.
        """
        if self.base is not None:
            config = self.base.load_config()
            if config is None:
                return None
            with scratch_folder("base") as folder:
                save_config(config, folder)
                return self.meta_pretrained(folder, config)
        factories = self.tokenizers
        if any(factory.is_users for factory in factories.values()):
            return None
        sizes = {}
        for name, factory in factories.items():
            path = factory.options.path
            sizes[name] = Tokenizer.load(Path(path)).vocab_size if path else factory.options.vocab_size
        return self.add_adapters(self.new_model(*(sizes.get(name, sizes["tokenizer"]) for name in self.TOKENIZERS)))
