"""``/v1/completions`` and ``/v1/chat/completions``: texts of a language model, as ``vaak generate`` writes them."""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from torch import Tensor

from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.serve.batching import Intake, Job, Kind
from vaak.serve.errors import OFFER_CUT, TOO_LONG, ApiError
from vaak.serve.forms import ChatRequest, CompletionRequest, WritingRequest
from vaak.serve.models import Served, Server, compute, stream
from vaak.serve.prompts import read_chat, read_prompts
from vaak.text.detokenizer import Pieces

if TYPE_CHECKING:
    from vaak.tasks.lm.predict import Reading

log = logging.getLogger("vaak")
DONE = "data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0
"""The log-probability of what is impossible, as OpenAI's servers write it."""


class TokenScore(NamedTuple):
    """A token with its log-probability, and those of the most probable ones; ``offset`` is its place in the text."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    offset: int


@dataclass(eq=False)
class Row:
    """One text while it is generated, by its number in the request; it ends before the first of ``stops``.

    ``tell`` is called with each piece of text once it is final. ``num_top`` is the number of tokens at each place whose
    log-probabilities are kept, with that of the one that was drawn; None: nothing is kept.
    """

    number: int
    prompt: list[int]
    seed: int
    most_tokens: int
    stops: tuple[str, ...] = ()
    tell: Callable[[Row, str], None] = lambda row, piece: None
    num_top: int | None = None
    text: str = ""
    num_tokens: int = 0
    is_stopped: bool = False
    job: Job | None = field(default=None, repr=False)
    scores: list[TokenScore] = field(default_factory=list)
    _told: int = 0
    _told_scores: int = 0
    _is_ended: bool = False
    _pieces: Pieces | None = field(default=None, repr=False)

    def begin(self, tokenizer: Any) -> None:
        """Begin, or begin again after a failed attempt, without sending text twice."""
        self.text, self.num_tokens, self.is_stopped, self.scores = "", 0, False, []
        self._pieces = Pieces(tokenizer, self.prompt)

    def note_scores(self, token: int, logprob: float, top: list[tuple[int, float]]) -> None:
        """Keep the log-probabilities of a token that is about to be added."""
        self.scores.append(TokenScore(token, logprob, top, len(self.text)))

    def take_scores(self) -> list[TokenScore]:
        """Return the scores of the tokens that begin in what was told of the text, but for those returned before."""
        is_whole = self._is_ended and not self.is_stopped
        begin = end = self._told_scores
        while end < len(self.scores) and (is_whole or self.scores[end].offset < self._told):
            end += 1
        self._told_scores = end
        return self.scores[begin:end]

    def add(self, token: int) -> None:
        assert self._pieces is not None
        self.num_tokens += 1
        self._add_text(self._pieces.add(token))

    def end(self) -> None:
        assert self._pieces is not None
        self._add_text(self._pieces.rest())
        self._is_ended = True
        self._tell(len(self.text))

    @property
    def is_over(self) -> bool:
        has_left = self.job is not None and self.job.has_left
        return self.is_stopped or has_left or self.num_tokens >= self.most_tokens

    @property
    def finish_reason(self) -> str:
        return "length" if self.num_tokens >= self.most_tokens and not self.is_stopped else "stop"

    def _add_text(self, piece: str) -> None:
        if self.is_stopped or not piece:
            return
        begin = max(0, len(self.text) - max(map(len, self.stops), default=0))
        self.text += piece
        places = [place for stop in self.stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text, self.is_stopped = self.text[: min(places)], True
        self._tell(len(self.text) - (0 if self.is_stopped else held_back(self.text, self.stops)))

    def _tell(self, until: int) -> None:
        if until > self._told:
            piece, self._told = self.text[self._told : until], until
            self.tell(self, piece)


def held_back(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of what it stops before.

    >>> held_back("one, tw", ["two", "x"]), held_back("one", ["two"])
    (2, 0)
    """
    longest = min(len(text), max(map(len, stops), default=1) - 1)
    sizes = range(longest, 0, -1)
    return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in stops)), 0)


def write_rows(served: Served, settings: SamplingSettings, rows: list[Row], intake: Intake | None = None) -> list[Row]:
    """Write texts together; each is what it is alone, and ends by itself. Others join them from an ``intake``.

    All rows share the ``settings`` except the number of tokens and the random seed.
    """
    writing = _Writing(served, intake)
    writing.begin(rows)
    asked = [(row.prompt, row.seed) for row in rows]
    for tokens in served.task.continue_rows(served.opened.model, asked, settings, writing.reader):
        writing.add(tokens)
    writing.end_all()
    return rows


