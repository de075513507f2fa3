"""Chat templates of ours, which mark answers by ``{% generation %}``, and which one a base takes.

Each is written from the published template of its model (``chat_templates``), and writes the same texts, but for what
docs/chat.md says. A base's own template is taken where it marks answers, or where none of ours writes the same.
"""

from __future__ import annotations

import logging
from pathlib import Path

from vaak.core.errors import DataError, UserError
from vaak.text.chat_template import CHAT_KEY, GENERATION_MARK, ChatTemplate, Messages, Tools
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")

CHATML = "chatml"
_SHIPPED = Path(__file__).parent / "chat_templates"
_OF_CHATML = ("<|im_start|>", "<|im_end|>")
SHIPPED: dict[str, tuple[str, ...]] = {
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "llama3_1": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "glm4": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    "mistral_nemo": ("[INST]", "[/INST]", "<SPECIAL_20>"),
    "mistral": ("[INST]", "[/INST]"),
    "qwen3": (*_OF_CHATML, "<think>", "<tool_call>"),
    CHATML: (),
}
"""Our templates, which mark answers, with the tokens that each writes; the first whose tokens all exist is chosen."""


def given_template(given: str | None, folder: Path) -> str | None:
    """Return the template of ``data.chat_template``: its text, a file's, the name of ours; None for the tokenizer's.

    A relative file is looked for in ``folder``, too. Raises UserError for a file that isn't there.
    """
    if given is None or given in SHIPPED or "{" in given:
        return given
    for path in (Path(given).expanduser(), folder / given):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise UserError(f"{CHAT_KEY}: no such file: {given}; expected one, a template in Jinja, or {', '.join(SHIPPED)}")


def template_for(tokenizer: Tokenizer, given: str | None, own: str | None) -> str:
    """Return the template ``given``, else the tokenizer's ``own``, else ours by the tokens that the tokenizer has.

    Where ``own`` doesn't mark answers, one of ours that writes the same text does; a line says which is taken.
    """
    if given is not None:
        return _shipped(given, tokenizer) if given in SHIPPED else given
    fitting = (name for name, tokens in SHIPPED.items() if None not in map(tokenizer.backend.token_to_id, tokens))
    if own is None:
        name = next(fitting)
        if name != CHATML:
            log.info("%s: %s, chosen by the tokens of the base, which has no template", CHAT_KEY, name)
        return _shipped(name, tokenizer)
    if not GENERATION_MARK.search(own):
        theirs = ChatTemplate(own, tokenizer)
        for name in fitting:
            ours = _shipped(name, tokenizer)
            if name != CHATML and _writes_the_same(ChatTemplate(ours, tokenizer), theirs):
                log.info("%s: %s, which writes what the base's own does, and marks answers", CHAT_KEY, name)
                return ours
    return own


_QUESTION = {"role": "user", "content": " a? "}
_ASKED = (_QUESTION, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": "c"})
_PROBE_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
_PROBE_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": "y", "z": 1}}}
_CALLING = (
    *_ASKED,
    {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]},
    {"role": "tool", "content": "r", "name": "f", "tool_call_id": "abcdefghi"},
)
_PROBES: tuple[tuple[Messages, Tools, bool], ...] = (
    (_ASKED[:2], (), False),
    ((*_ASKED, {"role": "assistant", "content": "e"}), (), False),
    (({"role": "system", "content": "s"}, *_ASKED), (), True),
    (_CALLING, (_PROBE_TOOL,), True),
    (_CALLING, (), True),
    ((_QUESTION, {"role": "assistant", "content": "u", "reasoning_content": "t\n"}), (), False),
)
"""Conversations, their tools, and whether an answer is asked for: two templates for one model write these alike."""


def _writes_the_same(ours: ChatTemplate, theirs: ChatTemplate) -> bool:
    """Whether our template writes what theirs does; where a conversation ends, it may add what ends its answer."""
    compared = 0
    for messages, tools, prompt in _PROBES:
        try:
            expected = theirs.render(messages, tools, prompt=prompt)
        except DataError:
            continue
        try:
            found = ours.render(messages, tools, prompt=prompt)
        except DataError:
            return False
        added = found.removeprefix(expected)
        if not found.startswith(expected) or (added and (prompt or ours.tokenizer.backend.token_to_id(added) is None)):
            return False
        compared += not prompt
    return compared > 0


def _shipped(name: str, tokenizer: Tokenizer) -> str:
    """Return the text of a template of ours; ChatML has the tokens of texts where the tokenizer lacks its own."""
    # ChatML's own tokens if the tokenizer has them; as plain text they would be several tokens each.
    has_them = None not in map(tokenizer.backend.token_to_id, _OF_CHATML)
    begin, end = (f"'{token}'" for token in _OF_CHATML) if has_them else ("bos_token", "eos_token")
    found = template_text(name)
    return found.replace("BEGIN", begin).replace("END", end) if name == CHATML else found


def template_text(name: str) -> str:
    """Return the text of a template of ours."""
    return (_SHIPPED / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")
