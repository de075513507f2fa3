"""The base of every section of a YAML: frozen, typed, no unknown keys."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One section of a configuration.

    ``bare`` names the field that a bare value stands for: ``optimizer: adamw`` is ``optimizer: {type: adamw}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    bare: ClassVar[str | None] = None


class Component(BaseModel):
    """A class by name, with its own options beside ``type``.

    ``type`` is a short name of Vaak's, or a user's ``./my_loss.py:Huber``, or ``my_package.losses:Huber``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    bare: ClassVar[str | None] = "type"

    type: str = Field(description="A short name, ./file.py:Name, or package.module:Name.")

    @property
    def options(self) -> dict[str, Any]:
        """The keys beside ``type``: the class's own options."""
        return dict(self.model_extra or {})


def option(description: str, default: Any = ..., *, only_for: tuple[str, ...] = (), **limits: Any) -> Any:
    """A documented option. ``only_for`` lists the section's types that read it; given with another it is an error."""
    extra: Any = {"only_for": list(only_for)} if only_for else None
    return Field(default, description=description, json_schema_extra=extra, **limits)
