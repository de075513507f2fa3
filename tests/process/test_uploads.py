"""Runs kept in an S3 bucket: killed, cut off, damaged there, and resumed on another machine with the same bits.

Against a real server of S3's protocol, moto's, which is not among the test requirements (it brings 40 packages):
``pip install 'moto[server]' s3fs``.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import TOTAL_STEPS, Command, Commands, assert_same_run, checkpoints_of, free_port, steps_of, wait_until
from vaak.core.errors import DataError, UserError
from vaak.core.storage.url_cache import fetch_matches
from vaak.engine.checkpoint.uploads import RemoteCheckpoints

s3fs = pytest.importorskip("s3fs", reason="requires the extra cloud")
pytest.importorskip("moto.server", reason="requires moto[server], a server of S3's protocol")
pytestmark = pytest.mark.slow
FINAL = f"step-{TOTAL_STEPS:08d}"
KEY = "AKIDTESTTESTTEST"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"


class Server:
    """A server of S3's protocol in a separate process, which may be stopped and started again, empty."""

    def __init__(self, page: int = 1000) -> None:
        """``page`` is the number of files that one answer of a listing has."""
        self.page, self.port = page, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.start()

    def start(self) -> None:
        program = "from moto.server import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(self.port)],
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(self.page)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/moto-api/data.json", timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def system(self) -> Any:
        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.address, use_listings_cache=False, skip_instance_cache=True
        )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def bucket(server: Server, request: pytest.FixtureRequest) -> str:
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    server.system().mkdir(name)
    return name


@pytest.fixture
def begin(start: Callable[..., Command], server: Server, bucket: str) -> Callable[..., Command]:
    """``begin(run, *overrides)`` starts the tiny job with its checkpoints uploaded to the bucket."""

    def begin_training(run: Path, *overrides: str, **options: Any) -> Command:
        run.parent.mkdir(exist_ok=True)
        upload_to = f"training.checkpoint.upload_to=s3://{bucket}/runs/tiny"
        return start(run, upload_to, *overrides, environment=server.environment, **options)

    return begin_training


@pytest.fixture
def paged() -> Iterator[Server]:
    """A server whose listings have pages, as those of more than 1,000 files have elsewhere."""
    made = Server(page=3)
    yield made
    made.stop()


