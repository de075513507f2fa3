"""Options of commands made from a section of the configuration: one place says what an option means and takes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from vaak.config.base import Section


def with_options_of(
    section: type[Section],
    *,
    into: str,
    leave_out: Sequence[str] = (),
    show_defaults: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of a section's, under its name, with its description as help.

    Those that are given reach the command as a dictionary, in its parameter ``into``. Bounds are not checked here: what
    takes the values does that. With ``show_defaults`` the help shows the section's: no run has others. ``flags`` gives
    options other spellings than their names; the options in ``leave_out`` get none.
    """
    names = [name for name in section.model_fields if name not in leave_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            given = {name: _plain(value) for name, value in values.items() if value is not None}
            command(**arguments, **{into: given})

        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY)
            for one in inspect.signature(command).parameters.values()
            if one.name != into
        ]
        arguments = [one for one in own if one.default is one.empty]
        options = [_option(section, name, show_defaults, (flags or {}).get(name, ())) for name in names]
        rest = [one for one in own if one.default is not one.empty]
        called.__signature__ = inspect.Signature([*arguments, *options, *rest])  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in (*arguments, *options, *rest)}
        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        return called

    return decorate


def _option(section: type[Section], name: str, show_default: bool, flags: Sequence[str]) -> inspect.Parameter:
    field = section.model_fields[name]
    kind: Any = _type_of(name, field.annotation)
    shown = str(field.default) if show_default else False
    annotation = Annotated[kind | None, typer.Option(*flags, help=field.description, show_default=shown)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _type_of(name: str, annotation: Any) -> Any:
    """The type that the command line reads: without None, and of a choice an enumeration."""
    if isinstance(annotation, types.UnionType):
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is Literal:
        return StrEnum(name, {choice: choice for choice in get_args(annotation)})
    return annotation


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value
