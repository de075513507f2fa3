"""Conversations as a model reads them, written by a chat template, and which of their tokens are answers.

A template is Jinja, as transformers has them: it is given ``messages``, ``tools``, ``add_generation_prompt`` and the
names of special tokens (``bos_token``, …), and runs in a sandbox. Answers are what it marks by ``{% generation %}``;
without marks, what it adds to the messages before an answer, with the prompt for one, to write the answer, too. White
space after the token that ends an answer is not part of it.

Special tokens are written by templates only: in a message ``<s>`` is three letters. Differs from transformers in that,
and has no ``strftime_now``: the text of a conversation doesn't depend on the day.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import read_json, write_json
from vaak.text.corpora.stores import EncodedPiece
from vaak.text.corpora.tool_calls import NO_OPTIONS, Options, reserved_option
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Span = tuple[int, int]

CHAT_KEY = "data.chat_template"
_KEY = "chat_template"

BEGIN, END, BROKEN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Noncharacters of Unicode, which no text has: around answers, and inside of what only looks like a special token."""
_THOUGHTS, _SAID = "\ufdd3\ufdd4", "\ufdd5\ufdd6"
"""Further ones, around an answer's thoughts, and around what another role says that is learned."""
_NONE_OF_THEM = str.maketrans("", "", BEGIN + END + BROKEN + _THOUGHTS + _SAID)
_AROUND = re.compile(f"[{_THOUGHTS}{_SAID}]")
GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
_EXAMPLE = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})
_TOOL = {"type": "function", "function": {"name": "f", "description": "?", "parameters": {"type": "object"}}}
_CALL = (
    _EXAMPLE[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}],
    },
    {"role": "tool", "content": "!", "name": "f", "tool_call_id": "abcdefghi"},
    _EXAMPLE[1],
)


_THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")
_IN_CONTENT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
Reasoning = Literal["keep", "mask", "drop"]


class Learned(NamedTuple):
    """The learned parts of a conversation: turns of these ``roles``, or the last of them alone, and answers' thoughts.

    Thoughts that are masked are read, and not learned; those that are dropped aren't there.
    """

    roles: tuple[str, ...] = ("assistant",)
    only_last: bool = False
    reasoning: Reasoning = "keep"


ANSWERS_ALONE = Learned()


