"""A trained decoder as a folder that transformers loads without Vaak: the same weights, renamed (pretrained.py).

One that is transformers' own module is written by it, in the architecture of its base.

Any language model is written as an ONNX file, and its low-rank adapters for peft.

    config.json            LlamaForCausalLM, Qwen2ForCausalLM (biases of queries, keys and values), Qwen3ForCausalLM
                           (queries and keys normalised) or GPT2LMHeadModel; with a base, its architecture
    generation_config.json model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json

The files are plain JSON and safetensors; transformers is not needed to write ours. A tokenizer that was trained here
puts the token that begins a document before every text, as training does, and none after it: what ends a document is
predicted, never read. That of a pretrained base goes out as it came in.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.core.storage.files import (
    read_json,
    scratch_folder,
    sync_directory,
    sync_file,
    usual_mode,
    whole_folder,
    write_json,
)
from vaak.nn.lora import iterate_adapters, merged, write_adapter
from vaak.nn.new_tokens import iterate_new_rows
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, some_tokens, write_onnx
from vaak.runs.prepared import prepared_folder
from vaak.tasks.ct2 import write_ct2
from vaak.tasks.kept_base import KeptBase, read_config
from vaak.tasks.lm import pretrained
from vaak.tasks.lm.config import LanguageModelConfig, LanguageModelDataConfig, LanguageModelExperiment
from vaak.tasks.lm.export_tokenizer import (
    RunTokenizer,
    find_base_ends,
    find_special_ids,
    select_generation_ids,
    stop_ids,
    write_ends,
    write_tokenizer_files,
)
from vaak.tasks.lm.families import FAMILIES, DecoderFamily, exported_config, find_family
from vaak.tasks.lm.gguf import ARCHITECTURES, write_gguf
from vaak.tasks.lm.model import AnyLanguageModel, LanguageModel, TransformersDecoder
from vaak.tasks.lm.prepare import PreparedText
from vaak.tasks.older_names import write_older_names
from vaak.tasks.pretrained import ATTENTION_DROPOUTS, DROPOUTS, find_model, tell_untied
from vaak.tasks.text_task import TextTask
from vaak.text.chat_template import ChatTemplate, keep_template, template_in
from vaak.text.tokenizer import Tokenizer as VaaksTokenizer
from vaak.text.tokenizer import UsersTokenizer

log = logging.getLogger("vaak")
Decoder = TypeVar("Decoder", LanguageModel, LanguageModel | TransformersDecoder)
SINGLE_EXPERT = re.compile(r"\.experts\.\d+\.")
"""Part of the name of a layer that belongs to one expert."""


def export_hf(
    model: AnyLanguageModel,
    tokenizer: RunTokenizer,
    max_length: int | None,
    folder: Path,
    base: KeptBase | None = None,
) -> None:
    """Write ``folder``, completely or not at all.

    ``max_length`` is the length the model was trained with; ``base`` has the kept files of its pretrained model: texts
    then begin as its own do. What ends an answer, a document, and what the base stops at are in both configurations, so
    that other tools stop there, too.

    Raises UserError for an encoder, a tokenizer that does not fit the model, a special token the tokenizer does not
    know, and a folder that has something in it or can't be written.
    """
    model = merged(model)
    family = None if isinstance(model, TransformersDecoder) else _family(model, base)
    special_ids = find_special_ids(tokenizer.file, tokenizer.special_tokens, model.vocab_size)
    with whole_folder(folder) as made:
        ids = select_generation_ids(special_ids)
        stops = stop_ids(ids, base, tokenizer.turn_ends)
        if isinstance(model, TransformersDecoder):
            assert base is not None
            _write_network(made, model, base.config, stops)
        else:
            assert family is not None
            # Vaak's own tokenizers have it.
            assert max_length is not None
            _write_files(made, model, hf_config(model, max_length, family) | ids | stops, family)
        write_tokenizer_files(made, tokenizer, special_ids, max_length, base)


def _family(model: LanguageModel, base: KeptBase | None) -> DecoderFamily:
    """Return the family that a model is written as: its base's. Raises UserError where there is none."""
    found = find_family(model.config)
    return found if base is None else FAMILIES[base.config["model_type"]]


