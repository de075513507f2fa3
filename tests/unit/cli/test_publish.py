"""``vaak publish`` against a server that takes what the Hub's client sends."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tiny_runs

constants = pytest.importorskip("huggingface_hub.constants")
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


class Hub:
    """A Hub with one user, ``me``: repositories by name, each with its visibility and files; ``status`` of refusals."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, int] = {}
        self.tokens = set[str | None]()

    def answer(self, path: str, body: bytes, url: str) -> tuple[int, dict[str, Any]]:
        for part, status in self.refuse.items():
            if part in path:
                return status, {"error": f"refused with {status}"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.repositories:
                return 409, {"error": "You already created this model repo", "url": f"{url}/{name}"}
            self.repositories[name] = {
                "private": asked.get("private", asked.get("visibility") == "private"),
                "files": {},
            }
            return 200, {"url": f"{url}/{name}"}
        if "/preupload/" in path:
            files = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            return 200, {"files": [{**one, "shouldIgnore": False} for one in files]}
        if "/commit/" in path:
            name = "/".join(path.split("/")[3:5])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.repositories[name]["files"][value["path"]] = base64.b64decode(value["content"])
            return 200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"{url}/{name}/commit/{'0' * 40}"}
        return 200, {"errors": [], "warnings": [], "sha": "0" * 40, "siblings": [], "id": "me/tiny"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hub as the client finds it, with a token for it."""
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.tokens.add(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = found.answer(self.path.split("?")[0], body, url)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 - as the server names it

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_shows_what_it_would_send_and_sends_it_when_told(
    vaak: Any, tiny_run: Path, hub: Hub, caplog: pytest.LogCaptureFixture
):
    before = tiny_runs.hashes(tiny_run)
    code, out, err = vaak("publish", tiny_run, "me/tiny", "--license", "mit")
    assert (code, err, hub.tokens) == (0, "", set()), "nobody was asked"
    assert out.startswith("me/tiny (private)\n")
    assert out.endswith("Nothing was sent; --yes sends it.\n")
    assert "license: mit" in out
    assert 'model="me/tiny"' in out
    code, said, err = vaak("publish", tiny_run, "me/tiny", "--license", "mit", "--yes", "--json")
    assert (code, err) == (0, "")
    about = json.loads(said)
    (repository,) = hub.repositories.values()
    assert repository["private"] is True
    assert {name: len(content) for name, content in repository["files"].items()} == about["files"]
    assert repository["files"]["README.md"].decode() == about["card"]
    assert about["url"].endswith("/me/tiny")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(about["files"])
    assert hub.tokens - {None} == {f"Bearer {TOKEN}"}  # its check of the card's metadata has none
    assert TOKEN not in out + said + caplog.text
    assert tiny_runs.hashes(tiny_run) == before, "nothing was written into the run"


def test_an_exported_folder_is_sent_as_it_is_and_again_only_when_told(
    vaak: Any, tiny_run: Path, hub: Hub, tmp_path: Path
):
    assert vaak("export", tiny_run, "--output", tmp_path / "out")[0] == 0
    (tmp_path / "out" / "README.md").write_text("mine")
    code, out, _ = vaak("publish", tmp_path / "out", "tiny", "--yes", "--public")
    assert (code, out.splitlines()[0]) == (0, "tiny (public)")
    assert hub.repositories["me/tiny"]["private"] is False
    sent = hub.repositories["me/tiny"]["files"]
    assert sent == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    code, _, err = vaak("publish", tmp_path / "out", "tiny", "--yes")
    assert (code, err) == (2, "tiny is taken: choose another name, or give --update to add to it\n")
    (tmp_path / "out" / "README.md").write_text("new")
    assert vaak("publish", tmp_path / "out", "tiny", "--yes", "--update")[0] == 0
    assert sent["README.md"] == b"new"


@pytest.mark.parametrize(
    ("refuse", "said"),
    [
        (
            {"create": 401},
            "the Hugging Face Hub doesn't accept the token: run hf auth login, or set HF_TOKEN to a valid",
        ),
        ({"create": 403}, "the token has no right to write to other/tiny: make one that may"),
        ({"commit": 403}, "other/tiny is there, but the files weren't sent (the token has no right"),
        ({"create": 400}, "the Hugging Face Hub answered 400: "),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    refuse: dict[str, int], said: str, vaak: Any, tiny_run: Path, hub: Hub, caplog: pytest.LogCaptureFixture
):
    hub.refuse = refuse
    code, _, err = vaak("publish", tiny_run, "other/tiny", "--yes")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.startswith(said)
    assert TOKEN not in err + caplog.text


def test_without_a_token_or_a_network_it_says_so(
    vaak: Any, tiny_run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    code, _, err = vaak("publish", tiny_run, "me/tiny", "--yes")
    expected = "no token of the Hugging Face Hub: run hf auth login, or set HF_TOKEN to one that may write\n"
    assert (code, err, hub.tokens) == (2, expected, set())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, err = vaak("publish", tiny_run, "me/tiny", "--yes")
    assert (code, err.startswith("the Hugging Face Hub can't be reached: ")) == (2, True)


def test_an_adapter_of_a_folder_of_this_machine_is_not_sent(vaak: Any, tmp_path: Path):
    (tmp_path / "README.md").write_text("an adapter")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/me/base"}))
    code, _, err = vaak("publish", tmp_path, "me/tiny")
    assert code == 2
    assert err.startswith(
        "adapter_config.json names its base by a folder of this machine (/home/me/base), which others"
    )
