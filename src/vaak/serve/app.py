"""The FastAPI application: routes, errors in OpenAI's form, and a page that documents them.

The specs of the served models' tasks declare which endpoints exist (``TaskSpec.endpoints``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIWebSocketRoute
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from vaak import __version__
from vaak.core.errors import UserError
from vaak.core.names import require_known
from vaak.report.html import data_table, document, element, section
from vaak.serve import answers, forms, hearing, realtime, speakers, writing
from vaak.serve.errors import FAULT, ApiError, ClientLeftError
from vaak.serve.json_bodies import FormRoute, first_mistake
from vaak.serve.models import Server
from vaak.serve.uploads import require_known_fields

CLIENT_LEFT = 499


@dataclass(frozen=True)
class Endpoint:
    """The path of an endpoint, and the function that answers it."""

    path: str
    answer: Callable[..., Any]
    model: type[forms.Form] | None = None
    """The type of its JSON answer; None if it answers with something else."""

    @property
    def reads_json(self) -> bool:
        """Whether requests are JSON; otherwise they are forms with a file."""
        return "form" in self.answer.__annotations__


ENDPOINTS = {
    "transcriptions": Endpoint("/v1/audio/transcriptions", hearing.transcribe, forms.Transcription),
    "translations": Endpoint("/v1/audio/translations", hearing.translate_speech, forms.Transcription),
    "speech": Endpoint("/v1/audio/speech", answers.speak),
    "completions": Endpoint("/v1/completions", writing.complete, forms.Completion),
    "chat": Endpoint("/v1/chat/completions", writing.chat, forms.ChatCompletion),
    "embeddings": Endpoint("/v1/embeddings", answers.embed, forms.EmbeddingsAnswer),
    "classify": Endpoint("/v1/classify", answers.classify, forms.ClassifyAnswer),
    "translate": Endpoint("/v1/translate", answers.translate, forms.TranslateAnswer),
    "diarize": Endpoint("/v1/diarize", speakers.diarize, forms.Diarization),
}
"""Endpoints by the names that specs declare."""
ABOUT = "Every error has the form of ErrorAnswer. POST /predict is answered by every model."


class App(FastAPI):
    """A FastAPI application whose JSON endpoints answer directly: FastAPI's layers take a third of a small request.

    FastAPI still handles everything else: the schema, other methods, other forms of the path.
    """

    direct: Mapping[str, FormRoute]

    def answer_directly(self) -> None:
        """Answer the routes added so far directly; FastAPI handles those added later."""
        self.direct = {one.path: one for one in self.routes if isinstance(one, FormRoute)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self.direct.get(scope["path"]) if is_post else None
        if route is None:
            await super().__call__(scope, receive, send)
            return
        scope |= {"app": self, "route": route}
        request = Request(scope, receive, send)
        try:
            response = await route.answer(request)
        except (*ERRORS,) as error:
            answer = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
            response = await answer(request, error)
        await response(scope, receive, send)


def make_app(server: Server) -> FastAPI:
    """Make the application of a server. Raises UserError if a task's spec declares an unknown endpoint."""
    app = App(
        title="vaak serve",
        version=__version__,
        description=ABOUT,
        # FastAPI's own page loads scripts from another server.
        docs_url=None,
        redoc_url=None,
        responses={
            400: {"model": forms.ErrorAnswer, "description": "The request can't be answered as it asks."},
            # Replaces FastAPI's 422 in the schema, which no endpoint here returns.
            "default": {"model": forms.ErrorAnswer, "description": "Any other error."},
        },
    )
    app.state.server = server
    # Starlette tries routes in order, so the most frequent ones come first.
    declared = _add_endpoints(app, server)
    add = app.add_api_route
    add("/health", health, response_model=forms.Health, summary="Whether the process runs.")
    add("/ready", health, response_model=forms.Health, summary="Whether requests are taken.", operation_id="ready")
    for path in ("/health", "/ready"):
        # As some monitors ask.
        add(path, health, methods=["HEAD"], include_in_schema=False)
    add("/metrics", metrics, response_class=PlainTextResponse, summary="Counts, for Prometheus.")
    add("/docs", docs, include_in_schema=False)
    add("/v1/models", list_models, response_model=forms.ModelList, summary="The models that are served.")
    add("/v1/models/{name:path}", get_model, response_model=forms.ModelAbout, summary="One model.")
    described: dict[str, Any] = {"response_model": forms.PredictAnswer, "openapi_extra": PREDICT}
    add("/predict", answers.predict, methods=["POST"], operation_id="predict", **described)
    if "transcriptions" in declared:
        app.add_api_websocket_route("/v1/realtime", realtime.transcribe_live)
    for kind, answer in {**ERRORS, Exception: answer_fault}.items():
        app.add_exception_handler(kind, answer)
    app.answer_directly()
    return app


