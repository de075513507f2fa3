"""The language model: a decoder or an encoder over tokens, ours or one of transformers.

    input_ids ──embedding──▶ stack of blocks ──norm──▶ hidden ──head (or the embedding again)──▶ logits

The defaults make a model of Llama's kind. Source: Touvron et al. 2023, "LLaMA". Differs: dropout of embeddings, of
attention weights and of what blocks add.

A decoder of transformers is asked as ours is. What it can do is found by trying it: whether logits are a product of
the head alone (some scale or bound them), whether documents of one row are kept apart, whether it continues from a
cache.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any, Self

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.out_of_memory import is_host_error
from vaak.core.torch_internals import unwatched
from vaak.nn.config import LoraConfig
from vaak.nn.cross_entropy import HeadInputs
from vaak.nn.decoding.cache import count_needed, join_rows
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.kernels.visibility import positions_in_documents
from vaak.nn.lora import add_lora, is_product, keep_token_vectors_in_bf16
from vaak.nn.lora_targets import adapts_head
from vaak.nn.models import TransformerModel
from vaak.nn.new_tokens import train_new_rows
from vaak.nn.nf4 import num_weights
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.ngram import TokenNgram
from vaak.tasks.transformers_internals import without_reading


def _add_noise(embedding: nn.Embedding, alpha: float) -> None:
    """Move the vectors of tokens in training by noise within ± alpha / √(length of the row · width).

    Source: Jain et al. 2024, "NEFTune: Noisy Embeddings Improve Instruction Finetuning", algorithm 1.
    """
    if alpha:
        embedding.register_forward_hook(partial(_noisy, alpha))


def _noisy(alpha: float, embedding: nn.Module, inputs: Any, vectors: Tensor) -> Tensor:
    if not embedding.training:
        return vectors
    most = alpha / math.sqrt(vectors.shape[-2] * vectors.shape[-1])
    return vectors + torch.empty_like(vectors).uniform_(-most, most)


class MixedDecoder(nn.Module):
    """A decoder whose probabilities may be mixed with those of n-grams, outside of training."""

    ngram: TokenNgram | None

    def without_ngram(self) -> Self:
        """Return the network alone, with the same weights."""
        alone = copy.copy(self)
        # The copy's modules are separate, so the n-grams stay where they are.
        alone._modules = {name: module for name, module in self._modules.items() if name != "ngram"}
        alone.ngram = None
        return alone

    def _mixed(
        self, scores: Tensor, input_ids: Tensor, documents: Tensor | None = None, select: Tensor | None = None
    ) -> Tensor:
        """Return the scores of the mixture, of those of the network; the others are what ``forward`` was given."""
        assert self.ngram is not None
        contexts = self.ngram.find_contexts(input_ids, documents)
        return self.ngram.mix(scores, contexts if select is None else _selected(contexts, select))


class LanguageModel(TransformerModel, MixedDecoder):
    """A decoder predicts the token after each token; an encoder, which sees both sides, the token at each place."""

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, vocab_size: int, max_length: int | None = None) -> None:
        """Weights are drawn from torch's default generator; ``max_length`` is needed by learned positions."""
        causal = config.model_type == "decoder"
        super().__init__(config, vocab_size, causal=causal, tied=config.tie_embeddings, max_length=max_length)
        _add_noise(self.embedding, config.neftune_noise_alpha)
        self.ngram = None

    def forward(
        self, input_ids: Int[Tensor, "batch time"], **options: Any
    ) -> Float[Tensor, "batch time vocab"] | HeadInputs:
        """Return the output of ``TransformerModel`` for the same options; a mixture always returns the scores."""
        if self.ngram is None or self.training:
            alone: Tensor | HeadInputs = super().forward(input_ids, **options)
            return alone
        scores: Any = super().forward(input_ids, **{**options, "project": True})
        return self._mixed(scores, input_ids, options.get("documents"), options.get("select"))

    def next_logits(
        self, input_ids: Int[Tensor, "batch time"], *, documents: Int[Tensor, "batch time"] | None, cache: Any
    ) -> Float[Tensor, "batch vocab"]:
        """Return the scores of the token after each row; ``documents`` and ``cache`` are those of ``hidden``."""
        if self.ngram is None:
            return self.logits(self.hidden(input_ids, documents=documents, cache=cache)[:, -1])
        assert isinstance(cache, MixtureCache)
        logits = self.logits(self.hidden(input_ids, documents=documents, cache=cache.network)[:, -1])
        mixed: Tensor = self.ngram.mix(logits, cache.read(self.ngram, input_ids, documents))
        return mixed

    def new_cache(self) -> Any:
        """Return an empty cache, for decoding token by token."""
        return super().new_cache() if self.ngram is None else MixtureCache(super().new_cache())

    def token_modules(self) -> list[nn.Module]:
        """Return the modules whose weights have a row for each token."""
        return [self.embedding] if self.head is None else [self.embedding, self.head]


