"""The models that a server has open, and how a request finds its one and waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from starlette.requests import Request

from vaak.config.resolved import resolved_values
from vaak.config.tasks import load_name, value_at
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.runs.base import is_base
from vaak.runs.open_run import OpenedRun, open_run, resolve_run, select_task
from vaak.runs.use import find_spec, predict_inputs
from vaak.serve.batching import Batching, Job, Worker
from vaak.serve.errors import ApiError, ClientLeftError
from vaak.serve.gate import Limits
from vaak.serve.metrics import Metrics

UNWATCHED_SECONDS = 0.05
"""How long a request waits for its answer before the server looks whether its client has left."""


@dataclass(frozen=True)
class Served:
    """A model that is served under a ``name``; ``endpoints`` are what it answers besides ``/predict``.

    ``refused`` are those that its task declares and the run can't answer, each with the reason.
    """

    name: str
    opened: OpenedRun
    endpoints: tuple[str, ...]
    worker: Worker
    refused: Mapping[str, str] = field(default_factory=dict)
    created: int = 0
    """When its weights were written, in seconds since 1970: a run that trains on replaces and removes them."""

    @property
    def task(self) -> Any:
        return self.opened.task

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the prediction for each input, as ``vaak predict`` makes it."""
        return list(predict_inputs(self.task, self.opened.model, inputs))

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the answer to ``GET /v1/models``."""
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": "vaak"}
        return {**about, "task": str(self.opened.experiment.task), "endpoints": ["predict", *self.endpoints]}


@dataclass
class Server:
    """The served models by name, with their limits; ``folder`` holds uploads while they are in use."""

    models: dict[str, Served]
    limits: Limits
    metrics: Metrics
    folder: Path
    log_texts: bool = False

    def choose(self, endpoint: str, name: str | None) -> Served:
        """Return the model that a request means: by its name, or the only one that answers the endpoint.

        Raises ApiError if there is none, or several.
        """
        able = [one for one in self.models.values() if endpoint == "predict" or endpoint in one.endpoints]
        names = list_names([one.name for one in able]) if able else "none"
        if name is None:
            if len(able) == 1:
                return able[0]
            if not able:
                reasons = [_explain_refusal(one, endpoint) for one in self.models.values() if endpoint in one.refused]
                raise ApiError(400, "; ".join(reasons), param="model")
            raise ApiError(400, f"several models are served: set model to one of {names}", param="model")
        found = self.models.get(name)
        if found is None:
            message = f"no model {name[:200]!r} is served; this endpoint has {names}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if endpoint in found.refused:
            raise ApiError(400, _explain_refusal(found, endpoint), param="model")
        if found not in able:
            message = f"{name} is a model of task {found.opened.experiment.task}; this endpoint has {names}"
            raise ApiError(400, message, param="model")
        return found

    def close(self) -> None:
        """End the models' threads, after what they were asked."""
        for worker in {id(one.worker): one.worker for one in self.models.values()}.values():
            worker.close()


def open_model(path: Path, **how: Any) -> OpenedRun:
    """Return a run or a pretrained model, ready for use; an encoder of texts that isn't trained here has embeddings.

    ``how`` has the arguments of ``open_run``. Raises UserError for what can't be opened.
    """
    if is_base(path):
        _, about = load_name("vaak.tasks.pretrained:read_about")(str(path))
        if load_name("vaak.tasks.classification.spec:is_sentence_encoder")(about):
            opened: OpenedRun = load_name("vaak.tasks.classification.sentence_encoder:open_encoder")(
                path, how.get("device", "auto")
            )
            return opened
    return open_run(path, **how)


