"""The bases of every section of a YAML: frozen, typed, no unknown keys; and of corpora, which can be cut in folds."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vaak.core.errors import UserError
from vaak.core.names import from_home
from vaak.core.storage.dialects import GivenDialect, Quotes

ResumeClass = Literal["free", "converts", "other numbers", "refused"]
"""The effect on a run of changing an option on resume (docs/resuming.md): no number changes; the batches change and the
position is converted; numbers change from here on; it can't be done."""
REGISTERED: defaultdict[str, dict[str, Any]] = defaultdict(dict)
"""Components registered under short names (``vaak.config.components``), by the option that may name them."""
REFERENCES = ("./file.py:Name", "package.module:Name")
"""How a user's class is named."""
USERS_CLASS = "of a user's class"
"""Among the types that read an option, stands for a class that isn't Vaak's."""
LARGEST_LENGTH = 1 << 24
"""The longest sequence, and the largest vocabulary, that is taken for one."""
LARGEST_COUNT = 1_000_000_000
"""The most things of a kind, such as rows of a batch, that are accepted; more is taken for a slip."""
LARGEST_NUMBER = 1e15
"""No option is further from 0: below, every whole number is exact in any arithmetic."""


def _typed_from_home(path: Any) -> Any:
    """Return a text as ``from_home`` reads it, before it is a path: that of ./~ is ~."""
    return from_home(path) if isinstance(path, str) else path


Place = Annotated[str, AfterValidator(from_home)]
"""A file or a folder, or a text that may name one: a leading ~ or ~user is a home, as in a shell."""


@dataclass(frozen=True)
class PathRead:
    """Marks an option whose file is read, and so seen from the YAML (``vaak.config.paths``); ``or_name``: or a name.

    With ``endings``, only a value that ends so, without commas, is a path.
    """

    or_name: bool = False
    endings: tuple[str, ...] = ()

    def is_path(self, value: Any) -> bool:
        """Return whether an option's value, or one of its list, may be a path."""
        return not self.endings or (isinstance(value, str) and value.endswith(self.endings) and "," not in value)


Source = Annotated[Place, PathRead()]
"""``Place`` of a file or a folder that is read."""
SourceOrName = Annotated[Place, PathRead(or_name=True)]
"""``Source``, or another name: a model's on the Hugging Face Hub, a part of a corpus, auto."""
FolderPath = Annotated[Path, BeforeValidator(_typed_from_home)]
"""``Place`` of a folder that is a path in Python."""
SourceFolder = Annotated[Path, BeforeValidator(_typed_from_home), PathRead()]
"""``FolderPath`` of one that is read."""
OneSection = TypeVar("OneSection", bound="Section")
if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _OneLine(ModelMetaclass):
    """Makes one line of the mistakes in a section that a program makes; those of a file have a line each."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        except ValidationError as error:
            raise _in_one_line(error, self.__name__) from None


class SectionError(UserError, ValueError):
    """The mistakes in a section that a program makes; inside of another section's checks, one mistake of that."""


def _in_one_line(error: ValidationError, where: str) -> SectionError:
    """Return all mistakes as one error, with ``where`` before each option's name."""
    found = (
        ".".join(map(str, (where, *each["loc"]))) + f": {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors()
    )
    return SectionError("; ".join(found))


