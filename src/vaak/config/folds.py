"""Which fold of a cross-validation a corpus is divided for; an option of every corpus."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from vaak.config.base import Section, option

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def fold_option() -> Any:
    """The option ``fold: str | None`` of a ``DividedSection``."""
    return option(
        "FILE:REPEAT:NUMBER, a fold of a cross-validation, in place of the corpus's own splits; vaak crossval sets it.",
        None,
    )


class DividedSection(Section):
    """A corpus that can be divided into folds: one with a ``fold``."""

    @model_serializer(mode="wrap")
    def _as_before_there_were_folds(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a fold there is no key, so data that were prepared by earlier versions are still known."""
        values: dict[str, Any] = handler(self)
        if values.get("fold") is None:
            values.pop("fold", None)
        return values


def with_fold(section: AnyModel, fold: str) -> AnyModel:
    """A section with this fold in each corpus in it."""
    changed: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            changed[name] = with_fold(value, fold)
        elif isinstance(value, tuple):
            changed[name] = tuple(with_fold(one, fold) if isinstance(one, BaseModel) else one for one in value)
    if isinstance(section, DividedSection):
        changed["fold"] = fold
    return section.model_copy(update=changed)
