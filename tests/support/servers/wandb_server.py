"""A server that W&B's client takes for W&B: it keeps what is sent, so that tests see what users would see there."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """W&B's client drops its connections when it ends."""


class WandbServer:
    """Runs by their id: ``history`` (a row for each step, by its place in the file) and ``config``."""

    def __init__(self) -> None:
        self.histories: dict[str, dict[int, dict[str, Any]]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.server = QuietServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def rows(self, run: str) -> list[dict[str, Any]]:
        """The rows of a run in their order, without W&B's own times."""
        rows = [row for _, row in sorted(self.histories.get(run, {}).items())]
        return [{name: value for name, value in row.items() if name not in ("_timestamp", "_runtime")} for row in rows]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a POST."""
        query, variables = body.get("query", ""), body.get("variables") or {}
        if path.endswith("/file_stream"):
            self._take(path.split("/")[-2], body.get("files", {}))
        if "query RunResumeStatus" in query:
            return {"data": {"model": self._model(variables["name"])}}
        if "mutation UpsertBucket" in query:
            return {"data": {"upsertBucket": self._upsert(variables)}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def _take(self, run: str, files: dict[str, Any]) -> None:
        part = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        history = self.histories.setdefault(run, {})
        for place, line in enumerate(part["content"], part["offset"]):
            history[place] = json.loads(line)

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = variables["name"]
        is_new = run not in self.configs
        self.configs[run] = json.loads(variables.get("config") or "{}")
        project = {"id": "2", "name": "toy", "entity": {"id": "3", "name": "me"}}
        bucket = {"id": "1", "name": run, "displayName": run, "config": "{}", "project": project}
        return {"bucket": {**bucket, "historyLineCount": len(self.histories.get(run, {}))}, "inserted": is_new}

    def _model(self, run: str) -> dict[str, Any] | None:
        if run not in self.configs:
            return None
        lines = [json.dumps(row) for _, row in sorted(self.histories.get(run, {}).items())]
        bucket = {
            "id": "1",
            "name": run,
            "displayName": run,
            "summaryMetrics": lines[-1] if lines else "{}",
            "logLineCount": 0,
            "historyLineCount": len(lines),
            "eventsLineCount": 0,
            "historyTail": json.dumps(lines[-1:]),
            "eventsTail": "[]",
            "config": json.dumps(self.configs[run]),
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),  # the run has begun
        }
        return {"id": "2", "name": "toy", "entity": {"id": "3", "name": "me"}, "bucket": bucket}


def _handler(owner: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self._content()
            try:
                body = json.loads(content)
            except ValueError:  # telemetry
                body = {}
            self._send(owner.answer(self.path, body))

        def do_PUT(self) -> None:
            self._content()
            self._send({})

        def do_GET(self) -> None:
            self._send({})

        def _content(self) -> bytes:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

        def _send(self, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    return Handler
