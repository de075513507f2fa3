"""Published sentence encoders: one vector for each text, by the pooling that their folder names.

    texts ──tokenizer──▶ encoder ──pooling over real tokens──▶ (unit length) ──▶ embeddings

A folder of sentence-transformers lists its modules in ``modules.json``: Transformer, Pooling and Normalize are read,
and the prompt that it puts before each text by default. Any other encoder has the mean over its tokens. A
cross-encoder, a classifier of transformers with one label, reads two texts together and gives one score. Source:
Reimers and Gurevych 2019, "Sentence-BERT".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.config.experiment import Experiment
from vaak.config.tasks import TaskSpec
from vaak.core.errors import UserError
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import read_json
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.precision import Precision
from vaak.runs.open_run import OpenedRun
from vaak.tasks.batches import Embedded, limit_batch
from vaak.tasks.classification.pretrained import longest_input
from vaak.tasks.fetching import SAFELY, fetch_model, import_transformers, load_tokenizer
from vaak.tasks.pretrained import fetch_folder, load_config, resolve_source

log = logging.getLogger("vaak")
KEY, PAIRS_KEY = "--embeddings", "--pairs"
FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*/config.json")
SENTENCES_AT_ONCE = 32
POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The modes of sentence-transformers 6, in the order in which their vectors are joined, and the keys of older folders,
which are true or false."""
MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """How texts are read, and the vectors of their tokens become one; ``max_length`` is that of a text, in tokens."""

    modes: tuple[str, ...] = ("mean",)
    normalises: bool = False
    max_length: int | None = None
    prompt: str = ""
    """Put before each text."""
    lowers: bool = False
    """Whether texts are read in lower case, whatever the tokenizer does."""

    @classmethod
    def read(cls, folder: Path) -> Pooling:
        """Return that of a folder; a line says its prompt. Raises UserError for modules that aren't read."""
        if not (folder / "modules.json").is_file():
            log.warning("%s: %s has no modules.json: the embedding of a text is the mean over its tokens", KEY, folder)
            return cls()
        modules = [
            (str(one["type"]).rpartition(".")[2], folder / one["path"]) for one in read_json(folder / "modules.json")
        ]
        if unread := [kind for kind, _ in modules if kind not in MODULES]:
            raise UserError(f"{KEY}: {folder} has a module {unread[0]}; only {', '.join(MODULES)} are read")
        own = next((_read_options(place / "config.json") for kind, place in modules if kind == "Pooling"), None)
        if own is None:
            raise UserError(f"{KEY}: modules.json of {folder} has no Pooling of the tokens' vectors")
        text = _read_options(folder / "sentence_bert_config.json")
        if (task := text.get("transformer_task", "feature-extraction")) != "feature-extraction":
            raise UserError(f"{KEY}: {folder} has transformer_task {task}, which isn't read")
        prompt = _read_prompt(folder)
        if prompt and own.get("include_prompt") is False:
            raise UserError(f"{KEY}: {folder} leaves its prompt out of the pooling (include_prompt), which isn't read")
        normalises = any(kind == "Normalize" for kind, _ in modules)
        lowers = text.get("do_lower_case") is True
        return cls(_read_modes(own, folder), normalises, text.get("max_seq_length"), prompt, lowers)

    def render(self, text: str) -> str:
        """Return the part of a text that the encoder reads."""
        found = self.prompt + text
        return found.lower() if self.lowers else found

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The embeddings ``(row, dim)`` of ``hidden (row, token, width)``; ``mask`` is True where a token is real."""
        kept, number = hidden.masked_fill(~mask[..., None], 0.0), mask.sum(1, keepdim=True)
        places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device) * mask
        each = {
            "cls": lambda: hidden[:, 0],
            "max": lambda: hidden.masked_fill(~mask[..., None], -torch.inf).amax(1),
            "mean": lambda: kept.sum(1) / number,
            "mean_sqrt_len_tokens": lambda: kept.sum(1) / number.sqrt(),
            "weightedmean": lambda: (kept * places[..., None]).sum(1) / places.sum(1, keepdim=True),
            "lasttoken": lambda: hidden[torch.arange(len(hidden), device=hidden.device), number[:, 0] - 1],
        }
        found = torch.cat([each[mode]() for mode in self.modes], 1)
        return F.normalize(found, dim=1) if self.normalises else found


def _read_options(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(file) if file.is_file() else {}
    return found


def _read_modes(own: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the modes of a Pooling with the options ``own``. Raises UserError for one that isn't read."""
    # sentence-transformers 6 writes names; before, each mode had a key.
    named = own.get("pooling_mode")
    if named is not None:
        modes = [named] if isinstance(named, str) else list(named)
    else:
        on = [name for name, value in own.items() if name.startswith("pooling_mode_") and value is True]
        modes = [mode for mode, name in POOLINGS.items() if name in on]
        modes += [name for name in on if name not in POOLINGS.values()]
    require_known(modes, POOLINGS, f"{KEY}: {folder} has the pooling mode", error=UserError)
    return tuple(modes) or ("mean",)