class _Writing:
    """The texts of a batch, by the order in which they began; each is delivered to the ``intake`` once it has ended."""

    def __init__(self, served: Served, intake: Intake | None) -> None:
        from vaak.tasks.lm.predict import TokenReader

        self.tokenizer, self.intake = served.task.tokenizer, intake
        self.reader = TokenReader(take=None if intake is None else self.take)
        self.rows: list[Row] = []
        self.going: dict[int, Row] = {}

    def begin(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.begin(self.tokenizer)
            self.going[len(self.rows)] = row
            self.rows.append(row)
        if any(row.num_top is not None for row in rows):
            self.reader.observe = partial(_note_scores, self.rows)

    def take(self, number: int) -> list[tuple[list[int], int]]:
        """Return the prompts and seeds of further texts, for a batch that still writes a ``number`` of them."""
        assert self.intake is not None
        new = self.intake.take(number)
        self.begin(new)
        return [(row.prompt, row.seed) for row in new]

    def add(self, tokens: Sequence[int | None]) -> None:
        """Give each unfinished text its next token, None if it has ended."""
        for number, row in [*self.going.items()]:
            token = tokens[number]
            if token is not None and not row.is_over:
                row.add(token)
            if token is None or row.is_over:
                self.reader.ended.add(number)
                self._end(number)

    def end_all(self) -> None:
        """End the unfinished texts: the last token of each was one that ends a text."""
        for number in [*self.going]:
            self._end(number)

    def _end(self, number: int) -> None:
        row = self.going.pop(number)
        row.end()
        if self.intake is not None:
            self.intake.deliver(row, row)


def _note_scores(rows: Sequence[Row], numbers: list[int], logits: Tensor, tokens: list[int]) -> None:
    """Note the log-probabilities of the next tokens of those rows that want them, of scores ``(row, vocab)``."""
    wanting = [place for place, number in enumerate(numbers) if rows[number].num_top is not None]
    if not wanting:
        return
    scores = logits[torch.tensor(wanting, device=logits.device)].log_softmax(-1)
    drawn = torch.tensor([tokens[place] for place in wanting], device=logits.device)
    # What is impossible has no number in JSON.
    own = scores.gather(1, drawn[:, None])[:, 0].clamp(min=LEAST_LOGPROB).tolist()
    most = max(rows[numbers[place]].num_top or 0 for place in wanting)
    best, names = scores.topk(min(most, scores.shape[1]))
    tops = zip(names.tolist(), best.clamp(min=LEAST_LOGPROB).tolist(), strict=True)
    for place, score, top in zip(wanting, own, tops, strict=True):
        row = rows[numbers[place]]
        row.note_scores(tokens[place], score, list(zip(*top, strict=True))[: row.num_top])


@dataclass(frozen=True)
class Asked:
    """A request that was read: its prompts as tokens, how texts are drawn, and what it is told of on the way."""

    served: Served
    form: WritingRequest
    prompts: list[list[int]]
    most_tokens: list[int]
    """The most new tokens after each prompt."""
    settings: SamplingSettings
    warnings: list[str]

    def rows(self, tell: Callable[[Row, str], None] = lambda row, piece: None) -> list[Row]:
        """Return the texts to write: ``n`` for each prompt, each with the next seed, as ``--samples`` has them."""
        stops = (self.form.stop,) if isinstance(self.form.stop, str) else tuple(self.form.stop or ())
        texts = tuple(one for one in stops if one)
        found: list[Row] = []
        for prompt, most in zip(self.prompts, self.most_tokens, strict=True):
            for seed in range(self.settings.seed, self.settings.seed + self.form.n):
                found.append(Row(len(found), prompt, seed, most, texts, tell, self.num_top))
        return found

    @property
    def num_top(self) -> int | None:
        """The number of tokens at each place whose log-probabilities are asked for, besides that of the one drawn."""
        if isinstance(self.form, ChatRequest):
            return (self.form.top_logprobs or 0) if self.form.logprobs else None
        return self.form.logprobs if isinstance(self.form, CompletionRequest) else None

    def logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        """Return log-probabilities in the form of completions, or of chats; None if nobody asked for them."""
        if self.num_top is None:
            return None

        def about(token: int, logprob: float) -> dict[str, Any]:
            written = self.served.task.tokenizer.written_bytes(token)
            return {"token": name_token(written), "logprob": logprob, "bytes": list(written)}

        chosen = [about(one.token, one.logprob) for one in scores]
        tops = [[about(*each) for each in one.top] for one in scores]
        if isinstance(self.form, ChatRequest):
            both = zip(chosen, tops, strict=True)
            return {"content": [{**one, "top_logprobs": top} for one, top in both], "refusal": None}
        return {
            "tokens": [one["token"] for one in chosen],
            "token_logprobs": [one["logprob"] for one in chosen],
            "top_logprobs": _by_token(chosen, tops) if self.num_top else None,
            "text_offset": [one.offset for one in scores],
        }

    def job(self, rows: list[Row]) -> Job:
        # Each row has its own number of tokens, and seed.
        alike = replace(self.settings, max_new_tokens=sys.maxsize, seed=0)
        kind = Kind(
            ("write", self.served.name, alike),
            lambda some: write_rows(self.served, alike, some),
            lambda row: float(len(row.prompt)),
            compute_open=lambda some, intake: write_rows(self.served, alike, some, intake),
        )
        job = Job(kind, iter(rows))
        for row in rows:
            row.job = job
        return job

    def usage(self, rows: Sequence[Row]) -> dict[str, int]:
        read, written = sum(map(len, self.prompts)), sum(row.num_tokens for row in rows)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def require_consistent(form: WritingRequest, num_prompts: int, most: int) -> None:
    """Raise ApiError for too many texts, and for fields that contradict each other or have no effect together."""
    num_texts = num_prompts * form.n
    wrong = {
        "n": (num_texts > most, f"{num_texts} texts were asked for, and at most {most} are written"),
        "stream_options": (wants_usage(form) and not form.stream, "include_usage is for stream: true"),
    }
    if isinstance(form, CompletionRequest):
        wrong |= {
            "logprobs": (form.echo and form.logprobs is not None, "those of the prompt aren't computed; omit echo"),
            "best_of": (form.best_of not in (None, form.n), "all texts that are written are returned; set n alone"),
        }
    if isinstance(form, ChatRequest):
        numbers = {form.max_tokens, form.max_completion_tokens} - {None}
        wrong |= {
            "top_logprobs": (form.top_logprobs is not None and not form.logprobs, "set logprobs to true, too"),
            "max_tokens": (len(numbers) > 1, "max_completion_tokens says otherwise; leave one out"),
        }
    for field_name, (is_wrong, why) in wrong.items():
        if is_wrong:
            raise ApiError(400, f"{field_name}: {why}", param=field_name)


def wants_usage(form: WritingRequest) -> bool:
    """Return whether the last event of a stream has the numbers of tokens."""
    return form.stream_options is not None and form.stream_options.include_usage


def read_request(server: Server, served: Served, form: WritingRequest, prompts: list[list[int]], chat: bool) -> Asked:
    """Return a parsed request. Raises ApiError for one that can't be answered."""
    from vaak.tasks.lm.config import GenerationOptions

    require_consistent(form, len(prompts), server.limits.max_inputs)
    asked = form.max_tokens
    if isinstance(form, ChatRequest) and form.max_completion_tokens is not None:
        asked = form.max_completion_tokens
    given = {name: getattr(form, name) for name in GenerationOptions.model_fields if hasattr(form, name)}
    given = {name: value for name, value in {**given, "max_new_tokens": asked}.items() if value is not None}
    task = served.task
    try:
        settings = task.sampling(**(GenerationOptions().model_dump() | given))
        settings = task.answering(settings) if chat else settings
    except UserError as error:
        # The commands' name of it.
        message = str(error).replace("max_new_tokens", "max_tokens")
        named = message.partition(" ")[0]
        raise ApiError(400, message, param=named if hasattr(form, named) else None) from error
    most = server.limits.max_tokens
    if settings.max_new_tokens > most:
        message = f"max_tokens is {settings.max_new_tokens}, and at most {most} are written (--max-tokens)"
        raise ApiError(400, message, param="max_tokens")
    if form.truncation == "auto":
        lengths = [settings.max_new_tokens] * len(prompts)
    else:
        lengths = [limit_length(len(one), asked, settings.max_new_tokens, task.reads, chat) for one in prompts]
    warnings = [cut for prompt in prompts if (cut := task.reads.describe_cut(prompt))]
    return Asked(served, form, prompts, lengths, settings, warnings)


def limit_length(prompt: int, asked: int | None, default: int, reading: Reading, chat: bool) -> int:
    """Return how many tokens to generate after a prompt: those ``asked`` for, or as many as the context has room for.

    Raises ApiError if the model can't read all of them at once, in the words by which clients know that.
    """
    longest = reading.max_length
    if longest is None:
        return asked or default
    name, total = "messages" if chat else "prompt", prompt + (asked or 1)
    if total <= longest:
        return asked or min(default, longest - prompt)
    parts = f" ({prompt} in the {name}, {asked} in the completion)" if asked else ""
    requested = f"you requested {total} tokens{parts}" if asked else f"your {name} resulted in {prompt} tokens"
    message = (
        f"This model's maximum context length is {longest} tokens. However, {requested}. Please reduce the length of "
        f"the {name}{' or completion' if asked else ''}, or {OFFER_CUT}."
    )
    param = name if prompt >= longest else "max_tokens"
    raise ApiError(400, message, param=param, code=TOO_LONG)


def name_token(written: bytes) -> str:
    """Return a token as text; one that is a part of a character by its bytes, as OpenAI's servers write it.

    >>> name_token(b" one"), name_token(bytes([0xE0, 0xA4]))
    (' one', 'bytes:\\\\xe0\\\\xa4')
    """
    try:
        return written.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)


