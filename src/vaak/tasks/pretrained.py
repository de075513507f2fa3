"""Pretrained models: found in a folder or by name on the Hugging Face Hub, and read as networks of ours.

One that isn't available is an error, in one line. Weights are read from safetensors only, one at a time, and code of a
repository is never executed. ``key`` is the option that names the model.

FOLDER (prepared data)
  base/config.json                        its configuration: a run needs no more of it once it has checkpoints
  base/tokenizer_config.json              how transformers makes its tokenizer, for exports
  base/generation_config.json             its settings for generation, where it has them
  base/new_tokens.json                    the tokens that it lacks, where there are any
  tokenizer/tokenizer.json, …_config.json its tokenizer, with which tokens are special, and its chat template
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from tokenizers import AddedToken
from torch import Tensor, nn

from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import read_json, scratch_folder, write_json
from vaak.core.storage.model_formats import PYANNOTE, SAFETENSORS, SHARDS, TRANSFORMERS, list_weights, recognise
from vaak.engine.snapshot import model_tensors
from vaak.runs.folder.directory import runs_at
from vaak.tasks.conversion import READABLE, convert, locate_converted
from vaak.tasks.fetching import GENERATION, SAFELY, fetch_model, import_transformers, load_generation, load_tokenizer
from vaak.text.chat_template import keep_template
from vaak.text.tokenizer import SPECIAL_NAMES, Tokenizer

log = logging.getLogger("vaak")
Found = TypeVar("Found")


def find_model(name: str, folder: Path) -> str:
    """The absolute path of a model's folder, where there is one; else its name on the Hub.

    A model in another form than transformers' has the folder to which it is converted.
    """
    found = next((path for path in (Path(name).expanduser(), folder / name) if path.exists()), None)
    if found is None:
        return name
    form = recognise(found)
    return str(locate_converted(form.file) if form.name in READABLE and form.file else found.resolve())


def resolve_source(key: str, name: str, folder: Path) -> str:
    """The folder or the name on the Hub of a model; a relative folder is looked for in ``folder``, too.

    A model in another form that can be read is converted (``vaak.tasks.conversion``). Raises UserError, which says what
    is there and what to do, for all else that isn't a whole model of transformers.
    """
    for path in (Path(name).expanduser(), folder / name):
        if path.exists():
            form = recognise(path)
            if form.name in READABLE:
                return str(convert(key, form))
            if form.name != TRANSFORMERS:
                raise UserError(f"{key}: {form.describe(path)}")
            return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: no such folder: {name}")
    return name


def read_about(name: str) -> tuple[str, dict[str, Any]]:
    """Return where a model is, its path or its name on the Hub, and its configuration; nothing else of it is fetched.

    That of a published vocoder may be a ``config.yaml``. A model in another form is converted, where that is possible.
    Raises UserError without a configuration; the message says what the folder has.
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
    """The configuration of a model of transformers; with ``local_files_only``, the Hub isn't contacted.

    Raises UserError where it can't be loaded.
    """
    auto, how = import_transformers(key), {**SAFELY, "local_files_only": local_files_only}
    return fetch_model(key, source, lambda: auto.AutoConfig.from_pretrained(source, **how))


DROPOUTS = (
    *("dropout", "hidden_dropout", "resid_dropout", "residual_dropout", "embed_dropout"),
    *("resid_pdrop", "embd_pdrop", "hidden_dropout_prob"),
)
"""Names of our ``dropout`` in configurations of transformers."""
ATTENTION_DROPOUTS = ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob")

BOTH_WAYS = ("xlnet", "bert-generation")
"""Kinds that aren't masked language models, and whose tokens see the whole text."""


def is_decoder(config: Any) -> bool:
    """Whether tokens see only those before them: transformers has it for causal, and not for masked language models."""
    kinds = importlib.import_module("transformers.models.auto.modeling_auto")
    causal, masked = kinds.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kinds.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    known = config.model_type in causal and config.model_type not in (*masked, *BOTH_WAYS)
    return known or bool(getattr(config, "is_decoder", False))