def _add_endpoints(app: FastAPI, server: Server) -> list[str]:
    """Add the endpoints of the served models' tasks; return their names. Raises UserError for an unknown one."""
    models = server.models.values()
    answered = {name for one in models for name in one.endpoints}
    declared = [*answered, *(name for one in models for name in one.refused)]
    require_known(declared, ENDPOINTS, "a task's spec declares an unknown endpoint", error=UserError)
    for name, one in ENDPOINTS.items():
        if name in declared:
            # An endpoint that all models refuse only gives the reason, and isn't documented.
            options: dict[str, Any] = {"include_in_schema": name in answered}
            options |= {} if one.model is None else {"response_model": one.model}
            checks = [Depends(require_known_fields)]
            options |= {"route_class_override": FormRoute} if one.reads_json else {"dependencies": checks}
            app.router.add_api_route(one.path, one.answer, methods=["POST"], operation_id=name, **options)
    return declared


PREDICT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": forms.PredictRequest.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1},
                        "model": {"type": "string"},
                    },
                }
            },
        },
    }
}


async def health() -> dict[str, str]:
    return {"status": "ok"}


async def metrics(request: Request) -> Response:
    server: Server = request.app.state.server
    return PlainTextResponse(server.metrics.text(), media_type="text/plain; version=0.0.4")


async def list_models(request: Request) -> Response:
    server: Server = request.app.state.server
    return JSONResponse({"object": "list", "data": [one.to_json() for one in server.models.values()]})


async def get_model(request: Request, name: str) -> Response:
    server: Server = request.app.state.server
    return JSONResponse(server.choose("predict", name).to_json())


async def docs(request: Request) -> Response:
    """Return a page that documents all endpoints, without external scripts."""
    found = request.app.openapi()
    schemas = found["components"]["schemas"]
    parts = []
    for path, methods in found["paths"].items():
        for method, about in methods.items():
            rows: list[tuple[object, ...]] = [("field", "type", "required", "about")]
            for kind, content in about.get("requestBody", {}).get("content", {}).items():
                rows += [(kind, "", "", ""), *_field_rows(content["schema"], schemas)]
            text = about.get("description") or about.get("summary", "")
            table = [data_table(rows, f"Fields of {path}", folded=len(rows))] if len(rows) > 1 else []
            parts.append(section(f"{method.upper()} {path}", element("p", text), *table, identity=f"{method}-{path}"))
    # OpenAPI doesn't describe WebSockets.
    sockets = [one for one in request.app.routes if isinstance(one, APIWebSocketRoute)]
    parts += [
        section(f"WS {one.path}", element("p", one.endpoint.__doc__), identity=f"ws-{one.path}") for one in sockets
    ]
    body = [element("header", element("h1", found["info"]["title"]), element("p", ABOUT)), element("main", *parts)]
    return HTMLResponse(document("vaak serve", body))


def _field_rows(schema: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[object, ...]]:
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    required = schema.get("required", [])
    return [
        (name, _type_text(about), "yes" if name in required else "", about.get("description", ""))
        for name, about in schema.get("properties", {}).items()
    ]


def _type_text(about: dict[str, Any]) -> str:
    """Return the type of a field in words.

    >>> _type_text({"anyOf": [{"enum": ["a", "b"]}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'a, b | array of string'
    """
    if "anyOf" in about:
        return " | ".join(text for one in about["anyOf"] if (text := _type_text(one)) != "null")
    if "enum" in about or "const" in about:
        return ", ".join(map(str, about.get("enum", [about.get("const")])))
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if about.get("type") == "array":
        return f"array of {_type_text(about.get('items', {}))}"
    return str(about.get("type", "any"))


async def answer_error(request: Request, error: Any) -> Response:
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def answer_http_error(request: Request, error: Any) -> Response:
    """Answer FastAPI's own errors in our form, and those that the gate raised while it read a body as the gate's."""
    if isinstance(error.__cause__, ApiError):
        return await answer_error(request, error.__cause__)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"no such endpoint: {request.method} {request.url.path[:200]}; GET /docs lists those that are served"
    return await answer_error(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))


async def answer_invalid(request: Request, error: Any) -> Response:
    return await answer_error(request, first_mistake(error.errors()))


async def answer_user_error(request: Request, error: Any) -> Response:
    return await answer_error(request, ApiError(400, str(error)))


async def answer_fault(request: Request, error: Any) -> Response:
    """Answer a bug without details; the gate, which the error reaches, logs them."""
    return await answer_error(request, ApiError(500, FAULT))


async def answer_nobody(request: Request, error: Any) -> Response:
    return Response(status_code=CLIENT_LEFT)


ERRORS: dict[type[Exception], Callable[..., Any]] = {
    ApiError: answer_error,
    StarletteHTTPException: answer_http_error,
    RequestValidationError: answer_invalid,
    UserError: answer_user_error,
    ClientLeftError: answer_nobody,
}
"""What answers a request that raises an error; a fault of the server is any other."""
