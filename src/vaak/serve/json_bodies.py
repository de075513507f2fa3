"""Bodies that are JSON: read once, strictly, and checked by the type that their endpoint declares.

JSON leaves much open that would be taken as it comes, or be a fault of the server further on. Refused with status 400:
a key that is there twice, of which all but one would be lost; numbers that aren't finite; halves of surrogate pairs,
which no tokenizer reads; and values nested so deep that whatever walks through them would run out of stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vaak.serve.errors import ApiError, ClientLeftError

Some = TypeVar("Some", bound=BaseModel)
MOST_DEPTH = 64
"""Lists and objects within each other. A schema of a tool takes two or three for each level of its arguments."""
TRIED_TYPES = {"str", "int", "float", "bool", "dict", "list", "none"}
"""The names of types in pydantic's places of mistakes."""
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class FormRoute(APIRoute):
    """A route whose function takes ``(request, form)``: a form is described by FastAPI, and read by ``read_form``.

    FastAPI would read it twice, as JSON and into its own types, and look for dependencies that there aren't.
    """

    @cached_property
    def form(self) -> Any:
        """The type of its requests."""
        [body] = self.dependant.body_params
        return body.field_info.annotation

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises ApiError for one that isn't of the form."""
        response: Response = await self.endpoint(request, await read_form(request, self.form))
        return response

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.answer


async def read_form(request: Request, kind: type[Some]) -> Some:
    """Return the request's body as a ``kind`` of form. Raises ApiError for one that it isn't."""
    about = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        content = await request.body()
    except ClientDisconnect:
        raise ClientLeftError from None
    if not content or not (about == "application/json" or about.endswith("+json")):
        raise ApiError(400, "expected a JSON object as the body, with Content-Type: application/json")
    try:
        value = parse_json(content)
    except ValueError as error:
        raise ApiError(400, f"the body isn't JSON: {error}") from error
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise first_mistake(error.errors()) from error


def parse_json(content: bytes | str) -> Any:
    """Return a value from JSON. Raises ValueError, in words for whoever sent it.

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' is there twice
    """
    try:
        # Some clients begin with a byte order mark.
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        found = json.loads(
            text, object_pairs_hook=_require_unique, parse_constant=_refuse_constant, parse_float=_read_finite
        )
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep") from None
    except UnicodeDecodeError:
        raise ValueError("it isn't UTF-8") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        # Python's own limit of whole numbers says how to raise it.
        raise ValueError("a number has too many digits" if "digits" in str(error) else str(error)) from None
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _require_shallow(found)
    if _HALF_A_PAIR.search(text):
        _require_characters(found)
    return found


def _require_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} is there twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't a number that it has")


def _read_finite(written: str) -> float:
    found = float(written)
    if math.isinf(found):
        raise ValueError("a number is too large")
    return found


def _require_shallow(value: Any) -> None:
    """Raise ValueError for what is nested too deep."""
    inner = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        inner = [
            one
            for outer in inner
            for one in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(one, dict | list)
        ]
        if not inner:
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def _require_characters(value: Any) -> None:
    """Raise ValueError for half of a surrogate pair, which JSON can write."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which isn't a character") from None


def first_mistake(errors: Any) -> ApiError:
    """Return pydantic's first error as an error of the request, without repeating the request's content."""
    one = errors[0]
    kind, place = one["type"], [part for part in one["loc"] if part != "body"]
    if not place and kind in ("model_attributes_type", "model_type", "dict_type", "missing"):
        return ApiError(400, "expected a JSON object as the body, with Content-Type: application/json")
    # Where a field may have several types, such as a text or a list of them, pydantic also names the one that it tried.
    # Lists in forms are named so: include[].
    names = [part.removesuffix("[]") if isinstance(part, str) else part for part in place]
    parts = [part for part in names if isinstance(part, int) or (part.isidentifier() and part not in TRIED_TYPES)]
    field = ".".join(part for part in parts if isinstance(part, str)) or None
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    said = {"extra_forbidden": "unknown field; GET /docs lists the fields"}
    message = said.get(kind, one["msg"].removeprefix("Value error, "))
    if "UploadFile" in message:
        message = "expected a file"
    return ApiError(400, f"{where}: {message}" if where else message, param=field)
