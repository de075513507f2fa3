"""Pretrained encoders as CTC models (../bases.py): transformers' own networks, their audio, their tokens.

    samples ──convolutions, frozen──▶ frames ──some replaced by a learned vector──▶ transformer ──linear──▶ logits
    features of w2v-BERT ───────────▶ frames ──the same───────────────────────────▶ conformer ──linear──▶ logits
    features of Parakeet, LASR ───────────────────────────────────────────────────▶ conformer ──linear──▶ logits

A base that was fine-tuned brings its tokens (vocab.json) and its output layer; to another come those of
``data.tokenizer``, and a layer that is drawn, as where ``data.tokenizer.path`` gives other tokens. Differs from
transformers: which frames are masked is drawn with the example, by its own key; layers are never skipped; and the
convolutions of a base that normalises over time (wav2vec 2.0 base, HuBERT base) read each row alone, so that padding
changes nothing, and so does the layer that shortens what w2v-BERT makes (``add_adapter``). The statistics of batch
normalisation (Parakeet, LASR) are the base's, and stay so.

MMS has an adapter in each layer, and tokens, for each of many languages: one of them is trained, with the output layer,
while all else is frozen (``model.adapter``).

Sources: Baevski et al. 2020, "wav2vec 2.0", sections 2 and 4.3; Hsu et al. 2021, "HuBERT"; Chen et al. 2022, "WavLM";
Pratap et al. 2023, "Scaling Speech Technology to 1,000+ Languages" (MMS).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, whole_folder, write_json
from vaak.nn.lora import add_lora
from vaak.nn.speech.masks import length_mask
from vaak.tasks.asr.bases import CTC_BASES, CtcBase, count_steps, explain_kind
from vaak.tasks.asr.config import CTC, AsrModelConfig
from vaak.tasks.asr.ctc.data import ExtractedFeatures, FrameFeatures, Waveforms
from vaak.tasks.asr.ctc.model import CtcNetwork
from vaak.tasks.asr.export import VOCABULARY_FOLDER
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.asr.vocabulary import TOKENIZER, SpecialIds, Vocabulary
from vaak.tasks.fetching import SAFELY, fetch_model, find_file, import_transformers, quiet_transformers
from vaak.tasks.older_names import write_older_names
from vaak.tasks.quantised import Frozen, layers_in_nf4
from vaak.tasks.transformers_internals import without_reading

log = logging.getLogger("vaak")
BASE_KEY = "model.base"
BYTE = re.compile("<0x[0-9A-F]{2}>")
ADAPTER = "adapter.{}.safetensors"
"""The adapter of a language and its output layer, next to a base."""
PREPROCESSOR, WORDS = "preprocessor_config.json", "|"
MODULES_BELOW = ("feature_extractor", "feature_projection", "subsampling", "subsampler")
"""Modules below the layers of an encoder, by the names of any family."""


def keep_base(source: str, folder: Path, adapter: str | None = None, *, keeps_tokens: bool = True) -> None:
    """Write the sizes of a base, and how it reads audio, to ``folder``; also the tokens that are pieces of words.

    Raises UserError for another kind of model, or where an ``adapter`` is to be trained and it has none.
    """
    auto = import_transformers(PURPOSE, "asr")
    config = fetch_model(BASE_KEY, source, lambda: auto.AutoConfig.from_pretrained(source, **SAFELY))
    reason = explain_kind(config.model_type, CTC)
    if reason is not None:
        raise UserError(f"{BASE_KEY}: {source} {reason}")
    kind = CTC_BASES[config.model_type]
    if kind.reads == "samples" and getattr(config, "add_adapter", False):
        raise UserError(f"{BASE_KEY}: {source} is a {config.model_type} whose frames are shortened (add_adapter)")
    if adapter is not None and not (config.model_type == "wav2vec2" and config.adapter_attn_dim):
        raise UserError(f"model.adapter: {source} has no adapters by language (adapter_attn_dim), as MMS has")
    config.save_pretrained(folder)
    extractor = fetch_model(BASE_KEY, source, lambda: auto.AutoFeatureExtractor.from_pretrained(source, **SAFELY))
    write_json(folder / PREPROCESSOR, extractor.to_dict())
    if (
        kind.reads == "features"
        and keeps_tokens
        and (tokenizer := _find_tokenizer(source)) is not None
        and _is_fast(tokenizer)
    ):
        # Its export has the unchanged tokenizer, with the processor that holds both (processor_config.json).
        tokenizer.save_pretrained(folder)
        processor = fetch_model(BASE_KEY, source, lambda: auto.AutoProcessor.from_pretrained(source, **SAFELY))
        if hasattr(processor, "feature_extractor"):
            processor.save_pretrained(folder)


def load_features(folder: Path, seconds: float) -> FrameFeatures:
    """Return the features that the base in ``folder`` reads."""
    config, about = config_in(folder), read_json(folder / PREPROCESSOR)
    kind = find_kind(config)
    if kind.reads == "features":
        extractor = import_transformers(PURPOSE, "asr").AutoFeatureExtractor.from_pretrained(folder, **SAFELY)
        adapts = getattr(config, "add_adapter", False)
        return ExtractedFeatures(extractor, kind.steps(about), kind.strides(config), seconds, keeps_hidden=adapts)
    layers = tuple(zip(config.conv_kernel, config.conv_stride, strict=True))
    return Waveforms(layers, about["sampling_rate"], about["do_normalize"], seconds)


def config_in(folder: Path) -> Any:
    """Return the sizes of a base that were kept."""
    return import_transformers(PURPOSE, "asr").AutoConfig.from_pretrained(folder, **SAFELY)


def find_kind(config: Any) -> CtcBase:
    """Return the kind of a network that was accepted as a base."""
    return CTC_BASES[config.model_type]


def _find_tokenizer(source: str) -> Any:
    """Return the tokenizer of a base; None where it has none, as one that wasn't fine-tuned.

    None, too, with a warning, where it requires a package that isn't installed. Raises UserError where its files can't
    be read: the base's output layer would silently be initialised again.
    """
    auto = import_transformers(PURPOSE, "asr")
    try:
        return fetch_model(BASE_KEY, source, lambda: auto.AutoTokenizer.from_pretrained(source, **SAFELY))
    # Without a tokenizer, each version of transformers raises another error.
    except UserError as error:
        if not any(find_file(BASE_KEY, source, name) for name in ("tokenizer.json", "vocab.json")):
            return None
        if not isinstance(error.__cause__, ImportError):
            raise
        said = str(error.__cause__).strip().splitlines()[0]
        log.warning("%s: the tokens of %s can't be used: %s", BASE_KEY, source, said)
        return None


def _is_fast(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "is_fast", False))


def _count_rows(source: str, known: int) -> int:
    """Return the rows of a base's output layer, which may be a few more than the tokens ``known`` of its vocabulary.

    Tokenizers of transformers add ``<s>`` and ``</s>`` to those of vocab.json, and recipes count them.
    """
    auto = import_transformers(PURPOSE, "asr")
    config = fetch_model(BASE_KEY, source, lambda: auto.AutoConfig.from_pretrained(source, **SAFELY))
    has_head = any(str(name).endswith("ForCTC") for name in config.architectures or ())
    return max(known, config.vocab_size or 0) if has_head else known


def _wrap_vocabulary(source: str, found: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer of the tokenizers library; the blank is its token for padding."""
    known = {number: name for name, number in found.get_vocab().items()}
    size = _count_rows(source, max(known) + 1)
    special = {*found.all_special_ids, *(one for one in range(size) if one not in known)} - {found.pad_token_id}
    blank = found.pad_token_id
    content = _with_named_unknown(found.backend_tokenizer.to_str(), found.unk_token_id)
    return Vocabulary(content, SpecialIds((blank,), blank, blank, size, tuple(sorted(special))))