def _by_token(chosen: list[dict[str, Any]], tops: list[list[dict[str, Any]]]) -> list[dict[str, float]]:
    """Return log-probabilities by token at each place; that of the token that was drawn is always among them."""
    both = zip(chosen, tops, strict=True)
    return [{each["token"]: each["logprob"] for each in reversed([*top, one])} for one, top in both]


async def complete(request: Request, form: CompletionRequest) -> Response:
    """Continue a text, or each of several."""
    server: Server = request.app.state.server
    served = server.choose("completions", form.model)
    prompts = read_prompts(server, served, form.prompt)
    asked = read_request(server, served, form, [tokens for tokens, _ in prompts], chat=False)
    about = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
    about |= {"model": served.name}
    begins = [text if form.echo else "" for _, text in prompts for _ in range(form.n)]

    def choice(index: int, text: str, reason: str | None, scores: Sequence[TokenScore] = ()) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": asked.logprobs(scores), "finish_reason": reason}

    if form.stream:
        first = [choice(index, begin, None) for index, begin in enumerate(begins) if form.echo]
        return _stream(asked, about, choice, first)
    rows = await compute(request, served, asked.job(asked.rows()))
    choices = [choice(row.number, begins[row.number] + row.text, row.finish_reason, row.take_scores()) for row in rows]
    return _whole(asked, about, choices, rows)


