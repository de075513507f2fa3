"""Secrets in options: told by the names of their keys, and by addresses that hold them; never stored or shown.

A configuration refers to one by a variable of the environment, ``api_key: ${SERVICE_KEY}``, and where it is stored or
shown it still does. One that is written out is replaced there by such a reference, ``${VAAK_SECRET_…}``, named after
its option. Secrets that a process has seen are replaced in its messages, too.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "***"
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
OWN_PREFIX = "VAAK_SECRET_"
SHORTEST_IN_TEXT = 6
"""Characters of a secret that is looked for in messages; shorter ones would be found in any word."""

SECRET_NAMES = {
    *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "credential", "credentials", "authorization"),
    *("apikey", "accesskey", "secretkey", "privatekey", "bearer", "webhook", "cookie", "dsn"),
}
"""Words that make any name a secret's."""
OWNERS = {
    *("access", "account", "admin", "api", "app", "auth", "aws", "azure", "bearer", "bot", "client", "comet", "csrf"),
    *("deploy", "encryption", "gcp", "github", "gitlab", "google", "hf", "hub", "huggingface", "jwt", "license"),
    *("master", "mlflow", "neptune", "oauth", "openai", "anthropic", "personal", "private", "push", "refresh", "sas"),
    *("security", "server", "service", "session", "shared", "signing", "slack", "ssh", "storage", "subscription"),
    *("telegram", "upload", "wandb", "webhook", "write"),
}
"""Words before ``key`` or ``token`` that tell a secret from a dictionary's key and a tokenizer's token."""
ALONE = {"token", "auth", "pass"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ADDRESS = re.compile(r"(?<![\w+.-])[\w+.-]+://[^\s\"'<>]+")
_PASSWORD = re.compile(r"(?<=://)([^/\s@?#:]*:)[^/\s@?#]+(?=@)")
_PARAMETER = re.compile(r"(?<=[?&;#])([\w.-]+)=([^&;#]+)")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+)(\"?'?\s*(?:=|:(?!//))\s*)(\"[^\"]*\"|'[^']*'|(?:Bearer )?[^\s,;&#}\])]+)")
IN_ADDRESSES = {"key", "sig", "signature"}
"""Names of an address's parameters that are secret there, besides those that always are."""
_names: dict[str, str] = {}
"""The secrets that this process has seen, and the variable that each refers to."""


@functools.lru_cache(maxsize=4096)  # a run asks 10,000 times, of the same few hundred names
def is_secret_key(name: str) -> bool:
    """Return whether an option of this name holds a secret.

    >>> [is_secret_key(name) for name in ("api_key", "X-Api-Key", "hfToken", "token", "db_password", "Authorization")]
    [True, True, True, True, True, True]
    >>> [is_secret_key(name) for name in ("tokenizer", "num_tokens", "pad_token", "sort_key", "key", "token_dropout")]
    [False, False, False, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not SECRET_NAMES.isdisjoint(word for word in words) or "".join(words) in ALONE | SECRET_NAMES:
        return True
    if any(word.rstrip("s") in SECRET_NAMES for word in words):
        return True
    last = words[-1].removesuffix("s") if words else ""
    return last in ("key", "token") and not OWNERS.isdisjoint(words[:-1])


def is_secret_path(key: str) -> bool:
    """Return whether an option is, or is part of, one whose name is a secret's."""
    return any(map(is_secret_key, key.split(".")))


def is_secret(key: str, value: Any) -> bool:
    """Return whether the value of an option is a secret, or refers to one."""
    if not isinstance(value, str):
        return type(value) is int and is_secret_path(key) and "token" not in key.lower()
    if (found := REFERENCE.fullmatch(value)) is not None:
        return found[1].startswith(OWN_PREFIX) or is_secret_path(key)
    return bool(value) and (is_secret_path(key) or hide_in_addresses(value) != value)


def note(value: str, variable: str = "") -> None:
    """Remember a secret, so that no message shows it; and the ``variable`` that it came from."""
    if variable or value not in _names:
        _names[value] = variable