class TransformersDecoder(MixedDecoder):
    """A causal language model of transformers, its own module in ``network``."""

    def __init__(self, network: Any, config: LanguageModelConfig) -> None:
        """``config`` has the options of the run."""
        super().__init__()
        self.network, self.config, self.ngram = network, config, None
        tried = self._to_try
        self._logits_are_product = tried._tried(tried._logits_by_hand)
        _add_noise(self.embedding, config.neftune_noise_alpha)

    @property
    def embedding(self) -> nn.Embedding:
        """The input vectors of tokens."""
        found: nn.Embedding = self.network.get_input_embeddings()
        return found

    def token_modules(self) -> list[nn.Module]:
        """Return the modules whose weights have a row for each token; the second may share the weight of the first."""
        return [self.embedding, self.network.get_output_embeddings()]

    @property
    def vocab_size(self) -> int:
        """Classes that logits are of."""
        return self.embedding.num_embeddings

    @property
    def kind(self) -> str:
        """Its family, by transformers' name."""
        return str(self.network.config.model_type)

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        *,
        documents: Int[Tensor, "batch time"] | None = None,
        num_documents: int | None = None,
        select: Bool[Tensor, "batch time"] | Int[Tensor, "selected"] | None = None,
        project: bool = True,
    ) -> Float[Tensor, "batch time vocab"] | HeadInputs:
        """Return the scores of every token at every position; arguments are those of ``TransformerModel``.

        ``num_documents`` isn't used: transformers finds the documents by their positions.

        Without ``project``, what they are the product of is returned, where they are such a product.
        """
        is_mixed = self.ngram is not None and not self.training
        scores = self._scores(input_ids, documents, select, project or is_mixed)
        return self._mixed(scores, input_ids, documents, select) if is_mixed else scores

    def _scores(self, input_ids: Tensor, documents: Tensor | None, select: Tensor | None, project: bool) -> Any:
        head = self.network.get_output_embeddings()
        if not (self._logits_are_product and is_product(head)):
            # Or the head has adapters.
            logits = self._read(input_ids, documents).logits
            return logits if select is None else _selected(logits, select)
        hidden = self._read(input_ids, documents, self.network.base_model).last_hidden_state
        inputs = HeadInputs(hidden if select is None else _selected(hidden, select), head.weight, head.bias)
        return inputs.logits() if project else inputs

    def _read(self, input_ids: Tensor, documents: Tensor | None, module: Any = None) -> Any:
        """Return the outputs of ``module`` (default: the whole network) for rows, whose padding is at their ends."""
        positions = {} if documents is None else {"position_ids": positions_in_documents(documents)}
        with without_reading(input_ids, is_packed=documents is not None):
            return (module or self.network)(input_ids=input_ids, use_cache=False, **positions)

    # Reading token by token.

    def new_cache(self) -> DecoderCache:
        """Return an empty cache, for decoding token by token."""
        return DecoderCache()

    def next_logits(
        self, input_ids: Int[Tensor, "batch time"], *, documents: Int[Tensor, "batch time"] | None, cache: DecoderCache
    ) -> Float[Tensor, "batch vocab"]:
        """Return the scores of the token after each row, whose padding, where ``documents`` is −1, is on its left.

        What transformers can't continue from its cache is read again, so it is the same, and slower.
        """
        cache.append(input_ids, documents)
        logits = self._continued(input_ids, cache) if self._continues else self._read_again(cache)
        return logits if self.ngram is None else self.ngram.mix(logits, cache.find_context(self.ngram))

    def _continued(self, input_ids: Tensor, cache: DecoderCache) -> Tensor:
        # Scores of a whole prompt would be the largest tensor: a gigabyte for 1,000 tokens of Gemma.
        given: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in self._arguments else {}
        if cache.is_padded:
            given["attention_mask"] = cache.real.long()
            if "position_ids" in self._arguments:
                given["position_ids"] = (cache.real.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        found = self.network(input_ids=input_ids, past_key_values=cache.past, use_cache=True, **given)
        cache.past = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits

    def _read_again(self, cache: DecoderCache) -> Tensor:
        lengths = cache.real.sum(1)
        places = (torch.arange(cache.ids.shape[1], device=lengths.device) - lengths[:, None]) % cache.ids.shape[1]
        logits: Tensor = self.network(input_ids=cache.ids.gather(1, places), use_cache=False).logits
        return logits[torch.arange(len(logits), device=lengths.device), lengths - 1]

    # What it can do.

    @property
    def _to_try(self) -> TransformersDecoder:
        """Return this model or, while it has no weights (when made in parts), one of its kind with few layers."""
        if not self.embedding.weight.is_meta:
            return self
        with unwatched(), torch.random.fork_rng(devices=()):
            small = type(self.network)(_with_few_layers(self.network.config)).eval()
        has_weights = not small.get_input_embeddings().weight.is_meta
        return TransformersDecoder(small, self.config) if has_weights else self

    @cached_property
    def _arguments(self) -> frozenset[str]:
        """The parameters of the network's ``forward``, by name."""
        # Not the parameters themselves, which can't be copied with the model.
        return frozenset(inspect.signature(self.network.forward).parameters)

    @cached_property
    def _continues(self) -> bool:
        return self._tried(self._cached_and_again)

    def require_packing(self, section: str) -> None:
        """Raises UserError where tokens of a row see other documents than their own; ``section`` is what asks."""
        tried = self._to_try
        if not ("position_ids" in self._arguments and tried._tried(tried._packed_and_alone)):
            raise UserError(
                f"{section}: {self.kind}, as transformers has it, can't keep the documents of one row apart; use "
                "training.batching: {type: bucketed}, or data.layout: stream"
            )

    def require_dtype(self, section: str) -> None:
        """Raises UserError where layers can't have weights of another type than what they read, as ``section`` asks."""

        def read() -> Iterator[tuple[Tensor, Tensor]]:
            yield (logits := self._read(self._some_tokens(1, 4), None).logits), logits

        if not self._tried(read):
            raise UserError(
                f"{section}: {self.kind} of transformers needs all its weights in fp32; use base_dtype: fp32"
            )

    def _tried(self, ways: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> bool:
        """Return whether the two results of each pair agree; False if one of them fails."""
        try:
            with torch.no_grad(), without_dropout(self):
                return all(
                    one.shape == other.shape and float((one - other).abs().max()) <= CLOSE * float(other.abs().max())
                    for one, other in ways()
                )
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if is_host_error(error):
                # It says nothing about what the model can do.
                raise
            return False

    def _logits_by_hand(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs that are equal where the head's output comes out unchanged, and its input is the base's."""
        ids, head, read = self._some_tokens(1, 4), self.network.get_output_embeddings(), []
        # Some models bound their logits (Gemma 2 by ±30): no bound leaves numbers as large as these unchanged.
        scores = torch.linspace(-100, 100, self.vocab_size, device=ids.device).expand(1, 4, -1)

        def replace(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            read.append(inputs[0])
            return scores

        hook = head.register_forward_hook(replace)
        try:
            yield self._read(ids, None).logits, scores
        finally:
            hook.remove()
        yield self._read(ids, None, self.network.base_model).last_hidden_state, read[0]

    def _packed_and_alone(self) -> Iterator[tuple[Tensor, Tensor]]:
        ids = self._some_tokens(1, 9)
        documents = torch.tensor([[0] * 4 + [1] * 5], device=ids.device)
        alone = [self._read(part, None).logits for part in ids.split((4, 5), 1)]
        yield self._read(ids, documents).logits, torch.cat(alone, 1)

    def _cached_and_again(self) -> Iterator[tuple[Tensor, Tensor]]:
        ids = self._some_tokens(2, 7)
        documents = torch.zeros_like(ids)
        documents[0, :2] = -1
        cache = self.new_cache()
        for begin, end in ((0, 5), (5, 6), (6, 7)):
            cache.append(ids[:, begin:end], documents[:, begin:end])
            yield self._continued(ids[:, begin:end], cache), self._read_again(cache)

    def _some_tokens(self, rows: int, time: int) -> Tensor:
        device = self.embedding.weight.device
        return (torch.arange(rows * time, device=device) * 7 + 1).view(rows, time) % self.vocab_size


def _with_few_layers(config: Any) -> Any:
    """Return the configuration of a model of transformers that has each kind of layer, two at least, and few tokens."""
    few = copy.deepcopy(config)
    number = few.num_hidden_layers
    of_layers = {name: list(value) for name, value in vars(few).items() if _has_one_for_each(value, number)}
    kinds = [repr(kind) for kind in zip(*of_layers.values(), strict=True)]
    few.num_hidden_layers = max([2, *(kinds.index(kind) + 1 for kind in kinds)])
    for name, value in of_layers.items():
        setattr(few, name, value[: few.num_hidden_layers])
    few.vocab_size, few.pad_token_id = min(few.vocab_size, 256), None
    return few


def _has_one_for_each(value: Any, number: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == number


CLOSE = 1e-4
"""The largest difference of scores that is one of rounding, as a part of the largest score."""


def _selected(x: Tensor, select: Tensor) -> Tensor:
    """Rows of ``x`` (batch, time, …) where ``select`` is True, or at these places, rows one after the other."""
    return x[select] if select.dtype == torch.bool else x.flatten(0, 1)[select]


class DecoderCache:
    """The past of a decoder of transformers: its own cache, and the tokens, True in ``real`` where there is one."""

    def __init__(self) -> None:
        self.past: Any = None
        self.ids, self.real, self.is_padded = torch.empty(0), torch.empty(0), False

    def append(self, ids: Tensor, documents: Tensor | None) -> None:
        """Add tokens ``(row, time)``, which are padding where ``documents`` is −1."""
        real = torch.ones_like(ids, dtype=torch.bool) if documents is None else documents >= 0
        self.is_padded |= documents is not None
        first = not self.ids.numel()
        self.ids = ids if first else torch.cat((self.ids, ids), 1)
        self.real = real if first else torch.cat((self.real, real), 1)

    def find_context(self, ngram: TokenNgram) -> Int[Tensor, "row lag"]:
        """Return the last tokens of each row, as n-grams read them."""
        ids, real = self.ids[:, -ngram.order :], self.real[:, -ngram.order :]
        return ngram.find_contexts(ids, real.long() - 1)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.ids, self.real = self.ids[rows], self.real[rows]
        if self.past is not None:
            self.past.reorder_cache(rows)

    @property
    def can_join(self) -> bool:
        """Whether rows that were read elsewhere can be added: where each layer keeps all keys and values."""
        layers = getattr(self.past, "layers", None) or ()
        return self.past is None or (bool(layers) and all(type(one).__name__ == "DynamicLayer" for one in layers))

    def join(self, other: DecoderCache) -> None:
        """Add the rows of ``other`` after these, aligned at the last token; padding that no row needs any more goes."""
        kept, added = count_needed(self.real), count_needed(other.real)
        if self.past is not None:
            for own, new in zip(self.past.layers, other.past.layers, strict=True):
                own.keys = join_rows(own.keys, new.keys, 2, kept, added)
                own.values = join_rows(own.values, new.values, 2, kept, added)
        self.ids = join_rows(self.ids, other.ids, 1, kept, added)
        self.real, self.is_padded = join_rows(self.real, other.real, 1, kept, added), True


class MixtureCache:
    """The past of a decoder with n-grams: the ``network``'s own, and the last tokens, which are their context."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self._ids, self._documents = torch.empty(0), torch.empty(0)

    def read(self, ngram: TokenNgram, input_ids: Tensor, documents: Tensor | None) -> Int[Tensor, "row lag"]:
        """Append tokens ``(row, time)``, padding where ``documents`` is −1; return the context of the next ones."""
        given = torch.zeros_like(input_ids) if documents is None else documents
        parts = ((self._ids, input_ids), (self._documents, given)) if self._ids.numel() else ((input_ids,), (given,))
        self._ids, self._documents = (torch.cat(part, 1)[:, -ngram.order :] for part in parts)
        return ngram.find_contexts(self._ids, self._documents)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self._ids, self._documents = self._ids[rows], self._documents[rows]
        self.network.select(rows)

    @property
    def can_join(self) -> bool:
        """Whether rows that were read elsewhere can be added."""
        return bool(self.network.can_join)

    def join(self, other: MixtureCache) -> None:
        """Add the rows of ``other`` after these, aligned at the last token."""
        self.network.join(other.network)
        sizes = (self._ids.shape[1], other._ids.shape[1])
        self._ids = join_rows(self._ids, other._ids, 1, *sizes)
        self._documents = join_rows(self._documents + 1, other._documents + 1, 1, *sizes) - 1


AnyLanguageModel = LanguageModel | TransformersDecoder


def has_token_vectors_in_bf16(lora: LoraConfig | None) -> bool:
    """Whether a model of ours keeps embeddings and output layer in bf16: in QLoRA, unless that layer is adapted."""
    return lora is not None and lora.base_dtype == "nf4" and not adapts_head(lora)


def add_adapters(model: AnyLanguageModel, lora: LoraConfig | None, new_tokens: range = range(0)) -> AnyLanguageModel:
    """Return the model with the low-rank adapters of ``lora``, in place; a tied output layer of ours may have one, too.

    The rows of ``new_tokens`` are trained next to them.
    """
    if lora is None:
        return model
    if isinstance(model, LanguageModel) and model.head is None and adapts_head(lora):
        model.add_tied_head()
    add_lora(model.network if isinstance(model, TransformersDecoder) else model, lora)
    if isinstance(model, LanguageModel) and has_token_vectors_in_bf16(lora):
        keep_token_vectors_in_bf16(model.token_modules())
    train_new_rows(model.token_modules(), new_tokens)
    return model


def num_parameters(model: nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return num_weights(model.parameters())
