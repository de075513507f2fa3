"""Errors of a request, in OpenAI's form."""

from __future__ import annotations

from typing import Any

TOO_LONG = "context_length_exceeded"
"""The code by which clients know that a text has more tokens than the model reads."""
OFFER_CUT = 'send "truncation": "auto" to have it cut'
FAULT = "this is a fault of the server; its log has more"


class ApiError(Exception):
    """A request that isn't answered as it asked; ``param`` is the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""