def refer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for storing and showing: each secret is replaced by a reference to a variable."""
    return {name: _changed(value, name, _reference) for name, value in values.items()}


def mask(values: Any, key: str = "") -> Any:
    """Return options for comparison: all secrets, and references to them, are the same."""
    return _changed(values, key, lambda _, __: HIDDEN)


def look_up(values: Any) -> Any:
    """Options with the values of the variables that they refer to for secrets, as far as these are set."""

    def found(_: str, value: str) -> str:
        reference = REFERENCE.fullmatch(value)
        return value if reference is None else find_value(reference[1]) or value

    return _changed(values, "", found)


def secrets_in(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name of each option that holds a secret or refers to one, and its value."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from secrets_in(value, f"{key}.{name}".lstrip("."))
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from secrets_in(value, f"{key}.{number}")
    elif is_secret(key, values):
        yield key, str(values)


def find_value(variable: str) -> str | None:
    """Return the value of a variable that a configuration refers to; None if it isn't set.

    What this process was given as an option stands in for the variable that its run refers to.
    """
    if value := os.environ.get(variable):
        return value
    return next((value for value, name in _names.items() if name == variable), None)


def name_variable(key: str) -> str:
    """Return the variable to which a run refers for the secret of an option.

    >>> name_variable("training.callbacks.0.api_key")
    'VAAK_SECRET_TRAINING_CALLBACKS_0_API_KEY'
    """
    return OWN_PREFIX + re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_")


def hide_secrets(text: str) -> str:
    """Return a message without the secrets that this process has seen, and without those in addresses."""
    for value in sorted(_names, key=len, reverse=True):
        if len(value) >= SHORTEST_IN_TEXT:
            text = text.replace(value, HIDDEN)
    return hide_in_addresses(text)


def hide_in_addresses(text: str) -> str:
    """Return a text without the passwords and keys in its addresses.

    >>> hide_in_addresses("see https://me:pw@host/x?token=abc&n=1")
    'see https://me:***@host/x?token=***&n=1'
    """

    def parameter(match: re.Match[str]) -> str:
        secret = is_secret_key(match[1]) or match[1].lower() in IN_ADDRESSES
        return f"{match[1]}={HIDDEN}" if secret else match[0]

    def address(match: re.Match[str]) -> str:
        return _PARAMETER.sub(parameter, _PASSWORD.sub(rf"\1{HIDDEN}", match[0]))

    return _ADDRESS.sub(address, text) if "://" in text else text


def hide_pairs(text: str) -> str:
    """Return a text without the values that follow names of secrets.

    >>> hide_pairs("callbacks=[{type: ./x.py:X, api_key: abc, size: 2}]")
    'callbacks=[{type: ./x.py:X, api_key: ***, size: 2}]'
    """

    def pair(match: re.Match[str]) -> str:
        kept = REFERENCE.fullmatch(match[3].strip("\"'")) or not is_secret_path(match[1])
        return match[0] if kept else f"{match[1]}{match[2]}{HIDDEN}"

    return _PAIR.sub(pair, text)


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its secrets: ``--api-key K`` and ``a.api_key=K`` lose their values."""
    shown: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        key, equals, value = argument.partition("=")
        if before.startswith("--") and "=" not in before and is_secret_key(before) and not argument.startswith("--"):
            shown.append(HIDDEN)
        elif equals and re.fullmatch(r"[\w.+-]+", key) and is_secret_path(key.lstrip("-")):
            shown.append(argument if REFERENCE.fullmatch(value) else f"{key}={HIDDEN}")
        else:
            shown.append(hide_pairs(hide_secrets(argument)))
    return shown


def _changed(value: Any, key: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _changed(item, f"{key}.{name}".lstrip("."), change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, f"{key}.{number}", change) for number, item in enumerate(value)]
    return change(key, str(value)) if is_secret(key, value) else value


def _reference(key: str, value: str) -> str:
    if REFERENCE.fullmatch(value):
        return value
    name = _names.get(value) or name_variable(key)
    note(value, name)
    return f"${{{name}}}"
