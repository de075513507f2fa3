"""Pretrained models: found in a folder or by name on the Hugging Face Hub, and read as networks of ours.

One that isn't available is an error, in one line. Weights are read from safetensors only, one at a time, and code of a
repository is never executed. ``key`` is the option that names the model.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.core.storage.model_formats import PYANNOTE, SAFETENSORS, SHARDS, TRANSFORMERS, list_weights, recognise
from vaak.engine.snapshot import model_tensors
from vaak.runs.folder.directory import has_checkpoints
from vaak.tasks.conversion import convert, locate_converted
from vaak.tasks.fetching import READABLE, SAFELY, explain_damage, fetch_model, find_local, import_transformers

log = logging.getLogger("vaak")
Found = TypeVar("Found")


def find_model(name: str, folder: Path) -> str:
    """Return the absolute path of a model's folder if it exists, else its name on the Hub.

    For a model in another format than transformers', it is the folder to which it is converted.
    """
    found = next((path for path in (Path(name).expanduser(), folder / name) if path.exists()), None)
    if found is None:
        return name
    form = recognise(found)
    return str(locate_converted(form.file) if form.name in READABLE and form.file else found.resolve())


def resolve_source(key: str, name: str, folder: Path) -> str:
    """Return the folder of a model, or its name on the Hub; a relative folder may also be in ``folder``.

    A model in another format that can be read is converted (``vaak.tasks.conversion``). Raises UserError, saying what
    is there and what to do, if it isn't a complete model.
    """
    found = find_local(key, name, folder)
    if found is None:
        return name
    path, form = found
    return str(convert(key, form) if form.name in READABLE else path.resolve())


def read_about(name: str) -> tuple[str, dict[str, Any]]:
    """Return a model's path, or its name on the Hub, and its configuration; nothing else of it is fetched.

    A published vocoder may have a ``config.yaml``. A model in another format is converted, if possible. Raises
    UserError without a configuration; the message says what the folder has.
    """
    path = Path(name).expanduser()
    if not path.exists():
        hub: Any = importlib.import_module("huggingface_hub")
        found = fetch_model("pretrained model", name, lambda: hub.hf_hub_download(name, "config.json"))
        return name, _read_configuration(Path(found))
    form = recognise(path)
    if form.name == PYANNOTE:
        return str(path.resolve()), {"model_type": PYANNOTE}
    if form.name in READABLE:
        path = convert("pretrained model", form)
    folder = path if path.is_dir() else path.parent
    file = next((folder / one for one in ("config.json", "config.yaml") if (folder / one).is_file()), None)
    if file is None:
        raise UserError(form.describe(path))
    about = _read_configuration(file)
    if form.name not in (TRANSFORMERS, *READABLE) and "model_type" in about:
        raise UserError(form.describe(path))
    return str(path.resolve()), about


def _read_configuration(file: Path) -> dict[str, Any]:
    try:
        about = read_json(file) if file.suffix == ".json" else read_yaml(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} can't be read: {error}") from error
    if not isinstance(about, dict) or not isinstance(about.get("architectures") or [], list):
        raise UserError(f"{file} isn't the configuration of a model")
    return about


def load_config(key: str, source: str, local_files_only: bool = False) -> Any:
    """Return the configuration of a transformers model; with ``local_files_only``, the Hub isn't contacted.

    Raises UserError if it can't be loaded.
    """
    auto, how = import_transformers(key), {**SAFELY, "local_files_only": local_files_only}
    return fetch_model(key, source, lambda: auto.AutoConfig.from_pretrained(source, **how))


DROPOUTS = (
    *("dropout", "hidden_dropout", "resid_dropout", "residual_dropout", "embed_dropout"),
    *("resid_pdrop", "embd_pdrop", "hidden_dropout_prob"),
)
"""Names of ``dropout`` in configurations of transformers."""
ATTENTION_DROPOUTS = ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob")

BOTH_WAYS = ("xlnet", "bert-generation")
"""Model types that aren't masked language models, although their tokens see the whole text."""


def is_decoder(config: Any) -> bool:
    """Return whether tokens see only those before them: transformers lists the model as a causal LM alone."""
    kinds = importlib.import_module("transformers.models.auto.modeling_auto")
    causal, masked = kinds.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kinds.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    known = config.model_type in causal and config.model_type not in (*masked, *BOTH_WAYS)
    return known or bool(getattr(config, "is_decoder", False))


def load_or_init(directory: Path, load: Callable[[], Found], draw: Callable[[], Found]) -> Found:
    """Return the result of ``load``; of ``draw`` if that fails and the run in ``directory`` has checkpoints.

    These have all weights, so drawn ones are replaced. Raises the UserError of ``load`` without a checkpoint.
    """
    try:
        return load()
    except UserError as error:
        if not has_checkpoints(directory):
            raise
        log.info("%s; the checkpoints of this run have all weights", error)
        return draw()


PRETRAINED_KEY = "model.pretrained"


class Base(NamedTuple):
    """A pretrained model by the ``name`` that a user gives; a relative folder may also be in ``code``."""

    name: str
    code: Path

    @property
    def source(self) -> str:
        """Its folder, or its name on the Hub. Raises UserError for a folder that doesn't exist."""
        return resolve_source(PRETRAINED_KEY, self.name, self.code)

    def load_config(self) -> Any | None:
        """Return its configuration without contacting the Hub or converting anything; weights aren't needed.

        None if it isn't on this machine. Raises UserError for a folder that doesn't exist or has a damaged one.
        """
        places = (Path(self.name).expanduser(), self.code / self.name)
        if any((found := place).exists() for place in places):
            is_transformers = (found / "config.json").is_file()
            return load_config(PRETRAINED_KEY, str(found.resolve())) if is_transformers else None
        source = self.source
        try:
            return load_config(PRETRAINED_KEY, source, local_files_only=True)
        except UserError:
            # Not in the Hub's cache: training fetches it.
            return None