def _with_named_unknown(content: str, unknown: int | None) -> str:
    """Return the content of a tokenizer.json in which what isn't known is the token that the tokenizer names for it.

    transformers has LASR's write the token between words instead, so that letters would be lost in silence.
    """
    about = json.loads(content)
    if unknown is None or about["model"].get("unk_id") in (None, unknown):
        return content
    about["model"]["unk_id"] = unknown
    return json.dumps(about)


def own_vocabulary(source: str, language: str | None = None) -> Vocabulary | None:
    """Return the vocabulary of a fine-tuned base, for several languages that of one; None if it has none.

    Raises UserError where they are of several languages, and none is chosen.
    """
    found = _find_tokenizer(source)
    if found is None or (language is not None and _is_fast(found)):
        return None
    if _is_fast(found):
        return _wrap_vocabulary(source, found)
    # Massively multilingual bases (MMS) have a vocabulary for each language in one vocab.json.
    if any(isinstance(one, dict) for one in found.vocab.values()):
        language = language or found.target_lang
        if language is None:
            raise UserError(f"{BASE_KEY}: {source} has tokens by language; choose one by model.adapter")
        if language not in found.vocab:
            return None
        found.set_target_lang(language)
    elif language is not None:
        # Those of the one language that it was trained for.
        return None
    ids = dict(found.encoder)
    # transformers' tokenizer of CTC is written in Python and has no backend to copy: here is one that does the same, a
    # token for each character.
    backend = Backend(models.WordLevel(ids, found.unk_token if found.unk_token in ids else found.pad_token))
    changes: list[Any] = [normalizers.Lowercase()] if getattr(found, "do_lower_case", False) else []
    between = found.word_delimiter_token if found.word_delimiter_token in ids else " "
    if between not in ids:
        log.warning("%s: %s has no token between words, so it writes them as one", BASE_KEY, source)
    backend.normalizer = normalizers.Sequence([*changes, normalizers.Replace(" ", between)])
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(between, " "), decoders.Fuse()])
    # for transformers, what parts words is special, too
    special = {ids[name] for name in found.all_special_tokens if name in ids}
    special -= {found.pad_token_id, found.word_delimiter_token_id}
    blank, size = found.pad_token_id, max(ids.values()) + 1
    if language is None:
        # Otherwise the output layer is that of the language's adapter.
        size = _count_rows(source, size)
    special |= {one for one in range(size) if one not in ids.values()}
    return Vocabulary(backend.to_str(), SpecialIds((blank,), blank, blank, size, tuple(sorted(special))))


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
NOT_CALLED = (
    "transformers' WavLM reads the weights of q_proj, k_proj, v_proj and out_proj without calling them, so adapters of "
    "them change nothing there; use --format hf, which merges them"
)


