"""``vaak report --watch`` answers on this machine alone, with pages that it knows, and says when they have changed."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vaak.report.serve import Reports, list_page, make_server


@contextmanager
def serving(reports: Reports) -> Iterator[tuple[str, int]]:
    with make_server(reports) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            host, port = server.server_address[:2]
            yield str(host), int(port)
        finally:
            server.shutdown()
            thread.join()


def asked(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_run_is_served_and_its_version_changes_with_it(tiny_run: Path, tmp_path: Path):
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    with serving(Reports([run])) as (host, port):
        assert host == "127.0.0.1"
        status, page = asked(port, "/")
        assert status == 200
        assert "8 of 8" in page
        assert "data-live" in page
        assert "connect-src 'self'" in page
        version = asked(port, "/version")
        assert version == asked(port, "/version?1")
        record = {"kind": "step", "step": 9, "loss": 0.123456}
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        assert asked(port, "/version") != version
        assert "0.123456" in asked(port, "/")[1]


def test_nothing_else_is_answered(tiny_run: Path, tmp_path: Path):
    shutil.copytree(tiny_run, tmp_path / "runs" / "one")
    (tmp_path / "secret").mkdir()
    shutil.copy(tiny_run / "config.yml", tmp_path / "secret")
    with serving(Reports([], tmp_path / "runs")) as (_, port):
        assert asked(port, "/run/one/")[0] == 200
        assert asked(port, "/run/one/version")[0] == 200
        for path in ("/run/../secret/", "/run/..%2Fsecret/", "/run/%2e%2e%2fsecret/", "/secret/", "/run//", "/run/one"):
            assert asked(port, path)[0] == 404
        for path in ("/run/one/config.yml", "/run/one/../../secret/config.yml", "/run/%00/", "/report.html"):
            assert asked(port, path)[0] == 404
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", ""):
            assert asked(port, "/", host=host or " ")[0] == 403
        assert asked(port, "/", host=f"localhost:{port}")[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(port, "/", method)[0] == 501


def test_a_run_that_went_away_is_an_answer(tiny_run: Path, tmp_path: Path):
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    with serving(Reports([run])) as (_, port):
        shutil.rmtree(run)
        assert asked(port, "/")[0] == 500
        assert asked(port, "/version")[0] == 200


def test_a_list_of_runs(vaak, tiny_run: Path, tmp_path: Path):
    for name in ("a b", "c&<d>"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "a b" / "report.html").write_text("a page")
    assert vaak("report", "--runs-dir", tmp_path / "runs")[:2] == (0, f"{tmp_path}/runs/runs.html\n")
    page = (tmp_path / "runs" / "runs.html").read_text()
    assert '<a href="a%20b/report.html">a b</a>' in page
    assert "<td>c&amp;&lt;d&gt;</td>" in page  # which has no page
    assert 'data-name="c&amp;&lt;d&gt;" data-task="lm" data-state="finished"' in page
    assert page.count("data-filter=") == 4
    live = list_page(tmp_path / "runs", live=True)
    assert '<a href="run/c%26%3Cd%3E/">c&amp;&lt;d&gt;</a>' in live
    (tmp_path / "empty").mkdir()
    assert "have been trained" in list_page(tmp_path / "empty")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--runs-dir"),
        (("RUN", "--runs-dir", "RUN"), "--runs-dir"),
        (("RUN", "--watch", "-o", "page.html"), "--output"),
        (("gone", "--watch"), "gone is not a run directory"),
    ],
)
def test_what_can_not_be_served_is_a_line(vaak, tiny_run: Path, arguments: tuple[str, ...], says: str):
    code, out, said = vaak("report", *(str(tiny_run) if one == "RUN" else one for one in arguments))
    assert (code, out) == (2, "")
    assert says in said


def test_a_port_that_is_taken_is_a_line(tiny_run: Path, vaak):
    with serving(Reports([tiny_run])) as (_, port):
        code, _, said = vaak("report", tiny_run, "--watch", "--port", port)
        assert (code, f"127.0.0.1:{port}" in said) == (2, True)
