"""Conversations as a model reads them, written by a chat template, and which of their tokens are answers.

A template is Jinja, as transformers has them: it is given ``messages``, ``add_generation_prompt`` and the names of
special tokens (``bos_token``, …), and runs in a sandbox. Answers are what it marks by ``{% generation %}``; without
marks, what it adds to the messages before an answer, with the prompt for one, to write the answer, too. White space
after the token that ends an answer is not part of it.

Special tokens are written by templates only: in a message ``<s>`` is three letters. Differs from transformers in that,
and has no ``strftime_now``: the text of a conversation doesn't depend on the day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import read_json, write_json
from vaak.text.corpora.stores import EncodedPiece
from vaak.text.tokenizer import Tokenizer

Messages = Sequence[dict[str, str]]
Span = tuple[int, int]

OPTION = "data.chat_template"
CHATML = "chatml"
_CHATML = """\
{%- for message in messages %}{{ BEGIN + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + END }}{% endgeneration %}
{%- else %}{{ message['content'] + END }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ BEGIN + 'assistant\\n' }}{% endif %}"""
_OF_CHATML = ("<|im_start|>", "<|im_end|>")
_KEY = "chat_template"

BEGIN, END, BROKEN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Noncharacters of Unicode, which no text has: around answers, and inside of what only looks like a special token."""
_NONE_OF_THEM = str.maketrans("", "", BEGIN + END + BROKEN)
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_EXAMPLE = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})


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

    def __init__(self, content: str, tokenizer: Tokenizer) -> None:
        """Raises UserError for what isn't a template."""
        self.content, self.tokenizer = content, tokenizer
        # Sandboxed: a template comes from whoever published the model. Blocks are trimmed as transformers trims them.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(content)
        except TemplateError as error:
            raise UserError(f"{OPTION}: this is not a template in Jinja: {error}") from error
        self._given: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
        self._given |= {"tools": None, "documents": None}
        added = tokenizer.backend.get_added_tokens_decoder().values()
        # Longest first: an alternative that is a prefix of another would win over it.
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)))

    def encoded(self, messages: Messages, where: str, unlearned: Container[int] = ()) -> EncodedPiece:
        """A conversation's tokens, which of them are answers, and the bytes of those; each special token is one.

        Answers at the places ``unlearned`` aren't among them. Raises DataError, naming ``where``, for a conversation
        that the template refuses, and where no answer is found.
        """
        written, spans = self._write_messages(messages, where)
        if not spans:
            raise DataError(f"{where}: {OPTION} marks no answer by {{% generation %}}")
        answering = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if any(place in unlearned for place in answering):
            # Spans and messages are matched by order, which only works if there is one span for each answer.
            if len(spans) != len(answering):
                marked = f"{OPTION} marks {len(spans)} answers of {len(answering)}"
                raise DataError(f"{where}: {marked}, so it isn't known which are those with weight 0")
            spans = [span for span, place in zip(spans, answering, strict=True) if place not in unlearned]
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

    def prompt(self, messages: Messages, where: str) -> list[int]:
        """The tokens after which the assistant's answer to ``messages`` comes. Raises DataError as ``encoded``."""
        rendered = self._rendered(self._protected(messages), where, prompt=True)
        return self._tokens(rendered.replace(BEGIN, "").replace(END, ""))[0]

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The special tokens that end an answer, or follow it: where it stops."""
        found = (self.tokenizer.backend.token_to_id(end.token) for end in self._ends if end.token)
        return tuple(sorted({one for one in found if one is not None}))

    @cached_property
    def doubt(self) -> str | None:
        """Why answers that are learned don't say where they end; None where each has a special token for that."""
        if not self._ends:
            return f"{OPTION} refuses a question and its answer, so it can't be told what ends one"
        if all(end.is_learned for end in self._ends):
            return None
        outside = next((end.token for end in self._ends if end.token and not end.is_learned), None)
        if outside is None:
            return f"{OPTION} writes no special token after an answer, such as {{{{ eos_token }}}}"
        if _MARKS.search(self.content):
            return f"{OPTION} has {outside} after {{% endgeneration %}}; put it before, so that it is learned"
        return f"{OPTION} has {outside} after an answer, but as a part of what comes next"

    @cached_property
    def _ends(self) -> list[_End]:
        """How the answers of a short and of a longer conversation end; empty where the template refuses these."""
        found = list[_End]()
        # Two lengths: a template may end the last answer differently from the others.
        for messages in (_EXAMPLE, (*_EXAMPLE, *_EXAMPLE)):
            try:
                written, spans = self._write_messages(messages, OPTION)
            except DataError:
                return []
            for start, end in spans:
                inside = re.search(f"(?:{self._special.pattern})$", written[start:end].rstrip())
                after = re.match(rf"\s*({self._special.pattern})", written[end:])
                token = inside[0] if inside else after[1] if after else None
                found.append(_End(token, inside is not None))
        return found

    def _write_messages(self, messages: Messages, where: str) -> tuple[str, list[Span]]:
        """The text, and where answers are in it."""
        protected = self._protected(messages)
        rendered = self._rendered(protected, where)
        if not _MARKS.search(self.content):
            return rendered, self._answers(protected, rendered, where)
        # The marks are taken out, so positions count the characters before each mark only.
        outside, *marked = rendered.split(BEGIN)
        spans = []
        for piece in marked:
            answer, _, after = piece.partition(END)
            spans.append((len(outside), len(outside) + len(answer)))
            outside += answer + after
        return outside, spans

    def _answers(self, messages: Messages, whole: str, where: str) -> list[Span]:
        """Return where answers are in what a template without marks wrote."""
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            # Without marks, an answer is what follows the generation prompt, provided each conversation begins like the
            # longer one.
            before = self._rendered(messages[:number], where, prompt=True)
            after = self._rendered(messages[: number + 1], where)
            if not after.startswith(before) or not whole.startswith(after):
                raise DataError(
                    f"{where}: {OPTION}: the first {number + 1} messages alone are written otherwise than as part of "
                    "all, so the answers can't be found; mark them by {% generation %} in a template of your own"
                )
            answer = after[len(before) :].rstrip()
            ended = re.search(f"(?:{self._special.pattern})$", answer)
            spans.append((len(before), len(before) + len(answer) if ended else len(after)))
        return spans

    def _protected(self, messages: Messages) -> list[dict[str, str]]:
        """The messages, in which nothing is a special token."""

        def broken(found: re.Match[str]) -> str:
            return found[0][:1] + BROKEN + found[0][1:]

        contents = (self._special.sub(broken, message["content"].translate(_NONE_OF_THEM)) for message in messages)
        return [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]

    def _rendered(self, messages: Messages, where: str, *, prompt: bool = False) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **self._given)
        except Exception as error:  # whatever the code of a template raises
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{where}: {OPTION} refuses this conversation: {said}") from error

    def _tokens(self, written: str) -> tuple[list[int], list[Span]]:
        """The ids, and the characters that each stands for, without ``BROKEN``."""
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


def given_template(given: str | None, folder: Path) -> str | None:
    """Return the template of ``data.chat_template``: its text, a file's, ``chatml``; None if the tokenizer's is meant.

    A relative file is looked for in ``folder``, too. Raises UserError for a file that isn't there.
    """
    if given is None or given == CHATML or "{" in given:
        return given
    for path in (Path(given).expanduser(), folder / given):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise UserError(f"{OPTION}: no such file: {given}; expected one, a template in Jinja, or {CHATML}")


def template_for(tokenizer: Tokenizer, given: str | None, own: str | None) -> str:
    """The template ``given``, else the tokenizer's ``own``, else ChatML by the tokens that the tokenizer has."""
    if given not in (None, CHATML):
        return str(given)
    if given is None and own is not None:
        return own
    # ChatML's own tokens if the tokenizer has them; as plain text they would be several tokens each.
    has_them = None not in map(tokenizer.backend.token_to_id, _OF_CHATML)
    begin, end = (f"'{token}'" for token in _OF_CHATML) if has_them else ("bos_token", "eos_token")
    return _CHATML.replace("BEGIN", begin).replace("END", end)


def template_in(folder: Path) -> str | None:
    """The chat template of a tokenizer's folder, if it has one; of several the default."""
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