def attend_by_modules(
    attention: Any, states: Tensor, mask: Tensor | None, position_bias: Tensor
) -> tuple[Tensor, None]:
    """WavLM's self-attention, its projections called as modules.

    ``states`` are ``(row, frame, width)``, ``mask`` is True where a frame is real, the bias ``(row · head, frame,
    frame)``. transformers gives torch the projections' weights instead, so that adapters would change nothing.
    """
    rows, length, width = states.shape
    shape = (rows, length, attention.num_heads, -1)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (project(states).view(shape).transpose(1, 2) for project in projections)
    bias = position_bias.view(rows, attention.num_heads, length, length).to(query.dtype)
    if mask is not None:
        bias = bias.masked_fill(mask.ne(1)[:, None, None], -torch.inf)
    dropout = attention.dropout if attention.training else 0.0
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, bias, dropout)
    return attention.out_proj(mixed.transpose(1, 2).reshape(rows, length, width)), None


class FrozenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation by the statistics of the base, in training, too: no example depends on others."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def keep_rows_apart(base: Any) -> None:
    """Have a base neither skip layers nor normalise over examples in training."""
    base.config.layerdrop = 0.0
    for module in base.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0
        if type(module) is nn.BatchNorm1d:
            module.__class__ = FrozenBatchNorm