def tell_untied(network: Any) -> None:
    """Record in a network's configuration that its output layer isn't its embedding, if it isn't.

    Merging an adapter gives a tied output layer its own weight, which other tools would otherwise tie again.
    """
    if network.get_output_embeddings().weight is not network.get_input_embeddings().weight:
        network.config.tie_word_embeddings = False


def read_weights(
    model: nn.Module,
    source: str,
    imported: Callable[[Iterator[tuple[str, Tensor]], list[str]], Iterable[tuple[str, Tensor]]],
    theirs: Callable[[str], str],
    of_tokens: Sequence[str],
) -> None:
    """Fill ``model`` with the weights of ``source``, in 32 bits; rows of tokens that it lacks stay unchanged.

    ``imported`` maps its tensors to ours: it gets them and the list of our names, and yields our name and its part of a
    tensor; it raises KeyError for one that we don't have. ``theirs`` maps one of our names back. ``of_tokens`` are our
    tensors with a row for each token.

    Raises UserError if the weights can't be loaded, or don't match the configuration.
    """
    targets = model_tensors(model)
    left = set(targets)
    for name, tensor in check_tensors(source, imported(iterate_tensors(source), list(targets))):
        target = targets[name]
        rows = target[: len(tensor)] if name in of_tokens else target
        if rows.shape != tensor.shape:
            raise UserError(
                f"{PRETRAINED_KEY}: {source}: {name} has shape {tuple(tensor.shape)}, expected {tuple(target.shape)}"
            )
        rows.copy_(tensor)
        left.discard(name)
    if left:
        raise UserError(f"{PRETRAINED_KEY}: {source} lacks {theirs(min(left))}")


def check_tensors(source: str, found: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors ``found``. Raises UserError for one that our model lacks, and for files that can't be read."""
    try:
        yield from found
    except KeyError as error:
        raise UserError(
            f"{PRETRAINED_KEY}: {source} has a weight {error.args[0]}, which vaak's model doesn't"
        ) from error
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{PRETRAINED_KEY}: {source} can't be loaded: {error}") from error


def iterate_tensors(source: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model whose names are ``wanted``; from the Hub, it is downloaded unless cached."""
    folder = fetch_folder(source, WEIGHTS)
    files = list_weights(folder)
    if not files:
        raise UserError(f"{PRETRAINED_KEY}: {folder} has no weights; expected model.safetensors")
    for file in files:
        with _opening(source, file) as opened:
            # Never within no_grad: a reader that stops early would leave it on.
            for name in filter(wanted, opened.keys()):
                yield name, opened.get_tensor(name)


@contextmanager
def _opening(source: str, file: Path, key: str = PRETRAINED_KEY) -> Iterator[Any]:
    """Open a file of a model's weights within this context. Raises UserError for a damaged one."""
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except SafetensorError as error:
        raise UserError(f"{key}: {source} can't be loaded: {explain_damage(error)}") from error


HEADS = ("lm_head.weight", "embed_out.weight", "proj_out.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
ROWS_AT_ONCE = 4096


def note_own_head(config: Any, source: str, key: str = PRETRAINED_KEY) -> None:
    """Untie a decoder's ``config`` with a warning if its files have an output layer that isn't its embedding.

    The tensors decide, as in transformers 5; transformers 4 took the embedding for the output layer.
    """
    if getattr(config, "tie_word_embeddings", False) and _has_own_head(source, key):
        config.tie_word_embeddings = False
        log.warning(
            "%s: the configuration of %s says that its output layer is its embedding, but its files have another one, "
            "which is used: exports say so",
            *(key, source),
        )


def _has_own_head(source: str, key: str) -> bool:
    """Return whether a decoder's files have an output layer that isn't its embedding."""
    found: dict[tuple[str, ...], tuple[Path, str]] = {}
    for file in list_weights(fetch_folder(source, WEIGHTS)):
        with _opening(source, file, key) as opened:
            names = list(opened.keys())
        found |= {kind: (file, name) for name in names for kind in (HEADS, EMBEDDINGS) if name.endswith(kind)}
    if len(found) < 2:
        return False
    (one, own), (other, shared) = found[HEADS], found[EMBEDDINGS]
    with safe_open(one, "pt") as first, safe_open(other, "pt") as second:
        head, embedding = first.get_slice(own), second.get_slice(shared)
        if head.get_shape() != embedding.get_shape():
            return True
        # In parts, because a vocabulary's rows may take a gigabyte.
        parts = (slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, head.get_shape()[0], ROWS_AT_ONCE))
        return not all(torch.equal(head[part], embedding[part]) for part in parts)


WEIGHTS = (SAFETENSORS, SHARDS, "*.json")
"""The files fetched for a model's weights: only those of one precision."""


def fetch_folder(source: str, patterns: Sequence[str]) -> Path:
    """Return a model's folder; from the Hub, files that match ``patterns`` are downloaded unless they are cached."""
    if Path(source).is_dir():
        return Path(source)
    hub: Any = importlib.import_module("huggingface_hub")
    return Path(
        fetch_model(PRETRAINED_KEY, source, lambda: hub.snapshot_download(source, allow_patterns=list(patterns)))
    )