def _read_prompt(folder: Path) -> str:
    """Return a folder's default prompt, put before each text; a line names it, or says that prompts aren't used."""
    about = _read_options(folder / "config_sentence_transformers.json")
    name, prompts = about.get("default_prompt_name"), about.get("prompts") or {}
    if name is None:
        if named := [one for one, prompt in prompts.items() if prompt]:
            log.info("%s: %s has prompts (%s): put one before the texts yourself", KEY, folder, list_names(named))
        return ""
    if name not in prompts:
        raise UserError(f"{KEY}: {folder} has no prompt {name!r}, its default_prompt_name")
    log.info("%s: each text is read after the prompt %r (%s), its default", KEY, prompts[name], name)
    return str(prompts[name])


@dataclass(frozen=True)
class SentenceEncoder:
    """An encoder with its tokenizer; texts longer than ``longest`` tokens are cut."""

    model: torch.nn.Module
    tokenizer: Any
    pooling: Pooling
    longest: int

    @classmethod
    def open(cls, source: str, device: torch.device) -> SentenceEncoder:
        """Return the encoder in a folder, or of a name on the Hub. Raises UserError if it can't be loaded."""
        folder = fetch_folder(resolve_source(KEY, source, Path()), FILES)
        pooling, auto = Pooling.read(folder), import_transformers(KEY)
        tokenizer = load_tokenizer(KEY, str(folder))
        if tokenizer.pad_token is None:
            # Padding is masked, so it may be any token; tokenizers of decoders often have none.
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        how: dict[str, Any] = {**SAFELY, "use_safetensors": True, "dtype": torch.float32}
        model = fetch_model(KEY, source, lambda: auto.AutoModel.from_pretrained(folder, **how))
        if model.main_input_name != "input_ids":
            what = f"{source} is a {model.config.model_type}, which reads {model.main_input_name}"
            raise UserError(f"{KEY}: {what}; give an encoder of text, such as BERT")
        # Sentence encoders of T5's kind have its encoder alone.
        model = (model.get_encoder() if model.config.is_encoder_decoder else model).to(device).eval()
        longest = pooling.max_length or min(tokenizer.model_max_length, longest_input(model.config) or 512)
        tokenizer.padding_side = "right"
        return cls(model, tokenizer, pooling, longest)

    def embed_batch(self, texts: list[str]) -> list[Embedded]:
        """Return the embedding of each text, all computed at once."""
        texts = [self.pooling.render(text) for text in texts]
        sizes = [len(ids) for ids in self.tokenizer(texts, verbose=False)["input_ids"]]
        how = {"padding": True, "truncation": True, "max_length": self.longest, "return_tensors": "pt"}
        read = self.tokenizer(texts, **how).to(next(self.model.parameters()).device)
        with torch.inference_mode():
            hidden = self.model(**read).last_hidden_state.float()
            rows = self.pooling.pool(hidden, read["attention_mask"].bool()).cpu().tolist()
        each = zip(rows, sizes, strict=True)
        return [Embedded(vector, min(size, self.longest), size > self.longest) for vector, size in each]


def embed(source: str, texts: Iterable[str], device: torch.device) -> Iterator[tuple[str, list[float]]]:
    """Yield each text with its embedding, by the encoder in a folder, or of a name on the Hub.

    A line counts the texts of which only the beginning was read. Raises UserError if it can't be loaded.
    """
    encoder, cut, given = SentenceEncoder.open(source, device), 0, iter(texts)
    while some := list(islice(given, limit_batch(SENTENCES_AT_ONCE))):
        found = encoder.embed_batch(some)
        cut += sum(one.is_cut for one in found)
        yield from zip(some, (one.vector for one in found), strict=True)
    if cut:
        log.warning("%s: %d texts are longer than %d tokens; only their beginning was read", KEY, cut, encoder.longest)