def _split_hidden(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return features ``(row, bin, frame)`` without the last bin, which marks a hidden frame, and numbers of frames.

    They are those that are real, and those that the adapter reads, each ``(row,)``. ``lengths`` are one or the other.
    """
    hidden = features[:, -1] > 0
    is_hidden, at = hidden.any(1), hidden.int().argmax(1)
    return features[:, :-1], torch.where(is_hidden, at, lengths), torch.where(is_hidden, at + 1, lengths)


class PretrainedCtc(CtcNetwork):
    """A base with its output layer; its convolutions are frozen, unless the options train them."""

    def __init__(self, base: Any, options: AsrModelConfig) -> None:
        """Adapters that ``options.lora`` or ``options.experts`` adds are drawn from torch's default generator."""
        super().__init__()
        self.base, self.kind, self.trains_convolutions = base, find_kind(base.config), options.train_feature_encoder
        self.strides, head = self.kind.strides(base.config), (self.kind.head,)
        keep_rows_apart(base)
        self.of_rows = getattr(base.config, "feat_extract_norm", None) == "group"
        add_lora(base, options.lora, head)
        self.add_experts(base, options.experts, self.kind.find_width(base.config), head)
        if base.config.model_type == "wavlm" and (options.lora is not None or options.experts is not None):
            for layer in self.inner.encoder.layers:
                layer.attention.torch_multi_head_self_attention = partial(attend_by_modules, layer.attention)
        if options.adapter is not None:
            base.requires_grad_(False)
            for weight in base._get_adapters().values():
                weight.requires_grad_(True)
        inner = self.inner
        for name in MODULES_BELOW:
            if hasattr(inner, name):
                # Learning rates by layer read the number.
                getattr(inner, name).layer_number = -1
        if self.kind.reads == "samples" and not self.trains_convolutions:
            # transformers has the samples require a gradient while this is True, so frozen convolutions would still
            # keep activations for the backward pass.
            inner.feature_extractor._requires_grad = False
            inner.feature_extractor.requires_grad_(False)

    @property
    def inner(self) -> Any:
        """The network below the output layer."""
        name = self.base.base_model_prefix
        return getattr(self.base, name if hasattr(self.base, name) else "encoder")

    @property
    def head(self) -> nn.Module:
        """The output layer."""
        return self.base.get_submodule(self.kind.head)  # type: ignore[no-any-return]

    def encode(self, features: Tensor, lengths: Tensor, **masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of samples ``(row, 1, time)``, of which ``lengths`` ``(row,)`` are real, and their numbers.

        So of features ``(row, bin, frame)``, whose last bin is 1 where a frame is hidden, if the base has an adapter
        that shortens them. Frames where ``time_mask`` ``(row, frame)`` is True are hidden; of all
        frames, channels of ``channel_mask`` ``(row, channel)``.
        """
        inner, read_lengths = self.inner, lengths
        if getattr(inner, "adapter", None) is not None:
            features, lengths, read_lengths = _split_hidden(features, lengths)
        frames = count_steps(lengths, self.strides)
        if self.kind.reads == "samples":
            convolved = self._convolved(features[:, 0], lengths).transpose(1, 2)
            return self._transform(convolved, frames, **masks), frames
        dtype = next(inner.parameters()).dtype
        read, real = features.transpose(1, 2).to(dtype), length_mask(lengths, features.shape[2])
        if not self.kind.hides_frames:
            with without_reading(read):
                return inner(read, attention_mask=real).last_hidden_state, frames
        states = self._transform(read, lengths, **masks)
        if inner.intermediate_ffn is not None:
            states = states + 0.5 * inner.intermediate_ffn(states)
        if inner.adapter is not None:
            # Its convolutions read a hidden frame, and its attention doesn't.
            rows = [
                inner.adapter(row[None, :length], attention_mask=mask[None, :length])[0]
                for row, mask, length in zip(states, real, read_lengths.tolist(), strict=True)
            ]
            states = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return states, frames

    def _transform(self, features: Tensor, frames: Tensor, **masks: Tensor) -> Tensor:
        """Apply the transformer to features ``(row, frame, width)``, of which ``frames`` ``(row,)`` are real."""
        inner, time_mask, channel_mask = self.inner, masks.get("time_mask"), masks.get("channel_mask")
        hidden = inner.feature_projection(features)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        if time_mask is not None:
            # The mask ends with the longest utterance of the batch; audio may be padded further (Padding).
            time_mask = F.pad(time_mask, (0, hidden.shape[1] - time_mask.shape[1]))
            # A base whose makers hid nothing has no vector to hide frames by.
            instead = getattr(inner, "masked_spec_embed", hidden.new_zeros(hidden.shape[2]))
            hidden = torch.where(time_mask[..., None], instead.to(hidden.dtype), hidden)
        if channel_mask is not None:
            hidden = hidden.masked_fill(channel_mask[:, None], 0.0)
        with warnings.catch_warnings(), without_reading(hidden):
            # WavLM's own masks cause the warning.
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")
            encoded: Tensor = inner.encoder(hidden, attention_mask=length_mask(frames, hidden.shape[1]))[0]
        return encoded

    def project(self, states: Tensor) -> Tensor:
        dropped = self.base.dropout(states) if hasattr(self.base, "dropout") else states
        logits: Tensor = self.head(dropped)
        return logits

    def _convolved(self, samples: Tensor, lengths: Tensor) -> Tensor:
        """``(row, channel, frame)`` of samples ``(row, time)``."""
        convolve = self.inner.feature_extractor
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_convolutions):
            if not self.of_rows:
                return convolve(samples)  # type: ignore[no-any-return]
            rows = [convolve(row[None, :length]) for row, length in zip(samples, lengths.tolist(), strict=True)]
        longest = int(self.base._get_feat_extract_output_lengths(torch.tensor(samples.shape[1])))
        return torch.cat([nn.functional.pad(row, (0, longest - row.shape[2])) for row in rows])


def load_base(
    source: str, ids: SpecialIds, adapter: str | None, frozen: Frozen | None = None, *, has_given_tokens: bool = False
) -> Any:
    """Return the base of a folder or of the Hub, in 32 bits, with an output layer for ``ids``.

    It is drawn, which a line says, if the base has none for as many tokens, or other tokens are given. With an
    ``adapter``, both are those of this language, or both are drawn. ``frozen`` says which layers are in four bits.
    Raises UserError where it can't be loaded.
    """
    package = import_transformers(PURPOSE, "asr")
    auto = package.AutoModelForCTC
    # The sizes are the base's own, so only an output layer of other tokens may differ: that one is drawn.
    options: dict[str, Any] = {"vocab_size": ids.size, "ignore_mismatched_sizes": True, "output_loading_info": True}
    options |= {"pad_token_id": ids.pad, "dtype": torch.float32, "use_safetensors": True}
    with quiet_transformers(package), layers_in_nf4(source, frozen):
        found, about = fetch_model(BASE_KEY, source, lambda: auto.from_pretrained(source, **options, **SAFELY))
    if adapter is None:
        head = find_kind(found.config).head
        others = [*about["missing_keys"], *(one[0] for one in about["mismatched_keys"])]
        if has_given_tokens:
            # An output layer for as many tokens has been read, too: its rows mean others.
            found.get_submodule(head).reset_parameters()
        if has_given_tokens or any(name.startswith(f"{head}.") for name in others):
            log.info("%s: the output layer of %s is drawn, for %d tokens", BASE_KEY, source, ids.size)
        return found
    if not has_adapter(source, adapter):
        log.warning("%s has no adapter for %s: a new one is trained", source, adapter)
        found.init_adapter_layers()
        return found
    fetch_model("model.adapter", source, lambda: found.load_adapter(adapter, use_safetensors=True))
    if found.lm_head.out_features != ids.size:
        tokens = f"{found.lm_head.out_features} tokens, but vocab.json has {ids.size}"
        raise UserError(f"model.adapter: the adapter for {adapter} in {source} is for {tokens}")
    return found


def has_adapter(source: str, language: str) -> bool:
    """Return whether a folder, or a name on the Hub, has the adapter of a language."""
    name = ADAPTER.format(language)
    if Path(source).is_dir():
        return (Path(source) / name).is_file()
    from transformers.utils import cached_file

    missing = {"_raise_exceptions_for_missing_entries": False}
    return fetch_model("model.adapter", source, lambda: cached_file(source, name, **missing)) is not None


def drawn_base(config: Any, ids: SpecialIds | None = None) -> Any:
    """Return a network of these sizes, for ``ids`` if given, with weights from torch's default generator."""
    if ids is not None:
        config.vocab_size, config.pad_token_id = ids.size, ids.pad
    return import_transformers(PURPOSE, "asr").AutoModelForCTC.from_config(config)


def span_mask(length: int, probability: float, span: int, rng: np.random.Generator) -> np.ndarray:
    """Return where ``length`` places are hidden: spans that begin anywhere and may overlap, ``probability`` in all.

    >>> span_mask(6, 0.5, 3, np.random.default_rng(0)).astype(int).tolist()
    [0, 0, 1, 1, 1, 0]
    """
    mask = np.zeros(length, bool)
    num_starts = length - span + 1
    number = min(int(probability * length / span + rng.random()), num_starts)
    if probability and number > 0:
        for start in rng.choice(num_starts, number, replace=False).tolist():
            mask[start : start + span] = True
    return mask


@contextlib.contextmanager
def _silenced(network: Any, tokens: list[int]) -> Iterator[None]:
    """Within this context, these tokens are never the best."""
    # transformers takes the best token of each frame and has no list of those to leave out: a bias has to do it.
    bias = network.get_submodule(find_kind(network.config).head).bias.data
    before = bias[tokens]
    bias[tokens] = -1e4
    try:
        yield
    finally:
        bias[tokens] = before


def write_pretrained(
    merged: Any,
    vocabulary: Vocabulary,
    pieces: list[str],
    prepared: Path,
    folder: Path,
    language: str | None,
) -> None:
    """Write ``folder``, completely or not at all, for transformers: a network with adapters ``merged``, and characters.

    With the adapter of a ``language``, it is also in a separate file, which transformers' ``load_adapter`` reads, and
    the tokens are under its name.

    What is never said is never the best there, either; nor are the bytes of characters that have no token. ``pieces``
    are the texts of tokens, ``prepared`` has how audio is read, and the tokenizer of a base whose tokens are pieces of
    words. Raises UserError where tokens are neither that nor characters, or the folder has something in it.
    """
    if (prepared / TOKENIZER).is_file():
        with whole_folder(folder) as made, _silenced(merged, list(vocabulary.ids.never)):
            merged.save_pretrained(made)
            for path in sorted(prepared.iterdir()):
                if path.name != "config.json":
                    shutil.copy(path, made)
            write_older_names(made)
            vocabulary.save(made / VOCABULARY_FOLDER)
        return
    auto, ids, names = import_transformers(PURPOSE, "asr"), vocabulary.ids, vocabulary.tokens()
    silent = [number for number, name in enumerate(names) if not pieces[number] or BYTE.fullmatch(name)]
    written = [WORDS if piece == " " else piece for piece in pieces]
    for number in silent:
        written[number] = names[number] or f"<unused {number}>"
    longer = any(len(written[number]) > 1 for number in {*range(len(names))} - {*silent})
    if longer or len({*written}) < len(written):
        raise UserError(
            "--format hf: transformers' tokenizer of CTC has characters only; data.tokenizer has other tokens"
        )
    with whole_folder(folder) as made, _silenced(merged, [number for number in silent if number != ids.pad]):
        merged.save_pretrained(made)
        tokens = {name: number for number, name in enumerate(written)}
        write_json(made / "vocab.json", tokens if language is None else {language: tokens})
        if language is not None:
            adapter = {name: one.detach().contiguous() for name, one in merged._get_adapters().items()}
            save_file(adapter, made / ADAPTER.format(language), metadata={"format": "pt"})
        tokenizer = auto.Wav2Vec2CTCTokenizer(
            str(made / "vocab.json"), pad_token=written[ids.pad], word_delimiter_token=WORDS,
            bos_token=None, eos_token=None, unk_token=written[ids.never[0]] if ids.never else written[ids.pad],
            target_lang=language,
        )  # fmt: skip
        tokenizer.save_pretrained(made)
        write_older_names(made)
        shutil.copy(prepared / PREPROCESSOR, made)
        vocabulary.save(made / VOCABULARY_FOLDER)
