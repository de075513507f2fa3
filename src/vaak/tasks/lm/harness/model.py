"""A decoder as a model of the LM Evaluation Harness: its task files say what is asked, and how answers are scored.

    minimal pairs, multiple choice   loglikelihood of each continuation, given its context
    perplexity                       loglikelihood_rolling of whole texts, in windows of max_length
    answers in words                 generate_until, up to a string that ends them

Texts are read as in training: normalised, after the token that begins a document. Figures are those of the harness'
own ``hf`` model on the exported folder: with ``add_bos_token=True``, and of whole texts with ``add_bos_token=False``.

Source: Gao et al., "The Language Model Evaluation Harness" (lm-eval), whose interface this is. It requires lm-eval.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import nn
from torch.nn import functional as F

from vaak.core.errors import DataError
from vaak.core.progress import progress
from vaak.nn.decoding.rows import without_dropout
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text.tokenizers.normalise import normalise

log = logging.getLogger("vaak")

MAX_NEW_TOKENS = 256
"""Of an answer, where the task file doesn't say (``max_gen_toks``), as in the harness."""
SAMPLED_BY = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

Request = tuple[Any, list[int], list[int]]
"""What was asked, the tokens of its context and those that are scored."""
Score = tuple[float, bool]
"""The log-probability of tokens, and whether each of them is the most probable one."""


class HarnessModel(TemplateLM):
    """Answers what the harness asks of a language model."""

    def __init__(self, task: LanguageModelTask, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        assert isinstance(model, LanguageModel)
        self.task, self.model, self.batch_size = task, model, batch_size
        self.max_length = task.data.max_length

    @property
    def eot_token_id(self) -> int:
        return self.task.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self.task.tokenizer.bos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens of a text, after the one that begins a document, unless ``add_special_tokens`` is False."""
        ids = self.task.tokenizer.encode(normalise(string))
        return ids if add_special_tokens is False else [self.prefix_token_id, *ids]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text: windows don't overlap, and each is read after the token before it."""
        windows: list[Request] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0 for _ in requests]
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += score
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[Score]:
        """The score of each request, whose texts the harness has turned into tokens; long ones are read first."""
        lengths = [len(context) + len(scored) - 1 for _, context, scored in requests]
        if cut := sum(length > self.max_length for length in lengths):
            log.warning("%d of %d texts are longer than data.max_length: their beginning isn't read", cut, len(lengths))
        order = sorted(range(len(requests)), key=lambda one: -lengths[one])
        scores: list[Score] = [(0.0, True) for _ in requests]
        with progress("log-probabilities", len(requests)) as advance:
            for first in range(0, len(order), self.batch_size):
                chosen = order[first : first + self.batch_size]
                for place, score in zip(chosen, self._scores([requests[one] for one in chosen]), strict=True):
                    scores[place] = score
                advance(len(chosen))
        return scores

    @torch.inference_mode()
    def _scores(self, requests: Sequence[Request]) -> Iterator[Score]:
        """The scores of one batch: rows of as many last tokens as the model was trained on, padded on the right.

        Raises DataError for more tokens to score than these.
        """
        for asked, _, scored in requests:
            if len(scored) > self.max_length:
                raise DataError(f"{asked}: {len(scored)} tokens to score, more than data.max_length {self.max_length}")
        rows = [[*context, *scored][-self.max_length - 1 :] for _, context, scored in requests]
        inputs, targets = torch.zeros(2, len(rows), max(map(len, rows)) - 1, dtype=torch.long)
        is_scored = torch.zeros_like(inputs, dtype=torch.bool)
        for place, (row, (_, _, scored)) in enumerate(zip(rows, requests, strict=True)):
            end = len(row) - 1
            inputs[place, :end], targets[place, :end] = torch.tensor(row[:-1]), torch.tensor(row[1:])
            is_scored[place, end - len(scored) : end] = True
        device = self.model.embedding.weight.device
        with without_dropout(self.model):  # a decoder needs no mask to ignore padding on the right
            logits = self.model(inputs.to(device), select=is_scored.to(device)).float()
        wanted, counts = targets[is_scored].to(device), is_scored.sum(1).tolist()
        log_probabilities = -F.cross_entropy(logits, wanted, reduction="none").cpu().double()
        is_greedy = (logits.argmax(-1) == wanted).cpu()
        for own, greedy in zip(log_probabilities.split(counts), is_greedy.split(counts), strict=True):
            yield float(own.sum()), bool(greedy.all())

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to the first of the strings that end it."""
        answers: list[str] = []
        with progress("answers", len(requests)) as advance:
            for request in requests:
                context, options = request.args
                answers.append(self._answer(context, options))
                advance(1)
        return answers

    def _answer(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        settings = {name: options[name] for name in SAMPLED_BY if name in options}
        if not options.get("do_sample", settings.get("temperature", 0.0) > 0):
            settings["temperature"] = 0.0
        number = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        text = ""
        for piece in self.task.stream(self.model, context, self.task.sampling(max_new_tokens=number, **settings)):
            text += piece
            if any(end in text for end in ends):
                break
        return text[: min((text.index(end) for end in ends if end in text), default=len(text))]