class Section(BaseModel, metaclass=_OneLine):
    """One section of a configuration.

    ``bare`` names the field that a bare value stands for: ``optimizer: adamw`` is ``optimizer: {type: adamw}``.
    ``resume_class`` is the class of its options that don't give their own; None if each must.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    bare: ClassVar[str | None] = None
    resume_class: ClassVar[ResumeClass | None] = None

    @classmethod
    def type_told_by(cls, values: Mapping[str, Any]) -> str | None:
        """Return the section's ``type`` that its other options tell, where none is given; None: the default.

        Raises ValueError if they can't tell it, and must.
        """
        return None

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any) -> Any:
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if isinstance(number, int | float) and abs(number) > LARGEST_NUMBER:
                raise ValueError(f"is {number:.3g}; no option is above {LARGEST_NUMBER:.0g}")
        return value


class Extensible(BaseModel):
    """A section that takes any key, for a task that doesn't declare its options."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    bare: ClassVar[str | None] = None
    resume_class: ClassVar[ResumeClass | None] = "refused"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Component(BaseModel):
    """A class by name, with its own options next to ``type``.

    ``type`` is a short name of Vaak's, or a user's ``./my_loss.py:Huber``, or ``my_package.losses:Huber``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = None
    """None: the class of the option that names the component."""

    type: str = Field(description="A short name, ./file.py:Name, or package.module:Name.")

    @property
    def options(self) -> dict[str, Any]:
        """The keys next to ``type``: the class's own options."""
        return dict(self.model_extra or {})


class ExtensibleSection(Section):
    """A section whose ``type`` is one of Vaak's own, or names a user's class.

    In a YAML the options of a user's class stand next to ``type``; here they are in ``options``. ``own_types`` are
    Vaak's; ``key`` is the option under which a program may register others. ``given`` are arguments of a user's class
    that Vaak gives. ``by_whole_path``: once read, a user's file is named by its whole path, since the objects built
    from the section don't know the folder of the configuration.
    """

    # Shown with their section's other options in an editor, where what a user's class takes isn't known.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    key: ClassVar[str]
    own_types: ClassVar[tuple[str, ...]]
    given: ClassVar[tuple[str, ...]] = ()
    by_whole_path: ClassVar[bool] = False

    if TYPE_CHECKING:
        type: str
        options: dict[str, Any]

    @classmethod
    def is_users(cls, section_type: Any) -> bool:
        """Return whether a type is not one of Vaak's own."""
        return section_type not in cls.own_types

    @classmethod
    def reads(cls, name: str) -> bool:
        """Return whether Vaak reads an option of this section whatever its type is."""
        field = cls.model_fields.get(name)
        extra = field.json_schema_extra if field else None
        return field is not None and not (isinstance(extra, dict) and extra.get("only_for"))

    @field_validator("type", check_fields=False)
    @classmethod
    def _is_known(cls, name: str) -> str:
        if ":" not in name and name not in cls.own_types and name not in REGISTERED[cls.key]:
            known = ", ".join([*cls.own_types, *REGISTERED[cls.key], *REFERENCES])
            about = {"name": name, "known": known}
            raise PydanticCustomError("unknown_type", "{name} is not known; expected one of {known}", about)
        return name

    @model_validator(mode="after")
    def _has_no_options_of_others(self) -> ExtensibleSection:
        """Options of Vaak's own types that Python code gives to a user's class, which reads ``options``."""
        if self.is_users(self.type):
            lost = [name for name in self.model_fields_set if name != "options" and not self.reads(name)]
            if lost:
                raise ValueError(f"{lost[0]} is not read for {self.type}; give it in options")
        return self


def open_type(own_types: tuple[str, ...]) -> WithJsonSchema:
    """Return how a schema describes the ``type`` of an open section."""
    references = {"type": "string", "pattern": ":", "examples": list(REFERENCES)}
    return WithJsonSchema({"anyOf": [{"type": "string", "enum": list(own_types)}, references]})


def users_options() -> Any:
    """Return the ``options`` of an open section."""
    return option("Options of a user's class; they may stand next to type.", {}, only_for=(USERS_CLASS,))