class _End(NamedTuple):
    """The special token that ends an answer, or that follows it, and whether it is a part of the answer."""

    token: str | None
    is_learned: bool


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``, with a character at each end."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, because its body is rendered first and handed over as text, between whose ends the marks go.
        return nodes.CallBlock(self.call_method("_mark_spans"), [], [], body).set_lineno(line)

    def _mark_spans(self, caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


class ChatTemplate:
    """A template with the tokenizer whose special tokens it writes."""

    def __init__(
        self,
        content: str,
        tokenizer: Tokenizer,
        learned: Learned = ANSWERS_ALONE,
        options: Options = NO_OPTIONS,
    ) -> None:
        """``options`` are given to the template, too. Raises UserError for what isn't a template, or hasn't such."""
        self.content, self.tokenizer, self.learned = content, tokenizer, learned
        self.num_unwritten_thoughts = 0
        """Answers whose thoughts the template left out, of those encoded so far."""
        self.num_unwritten_words = 0
        """Answers of which the template wrote the calls alone, and not what they say, too."""
        self.unused_options = Counter[str]()
        """Options of conversations that the template doesn't name, each with their number."""
        # Sandboxed: a template comes from whoever published the model. Blocks are trimmed as transformers trims them.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(content)
        except TemplateError as error:
            raise UserError(f"{CHAT_KEY}: this is not a template in Jinja: {error}") from error
        self._given: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
        self._given |= {"documents": None}
        added = tokenizer.backend.get_added_tokens_decoder().values()
        # Longest first: an alternative that is a prefix of another would win over it.
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)))
        self.options = self._break_special(dict(options))
        for name in options:
            if reason := reserved_option(name):
                raise UserError(f"{CHAT_KEY}_kwargs: {reason}")
            if not self.names(name):
                raise UserError(f"{CHAT_KEY}_kwargs: {CHAT_KEY} doesn't name {name}, so it would change nothing")

    def encoded(
        self,
        messages: Messages,
        where: str,
        unlearned: Container[int] = (),
        *,
        tools: Tools = (),
        num_earlier: int = 0,
        options: Options = NO_OPTIONS,
    ) -> EncodedPiece:
        """Return a conversation's tokens, which of them are learned, and the bytes of those; each special token is one.

        Turns at the places ``unlearned``, and the first ``num_earlier`` answers, aren't among them. ``options`` are the
        conversation's own, which come before those of all. Raises DataError, naming ``where``, for a conversation that
        the template refuses, or doesn't write whole, and if nothing is learned.
        """
        messages = [self._with_thoughts(message) for message in messages]
        self._require_written(messages, tools, where)
        self.unused_options.update(name for name in options if not self.names(name))
        written, spans = self._write_messages(messages, where, self._give(tools, options))
        answering = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if answering and not spans and "assistant" in self.learned.roles:
            raise DataError(f"{where}: {CHAT_KEY} marks no answer by {{% generation %}}")
        spans = _leave_out(spans, answering, unlearned, f"{where}: {CHAT_KEY} marks")[num_earlier:]
        written, spans, thoughts, said = _take_out_marks(written, spans)
        self.num_unwritten_thoughts += max(0, sum("reasoning_content" in one for one in messages) - len(thoughts))
        self.num_unwritten_words += sum(_lacks_words(written, one) for one in messages)
        others = [place for place, message in enumerate(messages) if self._is_marked(message)]
        said = [self._with_end(written, one) for one in _leave_out(said, others, unlearned, f"{where}: {CHAT_KEY} has")]
        learned = sorted([*(spans if "assistant" in self.learned.roles else ()), *said])
        learned = learned[-1:] if self.learned.only_last else learned
        if not learned:
            raise DataError(f"{where}: no turn of {' or '.join(self.learned.roles)} is learned (data.learned_roles)")
        if self.learned.reasoning == "mask":
            learned = list(_cut_out(learned, thoughts))
        return self._encode(written, learned)

    def _encode(self, written: str, spans: Sequence[Span]) -> EncodedPiece:
        """Return the tokens of a text, of which those in ``spans`` are learned."""
        num_bytes = sum(
            # A special token counts as one byte, whatever its name, so bits per byte don't depend on how it is written.
            len(self._special.sub("\n", written[start:end]).replace(BROKEN, "").encode())
            for start, end in spans
        )
        ids, places = self._tokens(written)
        starts, ends = np.array(places).reshape(-1, 2).T
        answers = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            # ``spans`` count the characters that break special tokens in messages; tokens don't contain them.
            start, end = (place - written[:place].count(BROKEN) for place in (start, end))
            # Of a token that is white space, both ends are at its end.
            answers |= (ends > start) & ((starts < end) | ((starts == ends) & (ends == end)))
        returned = self.tokenizer.decode(ids, skip_special_tokens=False)
        return EncodedPiece(ids, num_bytes, returned == written.replace(BROKEN, ""), answers=answers)

    def prompt(
        self,
        messages: Messages,
        where: str,
        tools: Tools = (),
        options: Options = NO_OPTIONS,
    ) -> list[int]:
        """The tokens after which the assistant's answer to ``messages`` comes. Raises DataError as ``encoded``."""
        messages = [self._with_thoughts(message) for message in messages]
        self._require_written(messages, tools, where)
        given = self._give(tools, options)
        rendered = self._rendered(self._protected(messages), where, given, prompt=True)
        return self._tokens(_AROUND.sub("", rendered.replace(BEGIN, "").replace(END, "")))[0]

    def render(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        prompt: bool = False,
        options: Options = NO_OPTIONS,
    ) -> str:
        """The text of a conversation, with the prompt for an answer if asked. Raises DataError as ``encoded``."""
        rendered = self._rendered(self._protected(messages), CHAT_KEY, self._give(tools, options), prompt=prompt)
        return _AROUND.sub("", rendered.replace(BEGIN, "").replace(END, "")).replace(BROKEN, "")

    def names(self, option: str) -> bool:
        """Return whether the template names an option."""
        return re.search(rf"\b{re.escape(option)}\b", self.content) is not None

    def _give(self, tools: Tools, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of the template other than messages."""
        return {"tools": self._break_special(tools) or None, **self.options, **self._break_special(dict(options))}

    def _with_thoughts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message whose thoughts are treated as asked, those in its content, too, where they are to be left out."""
        found = dict(message)
        if self.learned.reasoning == "keep" or message["role"] != "assistant":
            return found
        if "reasoning_content" not in found and (inside := _IN_CONTENT.match(found["content"])):
            found |= {"reasoning_content": inside[1].strip(), "content": found["content"][inside.end() :]}
        if self.learned.reasoning == "drop":
            found.pop("reasoning_content", None)
        return found

    def _require_written(self, messages: Messages, tools: Tools, where: str) -> None:
        """Raise DataError for tools, calls or thoughts that a template knows nothing of: they would be lost."""
        if tools and "tools" not in self.content:
            raise DataError(f"{where}: {CHAT_KEY} doesn't write tools; name one that does, such as chatml")
        if any("tool_calls" in one for one in messages) and "tool_calls" not in self.content:
            raise DataError(f"{where}: {CHAT_KEY} doesn't write tool_calls; name one that does, such as chatml")
        thinks = any("reasoning_content" in one for one in messages)
        if thinks and not any(name in self.content for name in _THOUGHT_NAMES):
            raise DataError(f"{where}: {CHAT_KEY} doesn't write reasoning_content; data.reasoning: drop leaves it out")

    def _is_marked(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message isn't an answer, but is learned."""
        role = "system" if message["role"] == "developer" else message["role"]
        return role != "assistant" and role in self.learned.roles and bool(message["content"].strip())

    def _with_end(self, written: str, span: Span) -> Span:
        """Return a turn with the special token that ends it, if one does."""
        end = re.compile(f"(?:{self._special.pattern})").match(written, span[1])
        return span[0], end.end() if end and self._special.pattern else span[1]

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The special tokens that end an answer, or a call, or follow it: where it stops."""
        ends = [*self._ends, *self._find_ends(_CALL, self._give((_TOOL,), {}))]
        found = (self.tokenizer.backend.token_to_id(end.token) for end in ends if end.token)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    @cached_property
    def doubt(self) -> str | None:
        """Why answers that are learned don't say where they end; None if each has a special token for that."""
        if not self._ends:
            return f"{CHAT_KEY} refuses a question and its answer, so it can't be told what ends one"
        if all(end.is_learned for end in self._ends):
            return None
        outside = next((end.token for end in self._ends if end.token and not end.is_learned), None)
        if outside is None:
            return f"{CHAT_KEY} writes no special token after an answer, such as {{{{ eos_token }}}}"
        if GENERATION_MARK.search(self.content):
            return f"{CHAT_KEY} has {outside} after {{% endgeneration %}}; put it before, so that it is learned"
        return f"{CHAT_KEY} has {outside} after an answer, but as a part of what comes next"

    @cached_property
    def _ends(self) -> list[_End]:
        """How the answers of a short and of a longer conversation end; empty if the template refuses these."""
        # Two lengths: a template may end the last answer differently from the others.
        short, longer = (self._find_ends(one, self._give((), {})) for one in (_EXAMPLE, (*_EXAMPLE, *_EXAMPLE)))
        return [*short, *longer] if short and longer else []

    def _find_ends(self, messages: Messages, given: Mapping[str, Any]) -> list[_End]:
        """How the answers of a conversation end; empty if the template refuses it, or doesn't write its calls."""
        calls = any("tool_calls" in one for one in messages)
        if calls and "tool_calls" not in self.content:
            return []
        try:
            written, spans = self._write_messages(messages, CHAT_KEY, given)
        except DataError:
            return []
        found = list[_End]()
        for start, end in spans:
            inside = re.search(f"(?:{self._special.pattern})$", written[start:end].rstrip())
            after = re.match(rf"\s*({self._special.pattern})", written[end:])
            token = inside[0] if inside else after[1] if after else None
            found.append(_End(token, inside is not None))
        return found

    def _write_messages(self, messages: Messages, where: str, given: Mapping[str, Any]) -> tuple[str, list[Span]]:
        """Return the text, with the marks around thoughts and other turns, and the spans of answers in it."""
        protected = self._protected(messages)
        rendered = self._rendered(protected, where, given)
        if not GENERATION_MARK.search(self.content):
            return rendered, self._answers(protected, rendered, where, given)
        # The marks are taken out, so positions count the characters before each mark only.
        outside, *marked = rendered.split(BEGIN)
        spans = []
        for piece in marked:
            answer, _, after = piece.partition(END)
            spans.append((len(outside), len(outside) + len(answer)))
            outside += answer + after
        return outside, spans

    def _answers(self, messages: Messages, whole: str, where: str, given: Mapping[str, Any]) -> list[Span]:
        """Return where answers are in what a template without marks wrote."""
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            # Without marks, an answer is what follows the generation prompt, provided each conversation begins like the
            # longer one.
            before = self._rendered(messages[:number], where, given, prompt=True)
            after = self._rendered(messages[: number + 1], where, given)
            if not after.startswith(before) or not whole.startswith(after):
                raise DataError(
                    f"{where}: {CHAT_KEY}: the first {number + 1} messages alone are rendered differently than within "
                    "the conversation, so the answers can't be found; mark them by {% generation %} in a template of "
                    "your own"
                )
            answer = after[len(before) :].rstrip()
            ended = re.search(f"(?:{self._special.pattern})$", answer)
            spans.append((len(before), len(before) + len(answer) if ended else len(after)))
        return spans

    def _protected(self, messages: Messages) -> list[dict[str, Any]]:
        """The messages as the template reads them: nothing in them is a special token, and what matters is marked."""
        found = []
        for message in messages:
            one = self._break_special(dict(message))
            if self._is_marked(message):
                one["content"] = _put_around(one["content"], _SAID)
            # Most templates don't know this role, and would leave the turn out.
            if one["role"] == "developer" and "developer" not in self.content:
                one["role"] = "system"
            if "reasoning_content" in one:
                thoughts = _put_around(one.pop("reasoning_content"), _THOUGHTS)
                one |= {name: thoughts for name in _THOUGHT_NAMES if name in self.content}
            found.append(one)
        return found

    def _break_special(self, value: Any) -> Any:
        """Return a value in whose texts nothing is a special token."""
        if isinstance(value, str):
            plain = value.translate(_NONE_OF_THEM)
            return self._special.sub(lambda found: found[0][:1] + BROKEN + found[0][1:], plain)
        if isinstance(value, Mapping):
            return {self._break_special(key): self._break_special(one) for key, one in value.items()}
        return [self._break_special(one) for one in value] if isinstance(value, list | tuple) else value

    def _rendered(self, messages: Messages, where: str, given: Mapping[str, Any], *, prompt: bool = False) -> str:
        known = {**self._given, **given}
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **known)
        except Exception as error:
            # Whatever the code of a template raises.
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{where}: {CHAT_KEY} refuses this conversation: {said}") from error

    def _tokens(self, written: str) -> tuple[list[int], list[Span]]:
        """Return the ids, and the characters that each stands for, without ``BROKEN``."""
        if BROKEN not in written:
            return self.tokenizer.encode_written(written)
        ids: list[int] = []
        places: list[Span] = []
        length = 0
        # Split at real special tokens: odd pieces are tokens that the template wrote, even ones are text and can't
        # become any.
        for number, piece in enumerate(re.split(f"({self._special.pattern})", written)):
            text = piece.replace(BROKEN, "")
            found, spans = self.tokenizer.encode_written(text, as_text=number % 2 == 0)
            ids += found
            places += [(length + start, length + end) for start, end in spans]
            length += len(text)
        return ids, places


def _lacks_words(written: str, message: Mapping[str, Any]) -> bool:
    """Return whether a message that calls says something that isn't in the text."""
    said = message["content"].strip().translate(_NONE_OF_THEM)
    return "tool_calls" in message and said not in written.replace(BROKEN, "")


def _put_around(text: str, marks: str) -> str:
    """Return a text with marks around it, inside of its white space, which templates strip.

    >>> _put_around(" so ", "()")
    ' (so) '
    """
    core = text.strip()
    before, _, after = text.partition(core) if core else ("", "", text)
    return f"{before}{marks[0]}{core}{marks[1]}{after}" if core else text


def _take_out_marks(written: str, spans: Sequence[Span]) -> tuple[str, list[Span], list[Span], list[Span]]:
    """Return the text without marks, its ``spans`` there, and those of thoughts and of other turns that are learned."""
    places = [found.start() for found in _AROUND.finditer(written)]
    opened: dict[str, int] = {}
    found: dict[str, list[Span]] = {_THOUGHTS: [], _SAID: []}
    for number, place in enumerate(places):
        marks = _THOUGHTS if written[place] in _THOUGHTS else _SAID
        if written[place] == marks[0]:
            opened[marks] = place - number
        elif marks in opened:
            found[marks].append((opened.pop(marks), place - number))
    moved = [(start - bisect_left(places, start), end - bisect_left(places, end)) for start, end in spans]
    return _AROUND.sub("", written), moved, found[_THOUGHTS], found[_SAID]


def _cut_out(spans: Sequence[Span], holes: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of ``spans`` outside of ``holes``, which are in order.

    >>> list(_cut_out([(0, 9), (12, 15)], [(2, 4), (8, 13)]))
    [(0, 2), (4, 8), (13, 15)]
    """
    for start, end in spans:
        for first, last in holes:
            if first < end and last > start:
                if first > start:
                    yield start, first
                start = last
        if start < end:
            yield start, end


def _leave_out(spans: list[Span], turns: Sequence[int], unlearned: Container[int], marks: str) -> list[Span]:
    """Return the spans of ``turns`` that are learned. Raises DataError if it isn't known which is whose."""
    if not any(place in unlearned for place in turns):
        return spans
    # Spans and messages are matched by order, which only works if there is one span for each.
    if len(spans) != len(turns):
        raise DataError(
            f"{marks} {len(spans)} answers of {len(turns)}, so it isn't known which are those with weight 0"
        )
    return [span for span, place in zip(spans, turns, strict=True) if place not in unlearned]


def template_in(folder: Path) -> str | None:
    """Return the chat template of a tokenizer's folder, if it has one; of several the default."""
    file, about = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = read_json(about).get(_KEY) if about.is_file() else None
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}
    return found.get("default") if isinstance(found, dict) else found


def keep_template(folder: Path, content: str) -> None:
    """Put a template where ``template_in`` and transformers find it: in the tokenizer's configuration."""
    about = folder / "tokenizer_config.json"
    write_json(about, {**read_json(about), _KEY: content})


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Jinja's own filter would write HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