class SentenceEncoderInUse:
    """Gives a sentence encoder that isn't trained here the methods that a server calls on a task."""

    SPEC = TaskSpec(endpoints=lambda get: ("embeddings",))
    predict_files = None
    inner_tasks: Mapping[str, Any] = {}

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.encoder = encoder

    def predict(self, model: torch.nn.Module, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield what ``vaak predict --embeddings`` prints of each text."""
        given = list(texts)
        for text, one in zip(given, self.embed_batch(model, given), strict=True):
            yield {"text": text, "embedding": one.vector}

    def refused_endpoints(self) -> dict[str, str]:
        return {}

    def embed_batch(self, model: torch.nn.Module, texts: list[str]) -> list[Embedded]:
        return self.encoder.embed_batch(texts)


def open_encoder(path: Path, device: str) -> OpenedRun:
    """Return a sentence encoder as a run is opened. Raises UserError if it can't be loaded."""
    encoder = SentenceEncoder.open(str(path), pick_device(device))
    task, precision = SentenceEncoderInUse(encoder), Precision("no", next(encoder.model.parameters()).device)
    experiment = Experiment[Any, Any].model_construct(task="classification")
    return OpenedRun(experiment, path, path, task, encoder.model, "own", precision)


ACTIVATIONS = {"Sigmoid": torch.sigmoid, "Identity": lambda scores: scores}
"""Activations that a cross-encoder's configuration may name, by the last part of their name in torch."""


def _find_activation(config: Any) -> str:
    """Return the name of the function of scores, as sentence-transformers finds it; the usual one is Sigmoid.

    Raises UserError for one that isn't read.
    """
    newer = getattr(config, "sentence_transformers", None) or {}
    named = newer.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None) or "Sigmoid"
    name = str(named).rpartition(".")[2]
    require_known([name], ACTIVATIONS, f"{PAIRS_KEY}: the configuration names", error=UserError)
    return name


def score_pairs(
    source: str, pairs: Iterable[tuple[str, str]], device: torch.device
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each pair of texts with its score, by the cross-encoder in a folder, or of a name on the Hub.

    A line says what function scores have, and another counts the pairs of which a part wasn't read. Raises UserError
    if it can't be loaded, or has not one label.
    """
    folder, auto = fetch_folder(resolve_source(PAIRS_KEY, source, Path()), FILES), import_transformers(PAIRS_KEY)
    config = load_config(PAIRS_KEY, str(folder))
    named = [str(name) for name in config.architectures or ()]
    if config.num_labels != 1 or not any(name.endswith("ForSequenceClassification") for name in named):
        what = f"a {', '.join(named) or config.model_type} with {config.num_labels} labels"
        raise UserError(f"{PAIRS_KEY}: {source} is {what}; a cross-encoder is a ForSequenceClassification with one")
    activation, tokenizer = _find_activation(config), load_tokenizer(PAIRS_KEY, str(folder))
    how: dict[str, Any] = {**SAFELY, "use_safetensors": True, "dtype": torch.float32}
    kind = auto.AutoModelForSequenceClassification
    model = fetch_model(PAIRS_KEY, source, lambda: kind.from_pretrained(folder, **how)).to(device).eval()
    longest = min(tokenizer.model_max_length, longest_input(config) or 512)
    log.info("%s: scores are of %s, as the model's configuration has it", PAIRS_KEY, activation)
    cut, given = 0, iter(pairs)
    while some := list(islice(given, limit_batch(SENTENCES_AT_ONCE))):
        first, second = [one for one, _ in some], [other for _, other in some]
        cut += sum(len(ids) > longest for ids in tokenizer(first, second, verbose=False)["input_ids"])
        how = {"padding": True, "truncation": "longest_first", "max_length": longest, "return_tensors": "pt"}
        with torch.inference_mode():
            logits = model(**tokenizer(first, second, **how).to(device)).logits[:, 0].float()
        yield from zip(some, ACTIVATIONS[activation](logits).cpu().tolist(), strict=True)
    if cut:
        log.warning("%s: %d pairs are longer than %d tokens; their longer texts were cut", PAIRS_KEY, cut, longest)