def _write_network(
    folder: Path, model: TransformersDecoder, theirs: Mapping[str, Any], stops: Mapping[str, Any]
) -> None:
    """Write configuration and weights of transformers' own module, with all options that it came with, ``theirs``.

    ``stops`` says which tokens end a text.
    """
    network = copy.copy(model.network)
    network.config = copy.deepcopy(model.network.config)
    network.config.update({name: theirs[name] for name in (*DROPOUTS, *ATTENTION_DROPOUTS) if name in theirs})
    network.config.update(dict(stops))
    network.config.use_cache = theirs.get("use_cache", True)
    tell_untied(network)
    network.save_pretrained(folder)
    write_older_names(folder)
    for file in folder.iterdir():
        sync_file(file)
    sync_directory(folder)


def export_peft(
    model: AnyLanguageModel, base: str | None, folder: Path, files: Mapping[str, str] | None = None
) -> None:
    """Write ``folder`` with the low-rank adapters alone, and rows of new tokens, which peft loads on the ``base``.

    ``files`` are further ones. Raises UserError where there are none, or the folder has something in it.
    """
    if isinstance(model, TransformersDecoder):
        adapters, rows = list(iterate_adapters(model.network)), dict(iterate_new_rows(model.network))
    else:
        family = find_family(model.config)
        adapters = [
            adapter._replace(name=family.theirs(f"{adapter.name}.weight")[0].removesuffix(".weight"))
            for adapter in iterate_adapters(model)
        ]
        rows = {
            family.theirs(f"{name}.weight")[0].removesuffix(".weight"): one for name, one in iterate_new_rows(model)
        }
    names = [adapter.name for adapter in adapters]
    _tell_of_single_experts(names)
    write_adapter(adapters, model.config.lora, names, base, folder, whole=rows, files=files, kind="CAUSAL_LM")


def _tell_of_single_experts(names: Sequence[str]) -> None:
    """Log which adapters of single experts peft can't load, where transformers has all experts in one tensor."""
    experts = [name for name in names if SINGLE_EXPERT.search(name)]
    if experts:
        kinds = sorted({name.rpartition(".")[2] for name in experts})
        log.warning(
            "--format peft: %d adapters are of single experts (%s), which transformers 5 keeps as one tensor: peft "
            "can't load them there; leave these out of model.lora.targets, or use --format hf",
            len(experts),
            ", ".join(kinds),
        )


README_OF_NEW_TOKENS = """\
# Low-rank adapters of a language model with {number} tokens that its base lacks

The rows of these tokens are in the adapter (`trainable_token_indices`), and the tokenizer is next to it. This gives the
base as many rows as the tokenizer has tokens, then loads the adapter:

```python
import peft
import transformers

model = peft.AutoPeftModelForCausalLM.from_pretrained("{folder}")
tokenizer = transformers.AutoTokenizer.from_pretrained("{folder}")
```

Tools that put adapters on another copy of the base need its embeddings to have {size} rows first
(`base.resize_token_embeddings({size})`, where it has fewer). `vaak export RUN --format hf` writes the whole model.
"""