async def chat(request: Request, form: ChatRequest) -> Response:
    """Answer a conversation."""
    server: Server = request.app.state.server
    served = server.choose("chat", form.model)
    asked = read_request(server, served, form, [read_chat(server, served, form)], chat=True)
    about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
    about |= {"model": served.name}

    def choice(index: int, text: str, reason: str | None, scores: Sequence[TokenScore] = ()) -> dict[str, Any]:
        delta = {"content": text} if reason is None else {}
        return {"index": index, "delta": delta, "logprobs": asked.logprobs(scores), "finish_reason": reason}

    if form.stream:
        delta = {"role": "assistant", "content": ""}
        first = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for index in range(form.n)]
        return _stream(asked, {**about, "object": "chat.completion.chunk"}, choice, first)
    rows = await compute(request, served, asked.job(asked.rows()))
    choices = [
        {
            "index": row.number,
            "message": {"role": "assistant", "content": row.text},
            "logprobs": asked.logprobs(row.take_scores()),
            "finish_reason": row.finish_reason,
        }
        for row in rows
    ]
    return _whole(asked, about, choices, rows)


def _whole(asked: Asked, about: dict[str, Any], choices: list[dict[str, Any]], rows: Sequence[Row]) -> Response:
    warnings = {"warnings": asked.warnings} if asked.warnings else {}
    return JSONResponse({**about, "choices": choices, "usage": asked.usage(rows), **warnings})


def _stream(
    asked: Asked,
    about: dict[str, Any],
    choice: Callable[[int, str, str | None, Sequence[TokenScore]], dict[str, Any]],
    first: list[dict[str, Any]],
) -> Response:
    """Stream server-sent events, one for each piece of a text; the pieces of several texts are interleaved."""
    rows: list[Row] = []

    def make(tell: Callable[[Any], None]) -> Job:
        rows[:] = asked.rows(lambda row, piece: tell((row.number, piece, row.take_scores())))
        return asked.job(rows)

    async def events() -> AsyncIterator[str]:
        warnings = {"warnings": asked.warnings} if asked.warnings else {}
        try:
            for one in first:
                yield _event({**about, "choices": [one], **warnings})
            async for number, piece, scores in stream(asked.served, make):
                yield _event({**about, "choices": [choice(number, piece, None, scores)]})
            for row in rows:
                yield _event({**about, "choices": [choice(row.number, "", row.finish_reason, row.take_scores())]})
            if wants_usage(asked.form):
                yield _event({**about, "choices": [], "usage": asked.usage(rows)})
        except Exception as error:
            # The answer has begun with status 200.
            log.error("%s: a text broke off: %s", asked.served.name, type(error).__name__)
            yield _event(ApiError(500, "the text breaks off here, by a fault of the server; its log has more").body)
        yield DONE

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
