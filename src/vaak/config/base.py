"""The base of every section of a YAML: frozen, typed, no unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vaak.core.errors import UserError

ResumeClass = Literal["free", "converts", "other numbers", "refused"]
"""What changing an option on resume does to a run (docs/resuming.md): no number changes; the batches change and the
position is converted; numbers change from here on; it can't be done."""


OneSection = TypeVar("OneSection", bound="Section")


class Section(BaseModel):
    """One section of a configuration.

    ``bare`` names the field that a bare value stands for: ``optimizer: adamw`` is ``optimizer: {type: adamw}``.
    ``resume_class`` is the class of its options that don't give their own; None where each must.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    bare: ClassVar[str | None] = None
    resume_class: ClassVar[ResumeClass | None] = None


class Open(BaseModel):
    """A section that takes any key: of a task that doesn't say which options it has."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    bare: ClassVar[str | None] = None
    resume_class: ClassVar[ResumeClass | None] = "refused"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Component(BaseModel):
    """A class by name, with its own options beside ``type``.

    ``type`` is a short name of Vaak's, or a user's ``./my_loss.py:Huber``, or ``my_package.losses:Huber``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = None
    """None: that of the option that names the class."""

    type: str = Field(description="A short name, ./file.py:Name, or package.module:Name.")

    @property
    def options(self) -> dict[str, Any]:
        """The keys beside ``type``: the class's own options."""
        return dict(self.model_extra or {})


def from_options(kind: type[OneSection], options: Mapping[str, Any], where: str) -> OneSection:
    """A section of options given in Python. Raises UserError with every mistake, ``where`` before the option's name."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        found = (".".join(map(str, (where, *each["loc"]))) + f": {each['msg']}" for each in error.errors())
        raise UserError("; ".join(found)) from error


def option(
    description: str,
    default: Any = ...,
    *,
    only_for: tuple[str, ...] = (),
    resume: ResumeClass | None = None,
    resume_switch: ResumeClass | None = None,
    **limits: Any,
) -> Any:
    """A documented option.

    ``only_for`` lists the section's types that read it; given with another it is an error. ``resume`` is what changing
    it on resume does; None: its section says so. ``resume_switch`` is the class of a change from null or 0 to a value,
    or back, where that is another.
    """
    about = {"only_for": list(only_for), "resume": resume, "resume_switch": resume_switch}
    extra: Any = {name: value for name, value in about.items() if value}
    return Field(default, description=description, json_schema_extra=extra or None, **limits)