def from_options(kind: type[OneSection], options: Mapping[str, Any], where: str) -> OneSection:
    """A section of options given in Python. Raises UserError with every mistake, ``where`` before the option's name."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        raise _in_one_line(error, where) from error


def option(
    description: str,
    default: Any = ...,
    *,
    only_for: tuple[str, ...] = (),
    resume: ResumeClass | None = None,
    resume_switch: ResumeClass | None = None,
    **limits: Any,
) -> Any:
    """Return a documented option.

    ``only_for`` lists the section's types that read it; with another type it is an error. ``resume`` is what changing
    it on resume does; None: as its section says. ``resume_switch`` is the class of a change from null or 0 to a value,
    or back, where that class differs.

    ``description`` is its line in the documentation, ``default`` its value where none is given (required without one);
    ``limits`` are those of pydantic's ``Field``.
    """
    about = {"only_for": list(only_for), "resume": resume, "resume_switch": resume_switch}
    extra: Any = {name: value for name, value in about.items() if value}
    return Field(default, description=description, json_schema_extra=extra or None, **limits)


AnyModel = TypeVar("AnyModel", bound=BaseModel)
FOLDS_FILE = "folds_file"
"""The option that isn't part of what a corpus is: a run finds its folds elsewhere after its study was moved."""


def valid_examples_option(units: str) -> Any:
    """Return the option ``valid_examples: int | None`` of a ``DividedSection`` whose entries are ``units``."""
    return option(
        f"Number of {units} for valid, instead of a fraction, which may be none of a small corpus; null: by fractions.",
        None,
        ge=0,
        le=LARGEST_COUNT,
    )


def test_examples_option() -> Any:
    """Return the option ``test_examples: int | None`` of a ``DividedSection``."""
    return option("The same for test; null: none where valid_examples is given.", None, ge=0, le=LARGEST_COUNT)


def fold_option() -> Any:
    """Return the option ``fold: str | None`` of a ``DividedSection``."""
    return option(
        "REPEAT:NUMBER, a fold of a cross-validation, in place of the corpus's own splits; vaak crossval sets it.", None
    )


def folds_file_option() -> Any:
    """Return the option ``folds_file: Place | None`` of a ``DividedSection``."""
    return option("The file that contains the fold (folds.json of vaak crossval).", None, resume="free")


class DialectConfig(Section):
    """The dialect of tables; options that aren't given are detected from their content."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    delimiter: str | None = option("Separator of cells: one character, such as ';', or tab.", None)
    quotes: Quotes | None = option(
        "Meaning of quotation marks. cells: they enclose cells; lines: the same if they close in their line, else "
        "they are text; text: they are always text.",
        None,
    )
    encoding: str | None = option("The encoding, such as cp1252, latin-1 or utf-16.", None)

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = {"tab": "\t", "\\t": "\t"}.get(value or "", value)
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError(f"is {value!r}; expected one character, or tab")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            "\n".encode(value)
            return codecs.lookup(value).name
        except (LookupError, ValueError) as error:
            raise ValueError(f"is {value!r}, which is not a text encoding; try cp1252, latin-1 or utf-16") from error

    def given(self) -> GivenDialect:
        return GivenDialect(self.delimiter, self.quotes, self.encoding, can_be_said=True)


def dialect_option(*only_for: str) -> Any:
    """Return the option ``dialect: DialectConfig | None`` of a corpus whose types ``only_for`` read tables."""
    return option("Dialect of tables; null: detected from their content.", None, only_for=only_for)


def given_dialect(dialect: DialectConfig | None) -> GivenDialect:
    """Return the part of a table's dialect that an option sets."""
    return (DialectConfig() if dialect is None else dialect).given()


ADDED_LATER = ("fold", FOLDS_FILE, "valid_examples", "test_examples", "dialect")


class DividedSection(Section):
    """A corpus that can be divided into folds: one with a ``fold`` of a ``folds_file``."""

    @model_serializer(mode="wrap")
    def _as_before_there_were_folds(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out these keys if they have no value, so that data prepared by earlier versions stay recognised."""
        values: dict[str, Any] = handler(self)
        for name in ADDED_LATER:
            if values.get(name, "") is None:
                del values[name]
        return values


def with_fold(section: AnyModel, fold: str, file: str) -> AnyModel:
    """Return a section with this fold of a ``file`` in each corpus in it."""
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