def config_of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """The ``tokenizer_config.json`` of a tokenizer of transformers, without where it was read."""
    with scratch_folder("tokenizer") as folder:
        tokenizer.save_pretrained(folder)
        found: dict[str, Any] = read_json(folder / "tokenizer_config.json")
    return name_for_older(
        {name: value for name, value in found.items() if name not in ("is_local", "local_files_only")}
    )


def name_for_older(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer_config.json`` of transformers 5 that transformers 4 reads, too, which knows other names.

    >>> name_for_older({"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "<e>"})
    {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '<e>', 'additional_special_tokens': ['<a>']}
    """
    found = {name: value for name, value in config.items() if name != "backend"}
    if found.get("tokenizer_class") == "TokenizersBackend":
        found["tokenizer_class"] = "PreTrainedTokenizerFast"
    # transformers 5 has a list; in 4, each of these tokens has a name.
    if isinstance(extra := found.get("extra_special_tokens"), list):
        del found["extra_special_tokens"]
        found["additional_special_tokens"] = extra
    return found


def has_checkpoints(directory: Path) -> bool:
    """Return whether the run in a directory has saved its weights."""
    return any(path for run in runs_at(directory) for path in (run / "checkpoints").glob("step-*"))


def load_or_init(directory: Path, load: Callable[[], Found], draw: Callable[[], Found]) -> Found:
    """Return the result of ``load``, or of ``draw`` if the source has gone since the run in ``directory`` began.

    Checkpoints have all weights, so those are replaced. Raises the UserError of ``load`` where there are none yet.
    """
    try:
        return load()
    except UserError as error:
        if not has_checkpoints(directory):
            raise
        log.info("%s; the checkpoints of this run have all weights", error)
        return draw()


PRETRAINED_KEY = "model.pretrained"
BASE_FOLDER, TOKENIZER_CONFIG = "base", "tokenizer_config.json"


class Base(NamedTuple):
    """A pretrained model by the ``name`` that a user gives; ``code`` is where a folder is looked for, too."""

    name: str
    code: Path

    @property
    def source(self) -> str:
        """Its folder, or its name on the Hub. Raises UserError for a folder that isn't there."""
        return resolve_source(PRETRAINED_KEY, self.name, self.code)

    def load_config(self) -> Any | None:
        """Its configuration, for which its weights needn't be there; the Hub isn't contacted, and nothing converted.

        None where it isn't on this machine. Raises UserError for a folder that isn't there or has a damaged one.
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


class KeptBase(NamedTuple):
    """The files of a base that exports need: ``tokenizer_config.json``, ``generation_config.json``, ``config.json``."""

    tokenizer: dict[str, Any]
    generation: dict[str, Any]
    config: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> KeptBase:
        """Return the files kept in prepared data."""
        return cls(read_tokenizer_config(folder), read_generation(folder), saved_config(folder))


def save_config(config: Any, folder: Path, changed: Mapping[str, Any] | None = None) -> None:
    """Put a configuration in ``folder``, with what is as transformers has it, too."""
    config.save_pretrained(folder / BASE_FOLDER)
    write_json(folder / BASE_FOLDER / "config.json", {**config.to_dict(), **(changed or {})})


def tell_untied(network: Any) -> None:
    """Have a network's configuration say so where its output layer isn't its embedding (any more).

    A tied one that was adapted has its own weight once the adapter is merged; other tools would tie it again.
    """
    if network.get_output_embeddings().weight is not network.get_input_embeddings().weight:
        network.config.tie_word_embeddings = False


_OF_MODERNBERT = {"rope_theta": "global_rope_theta", "local": "local_rope_theta"}
_OLDER_NAMES = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "modernbert": _OF_MODERNBERT,
    "modernbert-decoder": _OF_MODERNBERT,
}
"""Names of options of rotary positions in transformers 4, for families that differ from most."""


def older_rope(rope: Mapping[str, Any], model_type: str = "") -> dict[str, Any]:
    """The rotary positions as transformers 4 reads them, which doesn't know ``rope_parameters``.

    Layers that attend within a window have their own in Gemma 3 and ModernBERT. Empty for positions of another kind.

    >>> older_rope({"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0})
    {'rope_theta': 5.0, 'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}}
    >>> older_rope({"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 2.0}})
    {'rope_theta': 5.0, 'rope_local_base_freq': 2.0}
    >>> older_rope({"rope_theta": 5.0, "partial_rotary_factor": 0.3}, "gpt_neox")
    {'rotary_emb_base': 5.0, 'rotary_pct': 0.3}
    """
    names = _OLDER_NAMES.get(model_type, {})
    if {"full_attention", "sliding_attention"} <= rope.keys():
        local = {names.get("local", "rope_local_base_freq"): rope["sliding_attention"]["rope_theta"]}
        return older_rope(rope["full_attention"], model_type) | local
    plain = ("rope_theta", "partial_rotary_factor")
    found: dict[str, Any] = {names.get(name, name): rope[name] for name in plain if rope.get(name) is not None}
    if rope.get("rope_type", "default") != "default":
        found["rope_scaling"] = {name: value for name, value in rope.items() if name not in plain}
    return found if "rope_theta" in rope else {}


def write_older_names(folder: Path) -> None:
    """Add to an export of transformers 5 what transformers 4 reads by other names: rotary positions and tokenizers.

    That version would take its family's default positions, without a word, and refuse the tokenizer.
    """

    def add(config: Mapping[str, Any]) -> dict[str, Any]:
        inner = {name: add(one) for name, one in config.items() if isinstance(one, dict) and "model_type" in one}
        return {**config, **inner, **older_rope(config.get("rope_parameters") or {}, str(config.get("model_type")))}

    for name, change in (("config.json", add), (TOKENIZER_CONFIG, name_for_older)):
        if (file := folder / name).is_file() and (both := change(written := read_json(file))) != written:
            write_json(file, both)


def write_generation(source: str, folder: Path) -> None:
    """Put a model's transformers settings for generation in prepared data, where it has them.

    Raises UserError where they can't be read.
    """
    found = load_generation(PRETRAINED_KEY, source)
    if found is not None:
        write_json(folder / BASE_FOLDER / GENERATION, found.to_diff_dict())


def read_generation(folder: Path) -> dict[str, Any]:
    """Return how a model generates; empty where it doesn't say so, or its data was prepared before it was kept."""
    file = folder / BASE_FOLDER / GENERATION
    return dict(read_json(file)) if file.is_file() else {}


def saved_config(folder: Path) -> dict[str, Any]:
    """The configuration in prepared data."""
    found: dict[str, Any] = read_json(folder / BASE_FOLDER / "config.json")
    return found


NEW_TOKENS_FILE = "new_tokens.json"


def save_new_tokens(found: Any, tokens: NewTokens, num_rows: int, folder: Path) -> None:
    """Add ``tokens`` to the tokenizer ``found`` of a base, and say in prepared data which rows the base lacks.

    The base has ``num_rows`` rows, and may have a few more than tokens. Logs how many rows are new and how they begin.
    Raises UserError for a token to begin like that it doesn't have.
    """
    known = found.get_vocab()
    if tokens.like is not None:
        require_known([tokens.like], known, "data.new_tokens_like: the base has no token", error=UserError, remedy=LIKE)
    first = max(known.values()) + 1
    added = [token for token in dict.fromkeys(tokens.names) if token not in known]
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    vocabulary = found.get_vocab()
    ids = range(min(num_rows, first) if added else num_rows, max(vocabulary.values()) + 1)
    if not ids:
        return
    names = [name for name, token in sorted(vocabulary.items(), key=itemgetter(1)) if token in ids]
    begin = "the mean of all others" if tokens.like is None else f"that of {tokens.like}"
    log.info("%d tokens are new to the base (%s): the row of each begins as %s", len(ids), list_names(names), begin)
    write_new_tokens(NewIds(ids, None if tokens.like is None else known[tokens.like]), folder)


LIKE = "give one of its tokenizer's"


class NewTokens(NamedTuple):
    """Tokens that a base's tokenizer is to have, and the one as whose row theirs begin; None: as the mean of all."""

    names: Sequence[str] = ()
    like: str | None = None


class NewIds(NamedTuple):
    """The tokens that a base lacks, and the one as whose rows theirs begin."""

    ids: range = range(0)
    like: int | None = None


def write_new_tokens(new: NewIds, folder: Path) -> None:
    """Say in prepared data which tokens the base lacks."""
    (folder / BASE_FOLDER).mkdir(exist_ok=True)
    about = {"first": new.ids.start, "stop": new.ids.stop, "like": new.like}
    write_json(folder / BASE_FOLDER / NEW_TOKENS_FILE, about)


def note_missing_rows(num_rows: int, vocab_size: int, source: str, folder: Path, key: str = PRETRAINED_KEY) -> None:
    """Say in prepared data, and in a line, which of a tokenizer's tokens the base ``source`` has no rows for."""
    if vocab_size > num_rows:
        number = vocab_size - num_rows
        log.info("%s: %d tokens are new to %s: the row of each begins as the mean", key, number, source)
        write_new_tokens(NewIds(range(num_rows, vocab_size)), folder)


def read_new_tokens(folder: Path) -> NewIds:
    """Return the tokens that the base in prepared data lacks; none where it has a row for each."""
    file = folder / BASE_FOLDER / NEW_TOKENS_FILE
    if not file.is_file():
        return NewIds()
    about = read_json(file)
    return NewIds(range(about["first"], about["stop"]), about["like"])


def save_tokenizer(
    source: str,
    folder: Path,
    roles: Mapping[str, int | None] | None = None,
    key: str = PRETRAINED_KEY,
    new: tuple[NewTokens, int] | None = None,
) -> Tokenizer:
    """Put the tokenizer of a model in ``folder``; ``roles`` are special tokens by their ids, before its own.

    ``key`` is the option that names the model. ``new`` are tokens that are added, and how many rows the model has.
    Raises UserError where it can't be loaded.
    """
    found = load_tokenizer(key, source)
    if new is not None:
        save_new_tokens(found, *new, folder)
    own: dict[str, Any] = {role: getattr(found, f"{role}_token", None) for role in SPECIAL_NAMES}
    vocabulary = found.get_vocab()
    for role, names in SPECIAL_NAMES.items():
        own[role] = own[role] or next((name for name in names if name in vocabulary), None)
    # the one that ends a document stands for those that it lacks: so no token is added, and the model keeps its size
    special = {role: str(token or own["eos"]) for role, token in own.items() if token or own["eos"]}
    given = {role: found.convert_ids_to_tokens(token) for role, token in (roles or {}).items() if token is not None}
    tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str(), special | given)
    tokenizer.save(folder / "tokenizer")
    write_tokenizer_config(found, folder)
    if found.chat_template:
        keep_template(folder / "tokenizer", found.chat_template)
    return tokenizer


def write_tokenizer_config(found: Any, folder: Path) -> None:
    """Put in prepared data how transformers makes the tokenizer that it ``found``."""
    (folder / BASE_FOLDER).mkdir(exist_ok=True)
    write_json(folder / BASE_FOLDER / TOKENIZER_CONFIG, config_of_tokenizer(found))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return how transformers makes the tokenizer; of data prepared before it was kept, its special tokens alone."""
    kept = folder / BASE_FOLDER / TOKENIZER_CONFIG
    return name_for_older(read_json(kept if kept.is_file() else folder / "tokenizer" / TOKENIZER_CONFIG))


def write_base_tokenizer(tokenizer: Tokenizer, prepared: Path, folder: Path) -> None:
    """Write the tokenizer of a base as transformers has it: its class, its special tokens, what it puts around a text.

    ``prepared`` has its kept files.
    """
    tokenizer.save(folder)
    write_json(folder / TOKENIZER_CONFIG, read_tokenizer_config(prepared))


def read_weights(
    model: nn.Module,
    source: str,
    imported: Callable[[Iterator[tuple[str, Tensor]], list[str]], Iterable[tuple[str, Tensor]]],
    theirs: Callable[[str], str],
    of_tokens: Sequence[str],
) -> None:
    """Fill ``model`` with the weights of ``source``, in 32 bits; tokens that it lacks stay unchanged.

    ``imported`` gives our names, of which it is given a list, with what their tensors hold of them, and raises KeyError
    for a tensor that we don't have; ``theirs`` is their name of one of ours. ``of_tokens`` are ours that have a row for
    each token.

    Raises UserError where they can't be loaded, or aren't those of its configuration.
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
    """Yield what was found. Raises UserError for a weight that ours doesn't have, or for files that can't be read."""
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
    """The tensors of a model whose names are ``wanted``; one of the Hub is downloaded, or found in the cache."""
    folder = fetch_folder(source, WEIGHTS)
    files = list_weights(folder)
    if not files:
        raise UserError(f"{PRETRAINED_KEY}: {folder} has no weights; expected model.safetensors")
    for file in files:
        with safe_open(file, "pt") as opened:
            # Never within no_grad: a reader that stops early would leave it on.
            for name in filter(wanted, opened.keys()):
                yield name, opened.get_tensor(name)


HEADS = ("lm_head.weight", "embed_out.weight", "proj_out.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
ROWS_AT_ONCE = 4096


def note_own_head(config: Any, source: str, key: str = PRETRAINED_KEY) -> None:
    """Untie a decoder's ``config`` with a warning if its files have an output layer that isn't its embedding.

    The tensors decide, as in transformers 5; transformers 4 took the embedding for the output layer.
    """
    if getattr(config, "tie_word_embeddings", False) and _has_own_head(source):
        config.tie_word_embeddings = False
        log.warning(
            "%s: the configuration of %s says that its output layer is its embedding, but its files have another one, "
            "which is used: exports say so",
            *(key, source),
        )


def _has_own_head(source: str) -> bool:
    """Whether a decoder's files have an output layer that isn't its embedding, whatever its configuration says."""
    found: dict[tuple[str, ...], tuple[Path, str]] = {}
    for file in list_weights(fetch_folder(source, WEIGHTS)):
        with safe_open(file, "pt") as opened:
            names = list(opened.keys())
        found |= {kind: (file, name) for name in names for kind in (HEADS, EMBEDDINGS) if name.endswith(kind)}
    if len(found) < 2:
        return False
    (one, own), (other, shared) = found[HEADS], found[EMBEDDINGS]
    with safe_open(one, "pt") as first, safe_open(other, "pt") as second:
        head, embedding = first.get_slice(own), second.get_slice(shared)
        if head.get_shape() != embedding.get_shape():
            return True
        # Not whole: a vocabulary's rows may be a gigabyte.
        parts = (slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, head.get_shape()[0], ROWS_AT_ONCE))
        return not all(torch.equal(head[part], embedding[part]) for part in parts)


WEIGHTS = (SAFETENSORS, SHARDS, "*.json")
"""The files of a model that are fetched for its weights: none in another precision."""


def fetch_folder(source: str, patterns: Sequence[str]) -> Path:
    """Return a model's folder; from the Hub, files that match ``patterns`` are downloaded unless they are cached."""
    if Path(source).is_dir():
        return Path(source)
    hub: Any = importlib.import_module("huggingface_hub")
    return Path(
        fetch_model(PRETRAINED_KEY, source, lambda: hub.snapshot_download(source, allow_patterns=list(patterns)))
    )