@pytest.fixture
def at_server(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """This process has the server's address and its key."""
    for name, value in {**server.environment, "VAAK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield monkeypatch
    s3fs.S3FileSystem.clear_instance_cache()


ODD_NAMES = (
    *("a b.txt", "a+b.txt", "a#1.txt", "राम.txt", "a%20b.txt", "x&y=z.txt", "it's.txt", "100%.txt", "naïve ünï.txt"),
    *("semi;colon,.txt", "q?.txt", "take 1 [final].txt", "at@.txt", "co:lon.txt"),
)


def test_any_name_in_a_bucket_is_read_alone_and_by_a_pattern(paged: Server, at_server: pytest.MonkeyPatch):
    at_server.setenv("AWS_ENDPOINT_URL", paged.address)
    system, bucket = paged.system(), "odd-names"
    system.mkdir(bucket)
    for name in ODD_NAMES:
        system.pipe_file(f"{bucket}/odd/{name}", name.encode())
    for number in range(20):
        system.pipe_file(f"{bucket}/many/{number:02d}.txt", str(number).encode())
    system.pipe_file(f"{bucket}/many/deep/x.txt", b"x")
    for name in ODD_NAMES:
        [file] = fetch_matches(f"s3://{bucket}/odd/{name}", "data.corpus.train")
        assert (file.name, file.read_text()) == (name, name)
    together = fetch_matches(f"s3://{bucket}/odd/*.txt", "data.corpus.train")
    assert sorted(file.read_text() for file in together) == sorted(ODD_NAMES)
    for pattern, number in (("many/*.txt", 20), ("many/**/*.txt", 21), ("*/0?.txt", 10)):
        assert len(fetch_matches(f"s3://{bucket}/{pattern}", "data.corpus.train")) == number
    for url in (f"s3://{bucket}/many", f"s3://{bucket}/many/", f"s3://{bucket}"):
        with pytest.raises(DataError, match="is a folder; give its files, for example"):
            fetch_matches(url, "data.corpus.train")


def test_data_without_credentials_are_a_line(server: Server, bucket: str, at_server: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        at_server.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        at_server.setenv(name, "/nowhere")
    at_server.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for url in (f"s3://{bucket}/a.txt", f"s3://{bucket}/*.txt"):
        with pytest.raises(UserError, match="no valid credentials") as raised:
            fetch_matches(url, "data.corpus.train")
        assert "\n" not in str(raised.value)


def test_parts_that_a_killed_process_has_left_are_removed(
    server: Server, bucket: str, at_server: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """S3 charges for them, and lists them nowhere. Those of other folders may be of uploads that go on."""
    system = server.system()
    for key in ("runs/tiny/checkpoints/step-1/model", "runs/tiny/b c", "runs/tiny2/model", "else"):
        begun = system.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        part = {"UploadId": begun["UploadId"], "PartNumber": 1, "Body": b"weights"}
        system.call_s3("upload_part", Bucket=bucket, Key=key, **part)
    with caplog.at_level(logging.INFO, "vaak"):
        RemoteCheckpoints(f"s3://{bucket}/runs/tiny").claim()
    assert "2 unfinished upload(s) of a killed process were removed there" in caplog.text
    left = system.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]
    assert sorted(one["Key"] for one in left) == ["else", "runs/tiny2/model"]


def whole_there(server: Server, bucket: str) -> list[int]:
    """The steps whose checkpoints have a manifest there."""
    found = server.system().glob(f"{bucket}/runs/tiny/checkpoints/step-*/MANIFEST.json")
    return sorted(int(path.split("/")[-2].removeprefix("step-")) for path in found)


@pytest.fixture
def kill_after(
    begin: Callable[..., Command], server: Server, bucket: str, tmp_path: Path
) -> Callable[[int], list[int]]:
    """``kill_after(number)`` trains, is killed once ``number`` checkpoints are at the URL, and loses its machine.

    It returns the steps that are there.
    """

    def train_and_kill(number: int) -> list[int]:
        command = begin(tmp_path / "first" / "run")
        assert wait_until(lambda: len(whole_there(server, bucket)) >= number, command), command.said
        command.send(signal.SIGKILL, to_all=True)
        command.wait()
        shutil.rmtree(tmp_path / "first")
        return whole_there(server, bucket)

    return train_and_kill


def require_ended(command: Command) -> str:
    """Return the output of a command, which must have succeeded."""
    ended = command.wait(300)
    assert ended.status == 0, ended.errors
    return ended.output + ended.errors


def test_a_run_killed_amid_uploads_is_resumed_on_another_machine_with_the_same_bits(
    begin: Callable[..., Command],
    kill_after: Callable[[int], list[int]],
    server: Server,
    bucket: str,
    reference: Path,
    tmp_path: Path,
):
    there = kill_after(2)
    assert there[-1] < TOTAL_STEPS
    said = require_ended(begin(tmp_path / "second" / "run"))
    assert f"step-{there[-1]:08d}, " in said
    assert f"was downloaded from s3://{bucket}/runs/tiny and verified" in said
    assert_same_run(tmp_path / "second" / "run", reference)
    # On a third machine nothing is left to do.
    shutil.rmtree(tmp_path / "second")
    said += require_ended(begin(tmp_path / "third" / "run"))
    kept = [int(name.removeprefix("step-")) for name in checkpoints_of(reference)]
    assert whole_there(server, bucket) == kept
    for file in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (run / "checkpoints" / FINAL / file for run in (tmp_path / "third/run", reference))
        assert ours.read_bytes() == theirs.read_bytes()
    said += "".join(path.read_text() for path in (tmp_path / "third").rglob("*.log"))
    assert (SECRET in said, KEY in said) == (False, False)


def test_a_truncated_object_is_found_and_the_one_before_is_resumed(
    begin: Callable[..., Command],
    kill_after: Callable[[int], list[int]],
    server: Server,
    bucket: str,
    reference: Path,
    tmp_path: Path,
):
    *_, before, newest = kill_after(2)
    system, place = server.system(), f"{bucket}/runs/tiny/checkpoints/step-{newest:08d}/model.safetensors"
    system.pipe_file(place, system.cat_file(place)[:-100])
    said = require_ended(begin(tmp_path / "second" / "run"))
    assert f"step-{newest:08d} is damaged or incomplete: it doesn't count" in said
    assert f"step-{before:08d}, " in said
    assert_same_run(tmp_path / "second" / "run", reference)


def test_a_server_that_goes_away_costs_lines_and_not_the_run(
    begin: Callable[..., Command], server: Server, bucket: str, reference: Path, tmp_path: Path
):
    command = begin(tmp_path / "run")
    assert wait_until(lambda: bool(whole_there(server, bucket)), command)
    server.stop()
    try:
        said = require_ended(command)
    finally:
        server.start()
    assert_same_run(tmp_path / "run", reference)
    assert "training continues" in said
    assert "upload(s) failed" in said
    assert "Traceback" not in said


def test_what_can_not_work_is_a_line_before_the_first_step(
    begin: Callable[..., Command], start: Callable[..., Command], server: Server, bucket: str, tmp_path: Path
):
    require_ended(begin(tmp_path / "run", "training.max_steps=3"))
    own = f"training.checkpoint.upload_to=s3://{bucket}/runs/tiny"
    unreachable = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    unknown = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/"}
    cases: list[tuple[str, tuple[str, ...], dict[str, str], str]] = [
        ("other", ("name=other", own), {}, "has the run tiny, and this one is other: give another training.checkpoint"),
        ("fresh", (own, "training.checkpoint.resume=null"), {}, "already holds a run"),
        ("third", ("training.checkpoint.upload_to=s3://no-such-bucket/run",), {}, "no such bucket"),
        ("fourth", (f"training.checkpoint.upload_to=s3://{bucket}/runs",), {}, "has files, and no run"),
        ("run", (own,), unreachable, "or train without (training.checkpoint.upload_to=null)"),
        ("nobody", (own,), unknown, "no valid credentials"),
    ]
    for name, overrides, environment, problem in cases:
        folder = tmp_path if name == "run" else tmp_path / name
        folder.mkdir(exist_ok=True)
        ended = start(folder / "run", *overrides, environment={**server.environment, **environment}).wait(300)
        assert (ended.status, problem in ended.errors) == (2, True), (name, ended.errors)
        assert "Traceback" not in ended.errors
        assert name == "run" or not (folder / "run" / "metrics.jsonl").exists()
    assert steps_of(tmp_path / "run") == [1, 2, 3]


def test_recordings_in_a_bucket_are_trained_on_as_those_here(
    commands: Commands, jobs: Path, server: Server, bucket: str, tmp_path: Path
):
    """The same bits; named by the corpus' folder, and by the manifest's own addresses below it."""
    system, here, there = server.system(), jobs / "words", f"s3://{bucket}/words"
    for file in here.iterdir():
        if file.is_file() and not file.name.startswith("."):
            system.pipe_file(f"{bucket}/words/{file.name}", file.read_bytes())
    addressed = (here / "train.jsonl").read_text().replace('"audio": "', f'"audio": "{there}/')
    system.pipe_file(f"{bucket}/words/addressed.jsonl", addressed.encode())
    text = (jobs / "ctc.yml").read_text()
    found: list[bytes] = []
    for name, train, folder in (("a", "train", here), ("b", "train", there), ("c", "addressed", there)):
        dataset = f"{{name: tones, type: json, corpus_dir: '{folder}', train: [{train}.jsonl], valid: [valid.jsonl]}}"
        job = tmp_path / f"{name}.yml"
        job.write_text(
            re.sub(r"(?m)^datasets: .*$", f"datasets: [{dataset}]", text).replace("max_steps: 21", "max_steps: 6")
        )
        environment = {**server.environment, "VAAK_CACHE": str(tmp_path / "cache")}
        said = require_ended(commands.start(["train", job, f"run_dir={tmp_path / name}"], tmp_path, environment))
        assert SECRET not in said
        found.append((tmp_path / name / "checkpoints" / "step-00000006" / "model.safetensors").read_bytes())
    assert found[0] == found[1] == found[2]
