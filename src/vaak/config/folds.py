"""Which fold of a cross-validation a corpus is divided for; an option of every corpus."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from vaak.config.base import Section, option

AnyModel = TypeVar("AnyModel", bound=BaseModel)
FOLDS_FILE = "folds_file"
"""The option that isn't part of what a corpus is: a run finds its folds elsewhere after its study was moved."""


def fold_option() -> Any:
    """The option ``fold: str | None`` of a ``DividedSection``."""
    return option(
        "REPEAT:NUMBER, a fold of a cross-validation, in place of the corpus's own splits; vaak crossval sets it.", None
    )


def folds_file_option() -> Any:
    """The option ``folds_file: str | None`` of a ``DividedSection``."""
    return option("The file of the folds (folds.json of vaak crossval), which fold is one of.", None, resume="free")


ADDED_LATER = ("fold", FOLDS_FILE, "valid_examples", "test_examples")


class DividedSection(Section):
    """A corpus that can be divided into folds: one with a ``fold`` of a ``folds_file``."""

    @model_serializer(mode="wrap")
    def _as_before_there_were_folds(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a value there are no such keys, so data that were prepared by earlier versions are still known."""
        values: dict[str, Any] = handler(self)
        for name in ADDED_LATER:
            if values.get(name, "") is None:
                del values[name]
        return values


def with_fold(section: AnyModel, fold: str, file: str) -> AnyModel:
    """A section with this fold of a ``file`` in each corpus in it."""
    changed: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            changed[name] = with_fold(value, fold, file)
        elif isinstance(value, tuple):
            changed[name] = tuple(with_fold(one, fold, file) if isinstance(one, BaseModel) else one for one in value)
    if isinstance(section, DividedSection):
        changed |= {"fold": fold, FOLDS_FILE: file}
    return section.model_copy(update=changed)