def export_onnx(
    model: LanguageModel,
    tokenizer: VaaksTokenizer,
    longest: int,
    folder: Path,
    write_texts: Callable[[Path], None] | None = None,
) -> None:
    """Write ``model.onnx`` and the tokenizer to ``folder``, completely or not at all.

    ``write_texts`` writes the tokenizer instead of the tokenizer's ``save``, with a ``generation_config.json``, whose
    ``eos_token_id`` is also in the model's metadata (``stop_ids``): a loop that writes texts has to stop there.

    ``inputs`` are ids ``(row, token)``; an encoder also has ``mask``, true where they are real. ``logits`` are ``(row,
    token, vocab)``, ``hidden`` ``(row, token, width)``; an encoder's are 0 in padding. A model that is mixed with
    n-grams gives the mixture's log-probabilities as ``logits``. A row has ``longest`` tokens at most. Raises UserError
    where the model can't be exported, or the outputs differ from PyTorch's.
    """
    is_encoder = model.config.model_type == "encoder"
    names = ("inputs", "mask") if is_encoder else ("inputs",)

    def outputs(given: LanguageModel, inputs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        hidden = given.hidden(inputs, mask=mask)
        logits = given.logits(hidden)
        if given.ngram is not None:
            logits = given.ngram.mix(logits, given.ngram.find_contexts(inputs))
        found = logits, hidden
        return found if mask is None else tuple(one * mask[..., None] for one in found)

    # The file is made with the first and checked with all: a size that was fixed by mistake fails with the others.
    first, *others = (
        some_tokens(model.vocab_size, rows, min(length, longest), ("inputs", "mask"))
        for rows, length in ((2, 9), (1, 7), (3, 70))
    )
    given = [{name: one[name] for name in names} for one in (first, *others)]
    axes = {name: {0: "row", 1: "token"} for name in names}
    metadata = {"longest": str(longest)}
    exported = OnnxModule(
        ExportWrapper(merged(model), outputs), given[0], axes, ("logits", "hidden"), given[1:], metadata
    )
    with whole_folder(folder) as made:
        if write_texts is None:
            tokenizer.save(made)
        else:
            write_texts(made)
            stops = read_json(made / "generation_config.json").get("eos_token_id", [])
            # exported holds this dictionary itself, not a copy.
            metadata["stop_ids"] = ",".join(map(str, stops if isinstance(stops, list) else [stops]))
        write_onnx(made / "model.onnx", exported)


def ct2_logits(model: AnyLanguageModel, longest: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The logits ``(token, vocab)`` that CTranslate2 gives for ``folder``, and those of ``model``, for drawn tokens."""
    import ctranslate2

    # It can't give the logits of more tokens than a layer's window has.
    longest = min(64, longest, _find_window(model) or longest)
    ids = some_tokens(model.vocab_size, 1, longest, ("inputs", "mask"))["inputs"]
    generator = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32")
    with torch.inference_mode():
        expected = model.eval()(ids)
    return np.array(generator.forward_batch(ids.tolist()))[0], expected[0].float().numpy()


def _find_window(model: AnyLanguageModel) -> int | None:
    """Return how many tokens the layers with sliding windows read; None where each layer reads the whole text."""
    config = model.network.config if isinstance(model, TransformersDecoder) else None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if "sliding_attention" not in kinds or not getattr(config, "use_sliding_window", True):
        return None
    return getattr(config, "sliding_window", None)


def hf_config(model: LanguageModel, max_length: int, family: DecoderFamily | None = None) -> dict[str, Any]:
    """Return the model's ``config.json``; ``family`` is the one of its options, unless another is given."""
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    # A tied output layer that was adapted has its own weight once the adapter is merged.
    config = model.config.model_copy(update={"tie_embeddings": model.head is None})
    return exported_config(config, family or find_family(model.config), model.vocab_size, max_length, dtype)


def hf_weights(model: LanguageModel, family: DecoderFamily | None = None) -> dict[str, torch.Tensor]:
    """Return the weights under transformers' names, on the CPU; a tied head is not repeated."""
    return (family or find_family(model.config)).exported(model.state_dict())


def _write_files(folder: Path, model: LanguageModel, config: Mapping[str, Any], family: DecoderFamily) -> None:
    """Write the configuration ``config`` and the weights of ``model``, by the names of ``family``, to ``folder``."""
    write_json(folder / "config.json", dict(config))
    with usual_mode(folder / "model.safetensors"):
        try:
            save_file(hf_weights(model, family), folder / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    sync_file(folder / "model.safetensors")
    sync_directory(folder)


def _network_alone(model: Decoder) -> Decoder:
    """Return a model without the n-grams that it is mixed with, which only ONNX has; log that they are left out."""
    if model.ngram is None:
        return model
    log.warning(
        "the n-grams of model.ngram are left out: the file has the network alone, which predicts less well; "
        "--format onnx has both"
    )
    return model.without_ngram()


class ExportableTask(TextTask[LanguageModelExperiment, PreparedText, AnyLanguageModel]):
    """The exports of a language model's run: which there are, and each in its format."""

    data: LanguageModelDataConfig

    def __init__(self, experiment: LanguageModelExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.own = experiment.model

    @cached_property
    def options(self) -> LanguageModelConfig:
        """The options of the model: for a pretrained one, mostly its own."""
        if self.own.pretrained is None:
            return self.own
        return pretrained.options_in(prepared_folder(self.directory), self.own)

    @property
    def tokenizer(self) -> VaaksTokenizer:
        return self.prepared.tokenizer

    def export_hf(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that transformers loads without Vaak."""
        assert isinstance(model, AnyLanguageModel)
        if isinstance(self.tokenizer, UsersTokenizer):
            raise UserError(f"data.tokenizer: transformers can't load a {self.data.tokenizer.type}; it isn't exported")
        export_hf(_network_alone(model), self._run_tokenizer(), self.longest_read, folder, self._kept_base())

    def _run_tokenizer(self) -> RunTokenizer:
        names = {f"{role}_token": token for role, token in self.tokenizer.special_tokens.items()}
        # In a stream, a document has no end token: the beginning of the next one ends it.
        if self.data.layout == "stream":
            names["eos_token"] = names["bos_token"]
        return RunTokenizer(self.prepared.folder / "tokenizer" / "tokenizer.json", names, self._turn_ends())

    def _turn_ends(self) -> tuple[int, ...]:
        """Return the tokens at which a run that was taught conversations ends an answer; none of one taught texts."""
        prepared = prepared_folder(self.directory) / "tokenizer"
        content = template_in(prepared) if self.data.corpus.has_answers else None
        return () if content is None else ChatTemplate(content, self.tokenizer).end_ids

    def refused_exports(self) -> dict[str, str]:
        family = self._family()
        reasons = super().refused_exports()
        if isinstance(self.tokenizer, UsersTokenizer):
            reasons["hf"] = f"transformers can't load a data.tokenizer of type {self.data.tokenizer.type}"
        elif family is None:
            reasons["onnx"] = "the model is transformers' own module; export it as hf, which other tools convert"
        elif isinstance(family, str):
            reasons["hf"] = family
        elif family.is_transposed:
            reasons.setdefault("peft", f"{family.architecture} has one layer for several of ours, so they are merged")
        kind = self._model_type(family)
        if kind not in ARCHITECTURES:
            reasons["gguf"] = f"llama.cpp's files are written of {', '.join(ARCHITECTURES)}, not of {kind}"
        return reasons | (dict.fromkeys(("ct2", "gguf"), reasons["hf"]) if "hf" in reasons else {})

    def _model_type(self, family: DecoderFamily | str | None) -> str | None:
        if isinstance(family, DecoderFamily):
            return family.model_type
        return None if family else str(read_config(self.prepared.folder)["model_type"])

    def _family(self) -> DecoderFamily | str | None:
        """Return the model's family in transformers, or why it has none; None where it is transformers' own module."""
        if self.own.pretrained is not None:
            return pretrained.family_in(self.prepared.folder)
        try:
            return find_family(self.options)
        except UserError as error:
            return str(error).rstrip(".")

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write the low-rank adapters as an adapter that peft loads on the base, in transformers if it has one."""
        assert isinstance(model, AnyLanguageModel)
        if isinstance(self._family(), str):
            super().export_peft(model, folder)
        else:
            base = self.own.pretrained
            found = None if base is None else find_model(base, self.folder)
            export_peft(_network_alone(model), found, folder, self._files_of_texts(model, folder))

    def _files_of_texts(self, model: AnyLanguageModel, folder: Path) -> dict[str, str]:
        """Return the files of the tokenizer, and of how texts are generated; with new tokens, a README.

        By the tokenizer peft gives the base its new rows; by both, tools stop where the run's texts end.
        """
        if isinstance(self.tokenizer, UsersTokenizer):
            return {}
        with scratch_folder("tokenizer") as made:
            self._write_tokenizer_files(made)
            files = {file.name: file.read_text(encoding="utf-8") for file in made.iterdir()}
        rows = [one for _, one in iterate_new_rows(model)]
        if not rows:
            return files
        readme = README_OF_NEW_TOKENS.format(number=len(rows[0].ids), size=rows[0].ids.stop, folder=folder.name)
        return files | {"README.md": readme}

    def _write_tokenizer_files(self, folder: Path) -> None:
        """Write tokenizer, chat template and ``generation_config.json`` to a folder that has no configuration."""
        write_tokenizer_files(folder, *self._tokenizer_and_ids(), self.longest_read, self._kept_base())

    def _write_plain_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer as Vaak reads it, which puts nothing before a text, with template and ends."""
        self.tokenizer.save(folder)
        tokenizer, ids = self._tokenizer_and_ids()
        if (template := template_in(tokenizer.file.parent)) is not None:
            keep_template(folder, template)
        write_ends(folder, tokenizer, ids, self._kept_base())

    def _tokenizer_and_ids(self) -> tuple[RunTokenizer, dict[str, int]]:
        tokenizer = self._run_tokenizer()
        return tokenizer, find_special_ids(tokenizer.file, tokenizer.special_tokens, self.tokenizer.vocab_size)

    def _kept_base(self) -> KeptBase | None:
        return None if self.own.pretrained is None else KeptBase.of(self.prepared.folder)

    @cached_property
    def base_ends(self) -> list[int]:
        """The tokens at which the run's pretrained model stops, which may be several; none without one."""
        return find_base_ends(self._kept_base())

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write a file that onnxruntime runs without Vaak, with the tokenizer."""
        assert isinstance(model, LanguageModel)
        write_texts = None
        if model.config.model_type == "decoder" and not isinstance(self.tokenizer, UsersTokenizer):
            write_texts = self._write_plain_tokenizer
        export_onnx(model, self.tokenizer, self.longest_read, folder, write_texts)

    def export_ct2(self, model: nn.Module, folder: Path, quantization: str | None = None) -> None:
        """Write a folder that CTranslate2 loads, with the logits of the run."""
        assert isinstance(model, AnyLanguageModel)
        model = _network_alone(model)
        check = partial(ct2_logits, model, min(self.longest_read, self.data.max_length))
        write_ct2(partial(self.export_hf, model), folder, quantization, check)
        self._tell_of_ends(folder)
        window = _find_window(model)
        if window is not None and window < self.longest_read:
            log.warning(
                "CTranslate2 %s continues a prompt of more than %d tokens, the sliding window of this model's layers, "
                "with another text than transformers: keep prompts shorter, or use --format gguf or hf",
                *(version("ctranslate2"), window),
            )

    def _tell_of_ends(self, folder: Path) -> None:
        """Log which tokens end a text that CTranslate2's configuration, which has one, doesn't name."""
        named = read_json(folder / "config.json").get("eos_token")
        stops = read_json(folder / "generation_config.json").get("eos_token_id", [])
        names = self.tokenizer.token_names()
        others = [
            name for name in (names[one] for one in (stops if isinstance(stops, list) else [stops])) if name != named
        ]
        if others:
            log.warning(
                "CTranslate2 stops at one token by itself, %s: have it stop at %s, too: end_token=%s",
                *(named, list_names(others), [named, *others]),
            )

    def export_gguf(self, model: nn.Module, folder: Path, quantization: str | None = None) -> None:
        """Write a file that llama.cpp runs, with the tokenizer."""
        write_gguf(partial(self.export_hf, model), folder, quantization, self._turn_ends(), self.tokenizer.eos_id)

    @property
    def longest_read(self) -> int:
        """The number of tokens that the model reads: the trained length where its base read fewer."""
        base = None if self.own.pretrained is None else pretrained.read_max_length(self.prepared.folder)
        return max(base or 0, self.data.max_length)
