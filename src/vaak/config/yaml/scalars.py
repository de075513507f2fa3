"""Plain YAML scalars as values, and environment variables inside them.

Source: YAML 1.2.2, section 10.3.2 (core schema): ``2e-4`` is a float; ``no`` and ``2026-01-01`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}|\$\{")
_SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIAL", "CREDENTIALS"}
_MOST_DIGITS = 4000


def plain_scalar(text: str) -> Scalar:
    """The value of a scalar written without quotes.

    >>> [plain_scalar(text) for text in ("2e-4", "no", "12", "true", "~", "1.5.2")]
    [0.0002, 'no', 12, True, None, '1.5.2']
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NO_NUMBER.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def expand(text: str, environment: Mapping[str, str]) -> str:
    """The text with ``${NAME}`` and ``${NAME:-default}`` replaced; ``$${`` stands for ``${``.

    An empty variable takes the default, as in a shell. A variable whose name looks secret is refused, since values
    are shown and stored with the run.

    >>> expand("${ROOT:-/data}/hi", {})
    '/data/hi'

    Raises ValueError with what is wrong; it never holds the value of a variable.
    """

    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ValueError("a variable is written ${NAME} or ${NAME:-default}, and ${ itself is written $${")
        if looks_secret(name):
            raise ValueError(
                f"${{{name}}} looks like a secret, and a configuration is shown and stored with the run; "
                "leave it in the environment only"
            )
        if value := environment.get(name):
            return value
        if default is not None:
            return default
        if name in environment:
            return ""
        raise ValueError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")

    return _VARIABLE.sub(value_of, text)


def looks_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret, so that its value is never shown.

    >>> looks_secret("WANDB_API_KEY"), looks_secret("WANDB_MODE")
    (True, False)
    """
    return bool(_SECRET_WORDS & set(name.upper().split("_")))
