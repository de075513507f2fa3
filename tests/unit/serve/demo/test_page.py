"""Who gets the page, and what it may load; no path or URL of a request is opened."""

from __future__ import annotations

import base64
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from served_runs import serving

pytest.importorskip("gradio", reason="the extra demo isn't installed")
pytestmark = pytest.mark.slow  # it starts gradio
TOKEN = "a secret"


@pytest.fixture(scope="module")
def client(commands, run_of, tmp_path_factory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("page")
    with serving(commands, folder, run_of("asr").folder, command="demo", VAAK_TOKEN=TOKEN) as page:
        with httpx.Client(base_url=page.address, timeout=60) as found:
            yield found
        page.command.send(signal.SIGTERM)
        ended = page.command.wait()
        assert ended.status == 0, ended.errors
        assert TOKEN not in ended.errors


def basic(password: str, name: str = "anyone") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_a_browser_asks_for_the_token(client: httpx.Client):
    for path in ("/", "/config", "/gradio_api/info", "/theme.css"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert client.get(path, headers=basic("another")).status_code == 401
        assert client.get(path, headers={"Authorization": "Basic ?"}).status_code == 401
    assert client.get("/", headers=basic(TOKEN)).status_code == 200
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    stranger = {**basic(TOKEN), "Origin": "https://elsewhere.example"}
    assert client.post("/gradio_api/queue/join", json={}, headers=stranger).status_code == 403


def test_the_page_loads_and_tells_nothing_elsewhere(client: httpx.Client):
    page = client.get("/", headers=basic(TOKEN))
    policy = page.headers["content-security-policy"]
    assert "default-src 'self' data: blob:" in policy
    assert "http" not in policy
    config = client.get("/config", headers=basic(TOKEN)).json()
    assert config["analytics_enabled"] is False
    assert "fonts.googleapis" not in page.text
    assert [one for one in config["dependencies"] if one["api_visibility"] != "private"] == []


def join(client: httpx.Client, path: str) -> str:
    """Ask for a transcript of a file that the request names, and return what the page is told."""
    config = client.get("/config", headers=basic(TOKEN)).json()
    number = next(one["id"] for one in config["dependencies"] if len(one["inputs"]) == 4)
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    asked = {"data": [file, False, "not asked", ""], "fn_index": number, "session_hash": "s"}
    assert client.post("/gradio_api/queue/join", json=asked, headers=basic(TOKEN)).status_code == 200
    told = []
    with client.stream("GET", "/gradio_api/queue/data?session_hash=s", headers=basic(TOKEN)) as answer:
        for line in answer.iter_lines():
            told.append(line)
            if "process_completed" in line:
                break
    return "\n".join(told)


def test_no_path_or_url_of_a_request_is_opened(client: httpx.Client, run_of):
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: asked.append(str(listening.accept())), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/talk.wav"
        assert '"success":false' in join(client, address)
        public = "https://example.com/talk.wav"
        told = join(client, public)
        assert '"success":false' in told
        assert "no URL is opened" in told
    assert asked == []
    for path in (str(run_of("asr").inputs[0]), "/etc/passwd"):
        assert '"success":false' in join(client, path)
        assert client.get(f"/gradio_api/file={path}", headers=basic(TOKEN)).status_code in (403, 404)
    files = {"files": ("talk.wav", Path(run_of("asr").inputs[0]).read_bytes())}
    (sent,) = client.post("/gradio_api/upload", files=files, headers=basic(TOKEN)).json()
    assert '"success":true' in join(client, sent)
