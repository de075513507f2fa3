"""Text from a decoder, token by token: sampling from a filtered distribution, with a cache of what was read.

Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p); Keskar et al. 2019, "CTRL" (repetition penalty).

Rotary positions say little beyond the lengths seen in training. So with ``max_length`` the model reads at most that
many tokens: when a text outgrows it, all but its last ``max_length // 2`` tokens are forgotten, and those are read
again from position 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.keys import draw_key
from vaak.nn.cache import KeyValueCache
from vaak.tasks.lm.model import LanguageModel


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen: repetition penalty, then temperature, then top-k, then top-p.

    Raises UserError where a value makes no sense.
    """

    max_new_tokens: int = 100
    temperature: float = 1.0
    """0 takes the most probable token, always."""
    top_k: int = 0
    """Only so many most probable tokens; 0 is all of them. Of equal ones, those with lower numbers."""
    top_p: float = 1.0
    """Only the fewest most probable tokens that together have this probability; at least one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the model has read become less probable."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the text; they are not given out."""
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "top_p": (0 <= self.top_p <= 1, "from 0 to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0"),
        }
        for name, (holds, expected) in limits.items():
            if not holds:
                raise UserError(f"{name} is {getattr(self, name)}; it must be {expected}.")


def generate(
    model: LanguageModel, prompt_ids: Sequence[int], settings: SamplingSettings, *, max_length: int | None = None
) -> Iterator[int]:
    """The tokens that follow the prompt, each as soon as it is drawn; ends at a stop token or ``max_new_tokens``.

    Greedy or not, the tokens depend on the model, the prompt and the settings alone. ``max_length`` is the length the
    model was trained with. Raises UserError at once for an empty or unknown prompt or an encoder.
    """
    steps = _steps(model, [prompt_ids], settings, max_length)
    return (token for (token,) in steps if token is not None)


def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    max_length: int | None = None,
) -> list[list[int]]:
    """What follows each prompt, read together; each draws from a generator of its own, the first as in ``generate``."""
    texts: list[list[int]] = [[] for _ in prompts]
    for tokens in _steps(model, prompts, settings, max_length) if prompts else ():
        for text, token in zip(texts, tokens, strict=True):
            text += [] if token is None else [token]
    return texts


def probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution that the next token is drawn from, ``(..., vocab)``: 0 for tokens filtered out.

    >>> probabilities(torch.tensor([1.0, 3.0, 2.0]).log(), SamplingSettings(top_k=2))
    tensor([0.0000, 0.6000, 0.4000], dtype=torch.float64)
    """
    if settings.temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    shifted = (logits.double() - logits.double().amax(-1, keepdim=True)) / settings.temperature
    ranked, order = shifted.sort(dim=-1, descending=True, stable=True)
    if settings.top_k:
        ranked[..., settings.top_k :] = -math.inf
    weights = ranked.softmax(-1)
    if settings.top_p < 1:
        before = weights.cumsum(-1) - weights
        dropped = before >= settings.top_p
        dropped[..., 0] = False
        weights = weights.masked_fill(dropped, 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter(-1, order, weights)


class Reader:
    """A model in the midst of reading rows of tokens: what it has read, and the scores of what may come next."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], max_length: int | None) -> None:
        self.model = model
        self.max_length = max_length
        self.contexts = [self._recent(list(prompt)) for prompt in prompts]
        self.cache: KeyValueCache | None = None
        self._separate = len({len(context) for context in self.contexts}) > 1

    def append(self, tokens: Sequence[int]) -> None:
        """One more token for each row; a row that outgrows ``max_length`` forgets its older part."""
        extended = [[*context, token] for context, token in zip(self.contexts, tokens, strict=True)]
        self.contexts = [self._recent(context) for context in extended]
        if self.contexts != extended:
            self.cache = None

    @torch.inference_mode()
    def next_logits(self) -> Tensor:
        """Scores of the token after each row, ``(rows, vocab)``, on the CPU, in float32 at least."""
        unread = self.contexts if self.cache is None else [context[-1:] for context in self.contexts]
        self.cache = self.cache or self.model.new_cache()
        time = max(map(len, unread))
        device = self.model.embedding.weight.device
        input_ids = torch.tensor([[0] * (time - len(row)) + row for row in unread], device=device)
        padded = torch.tensor([[-1] * (time - len(row)) + [0] * len(row) for row in unread], device=device)
        with _without_dropout(self.model):
            hidden = self.model.hidden(input_ids, documents=padded if self._separate else None, cache=self.cache)
            logits = self.model.logits(hidden[:, -1]).cpu()
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _recent(self, context: list[int]) -> list[int]:
        if self.max_length is None or len(context) <= self.max_length:
            return context
        return context[-max(1, self.max_length // 2) :]


def _steps(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: SamplingSettings, max_length: int | None
) -> Iterator[list[int | None]]:
    """Check what was asked for now; then, step by step, the next token of each row, None where the row has ended."""
    if model.config.model_type != "decoder":
        raise UserError("Only a decoder generates text; this model is an encoder, trained on the masked objective.")
    if max_length is not None and max_length < 1:
        raise UserError(f"max_length is {max_length}; it must be at least 1.")
    for prompt in prompts:
        if not prompt:
            raise UserError("The prompt has no tokens; give some text, or the token that begins a document.")
        if not all(0 <= token < model.vocab_size for token in prompt):
            unknown = next(token for token in prompt if not 0 <= token < model.vocab_size)
            raise UserError(f"Token {unknown} of the prompt is not one of the model's {model.vocab_size} tokens.")
    return _draw_steps(Reader(model, prompts, max_length), settings)


def _draw_steps(reader: Reader, settings: SamplingSettings) -> Iterator[list[int | None]]:
    rows = range(len(reader.contexts))
    generators = [torch.Generator().manual_seed(draw_key("generate", settings.seed, row)) for row in rows]
    ended = [False for _ in rows]
    for _ in range(settings.max_new_tokens):
        logits = reader.next_logits()
        if not logits.isfinite().all():
            raise UserError("The model's scores are not finite numbers: its training has diverged.")
        choices = probabilities(_penalised(logits, reader.contexts, settings.repetition_penalty), settings)
        drawn = [int(torch.multinomial(choices[row], 1, generator=generators[row])) for row in rows]
        ended = [done or token in settings.stop_ids for done, token in zip(ended, drawn, strict=True)]
        if all(ended):
            return
        yield [None if done else token for done, token in zip(ended, drawn, strict=True)]
        reader.append(drawn)


def _penalised(logits: Tensor, contexts: list[list[int]], penalty: float) -> Tensor:
    """Scores with those of the tokens read divided by ``penalty`` where positive, multiplied where negative."""
    if penalty == 1:
        return logits
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, context in enumerate(contexts):
        seen[row, context] = True
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as it was."""
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