def serve_models(runs: Sequence[tuple[Path, OpenedRun]], metrics: Metrics, batching: Batching) -> dict[str, Served]:
    """Return what is served of runs and pretrained models, each with its path, by name.

    RUN/TASK names each task of a run of several. Raises UserError for two of one name.
    """
    found: dict[str, Served] = {}
    for path, run in runs:
        device = next((one.device for one in run.model.parameters()), torch.device("cpu"))
        name = name_model(path)
        worker = Worker(name, device, run.precision.autocast, metrics, batching)
        created = int(run.checkpoint.stat().st_mtime) if run.checkpoint.exists() else 0
        for part in run.task.inner_tasks or (None,):
            own = run if part is None else select_task(run, part)
            known = name if part is None else f"{name}/{part}"
            if known in found:
                raise UserError(f"two models are called {known}, by the names of their folders: rename one")
            declared, refused = find_endpoints(own), own.task.refused_endpoints()
            answered = tuple(one for one in declared if one not in refused)
            reasons = {one: refused[one] for one in declared if one in refused}
            found[known] = Served(known, own, answered, worker, reasons, created)
    return found


def _explain_refusal(served: Served, endpoint: str) -> str:
    return f"{served.name} doesn't answer this endpoint: {served.refused[endpoint]}"


def name_model(path: Path) -> str:
    """Return the name of a run's folder, or that of a pretrained model: its folder's, or its name on the Hub."""
    if not is_base(path):
        return resolve_run(path).name
    return path.expanduser().resolve().name if path.expanduser().exists() else str(path)


def require_names(paths: Sequence[Path]) -> None:
    """Raise UserError for two models of one name, before the seconds that opening them takes."""
    named: dict[str, Path] = {}
    for path in paths:
        if (other := named.setdefault(name := name_model(path), path)) is not path:
            twice = f"{path} is given twice: leave one out" if other == path else _explain_clash(name, other, path)
            raise UserError(twice)


def _explain_clash(name: str, *paths: Path) -> str:
    where = " and ".join(map(str, paths))
    return f"{where} are both called {name}, by the names of their folders: rename one"


def find_endpoints(opened: OpenedRun) -> tuple[str, ...]:
    """Return what runs of a task with these options answer, as its spec says."""
    return tuple(find_spec(opened.task).endpoints(lambda key: value_at(resolved_values(opened.experiment), key)))


async def compute(request: Request, served: Served, job: Job) -> list[Any]:
    """Return the results of a job. Raises what went wrong, and ClientLeftError once nobody waits for it."""
    served.worker.submit(job)
    answer = asyncio.wrap_future(job.future)
    watch = _Watch(request, answer)
    # A task costs more than many a request takes.
    begins = answer.get_loop().call_later(UNWATCHED_SECONDS, watch.begin)
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.has_left:
            raise ClientLeftError from None
        raise
    finally:
        job.has_left = True
        begins.cancel()
        watch.end()


class _Watch:
    """Cancels an answer once its client has left."""

    def __init__(self, request: Request, answer: asyncio.Future[Any]) -> None:
        self.request, self.answer = request, answer
        self.leaving: asyncio.Task[None] | None = None

    @property
    def has_left(self) -> bool:
        return self.leaving is not None and self.leaving.done()

    def begin(self) -> None:
        self.leaving = asyncio.ensure_future(_wait_for_leaving(self.request))
        self.leaving.add_done_callback(lambda _: self.answer.cancel())

    def end(self) -> None:
        if self.leaving is not None:
            self.leaving.cancel()


async def stream(served: Served, make: Callable[[Callable[[Any], None]], Job]) -> AsyncIterator[Any]:
    """Yield what a job tells as it goes, by the function with which ``make`` makes it.

    Ends with the job; raises what went wrong with it. Where nobody reads on, the job is dropped.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Queue[Any]()
    # A thread, for making a job may read a recording.
    job = await asyncio.to_thread(make, lambda piece: _put(loop, told, piece))
    job.keeps_results = False
    job.future.add_done_callback(lambda _: _put(loop, told, job))
    served.worker.submit(job)
    try:
        while (piece := await told.get()) is not job:
            yield piece
        job.future.result()
    finally:
        job.has_left = True


def _put(loop: asyncio.AbstractEventLoop, told: asyncio.Queue[Any], piece: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(told.put_nowait, piece)


async def _wait_for_leaving(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextmanager
def naming_fields(param: str | None = None) -> Iterator[None]:
    """Within this context, an error that the user can fix is one of the request: status 400."""
    try:
        yield
    except UserError as error:
        raise ApiError(400, str(error), param=param) from error
