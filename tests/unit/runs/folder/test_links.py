"""A run whose files are links or pipes: its commands write and read nothing outside of it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.core.storage.links import LinkError, guard, make_link, open_in_place, require_own_files
from vaak.engine.callback import Callback, Run, StepReport
from vaak.runs.folder.directory import read_identity, require_own_run
from vaak.runs.start import train

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "theirs", symlinks=True))


def content(folder: Path) -> dict[str, bytes | str]:
    """What is in a folder, and when it was changed."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        read = path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = read + f"{about.st_mtime_ns} {about.st_nlink}".encode()
    return found


def replace_by_link(path: Path, outside: Path) -> Path:
    """Replace a file or a folder by a link to what was there, elsewhere."""
    aim = outside / path.name
    outside.mkdir(exist_ok=True)
    path.rename(aim)
    path.symlink_to(aim)
    return aim


def test_a_log_that_wandb_keeps_elsewhere_is_no_reason_to_refuse_a_run(run: Path, tmp_path: Path, vaak: Vaak):
    """W&B links to the log of its own service in each session; nothing is written through the link all the same."""
    (tmp_path / "core.log").write_text("theirs")
    logs = run / "wandb" / "offline-run-20261128_215430-a" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "core.log")
    require_own_run(run)
    code, _, errors = vaak("eval", run)
    assert code == 0, errors
    with pytest.raises(LinkError):
        open_in_place(logs / "debug-core.log", os.O_WRONLY)
    (logs / "more.log").symlink_to(tmp_path)
    with pytest.raises(LinkError, match=r"more\.log is a link"):
        require_own_run(run)


def test_every_file_and_folder_of_a_run_that_is_a_link_is_named(run: Path, tmp_path: Path):
    require_own_run(run)
    paths = sorted(path for path in run.rglob("*"))
    assert {"checkpoints", "config.yml", "metrics.jsonl", "train.log", ".lock", "sessions", "run.json", "prepared"} <= {
        path.name for path in paths
    }
    for number, path in enumerate(paths):
        aim = replace_by_link(path, tmp_path / f"outside{number}")
        if path.parts[-1] == "checkpoints":  # it says whose it is: a user moved it to another disk
            require_own_run(run)
        else:
            with pytest.raises(LinkError) as caught:
                require_own_run(run)
            assert str(caught.value).startswith(f"{path} is a link to {aim}: ")
            assert "\n" not in str(caught.value)
        path.unlink()
        aim.rename(path)
    require_own_run(run)


COMMANDS = [
    ("train", "{run}/config.yml", "run_dir={run}", "--resume", "auto", "training.epochs=9"),
    ("train", "{run}/config.yml", "run_dir={run}"),
    ("data", "preprocess", "{run}/config.yml", "run_dir={run}", "training.checkpoint.resume=auto"),
    ("eval", "{run}"),
    ("eval", "{run}/checkpoints/last"),
    ("predict", "{run}", "a"),
    ("generate", "{run}", "a"),
    ("export", "{run}", "--format", "hf", "--output", "{run}/export"),
    ("replay", "{run}", "--step", "3"),
    ("verify", "{run}"),
    ("bisect", "{run}", "{other}"),
    ("fork", "{run}", "--step", "3"),
    ("inspect", "{run}"),
    ("plot", "{run}"),
    ("report", "{run}"),
    ("report", "{run}", "{run}"),
    ("compare", "{run}", "{other}"),
    ("tune", "{run}"),
    ("tokenizer", "show", "{run}"),
    ("publish", "{run}", "me/it"),
    ("lm-eval", "{run}", "--tasks", "hindi"),
]


@pytest.mark.parametrize("name", ["metrics.jsonl", "pictures", "dangling", "fifo", "socket"])
def test_every_command_names_the_link_and_writes_nothing(
    vaak: Vaak, run: Path, tiny_run: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    outside = tmp_path / "outside"
    outside.mkdir()
    place = run / "pictures" if name == "pictures" else run / "train.log" if name != "metrics.jsonl" else run / name
    if name == "pictures":
        shutil.rmtree(place, ignore_errors=True)
        (outside / "pictures").mkdir()
        place.symlink_to(outside / "pictures")
    elif name == "metrics.jsonl":
        replace_by_link(place, outside)
    else:
        place.unlink()
        if name == "fifo":
            os.mkfifo(place)
        elif name == "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.path.relpath(place))
        else:
            place.symlink_to(outside / "new.log")
    before, inside = content(outside), content(run)
    for command in COMMANDS:
        code, _, err = vaak(*(part.format(run=run, other=tiny_run) for part in command))
        assert (code, err.count("\n"), str(place) in err) == (2, 1, True), (command, code, err)
    assert content(outside) == before
    assert content(run) == inside
    code, out, _ = vaak("runs", run.parent)
    assert (code, str(place) in caplog.text, "theirs" in out) == (0, True, False)


def test_a_listing_does_not_wait_for_a_pipe_in_a_checkpoint(vaak: Vaak, run: Path, caplog: pytest.LogCaptureFixture):
    (place := next(run.glob("checkpoints/step-*")) / "MANIFEST.json").unlink()
    os.mkfifo(place)
    code, out, _ = vaak("runs", run.parent)
    assert (code, f"{place} is a pipe" in caplog.text, "theirs" in out) == (0, True, False)


def test_our_own_links_stay(run: Path, tmp_path: Path, tiny_text: Path):
    """Checkpoints on another disk, data in a cache, and a folder of runs that is a link itself."""
    (tmp_path / "runs").symlink_to(run.parent, target_is_directory=True)
    require_own_run(tmp_path / "runs" / run.name)
    for name in ("checkpoints", "prepared"):
        path = run / name
        while path.is_symlink():
            path = path.resolve()
        about = files.read_json(run / "prepared" / "prepared.json")
        aim = tmp_path / ("disk" if name == "checkpoints" else about["fingerprint"])
        shutil.copytree(path, aim, symlinks=True)
        (run / name).unlink() if (run / name).is_symlink() else shutil.rmtree(run / name)
        (run / name).symlink_to(aim)
        require_own_run(run)
    files.write_text(run / "checkpoints" / "note", "written by way of our own link")
    assert (tmp_path / "disk" / "note").exists()
    (tmp_path / "disk" / "owner.json").write_text('{"id": "another", "directory": "/elsewhere"}')
    with pytest.raises(LinkError, match="checkpoints is a link to"):
        require_own_run(run)
    require_own_run(run, tmp_path / "disk")  # training.checkpoint.save_dir says so
    assert read_identity(run)["id"] != "another"


class ReplaceByLink(Callback):
    """Someone else replaces a file or a folder of the run while it trains."""

    def __init__(self, name: str, outside: Path) -> None:
        self.name, self.outside = name, outside

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step == 3:
            trainer.saving.writer.wait()  # type: ignore[attr-defined]
            (trainer.directory / self.name).rename(trainer.directory / f"{self.name}.moved")
            (trainer.directory / self.name).symlink_to(self.outside, target_is_directory=self.outside.is_dir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_what_becomes_a_link_during_a_run_is_not_written_through(tiny_text: Path, tmp_path: Path, name: str):
    """The run ends there; nothing outside changes, whoever shares the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    aim = outside if name == "checkpoints" else outside / "mine.txt"
    (outside / "mine.txt").write_text("mine\n")
    before = content(outside)
    config = tmp_path / "tiny.yml"
    config.write_text(
        f"task: lm\nmodel: {{d_model: 16, num_layers: 1, num_heads: 2}}\ndata: {{max_length: 16, "
        f"corpus: {{type: text, train: [{tiny_text}/train.txt], valid_fraction: 0.1}}, tokenizer: {{type: byte_level, "
        "vocab_size: 300}}\ntraining: {max_steps: 8, batch_size: 4, checkpoint: {interval: 2}}\n"
    )
    loaded = load([config], [f"run_dir={tmp_path / 'run'}", "name=run"])
    with pytest.raises(UserError, match=f"{name}( |/).*is a link to|{name} is a link"):
        train(loaded, (ReplaceByLink(name, aim),))
    assert content(outside) == before


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    yield tmp_path / "run"
    assert (tmp_path / "outside" / "file").read_text() == "mine"
    assert len(list((tmp_path / "outside").iterdir())) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_bytes(path, b"theirs"),
        lambda path: files.write_json(path, {}),
        lambda path: files.open_new(path).close(),
        lambda path: files.open_to_append(path).close(),
        lambda path: open_in_place(path, os.O_WRONLY | os.O_CREAT),
        lambda path: files.replacing(path).__enter__(),
    ],
)
def test_no_writer_follows_a_link(folder: Path, write: Callable[[Path], object]):
    guard(folder)
    (folder / "file").symlink_to(folder.parent / "outside" / "file")
    (folder / "new").symlink_to(folder.parent / "outside" / "new")
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(folder.parent / "outside")
    (folder / "within").mkdir()
    (folder / "alias").symlink_to("within")
    for name in ("file", "new", "sub/file", "sub/new", "alias/new"):
        with pytest.raises(LinkError, match=f"{name.partition('/')[0]} is a link to "):
            write(folder / name)
    os.mkfifo(folder / "pipe")
    with pytest.raises(LinkError, match="pipe is a pipe, a socket or a device"):
        write(folder / "pipe")
    make_link(folder / "ours", folder / "within")
    with open(folder / "within" / "made", "w"):
        write(folder / "ours" / "made")


def test_a_file_with_another_name_elsewhere_is_not_added_to(folder: Path):
    os.link(folder.parent / "outside" / "file", folder / "log")
    for write in (files.open_to_append, files.open_new):
        with pytest.raises(LinkError, match=r"hard link.*cp .*log .*log.copy && mv"):
            write(folder / "log")
    files.write_text(folder / "log", "ours")  # replaces the name alone
    assert (folder / "log").read_text() == "ours"


def test_a_link_within_the_run_may_be_read(folder: Path):
    (folder / "sub" / "newest").symlink_to("../sub")
    (folder / "sub" / "gone").symlink_to("nothing")
    require_own_files(folder)
    (folder / "sub" / "up").symlink_to("../../outside/file")
    with pytest.raises(LinkError, match=r"sub/up is a link to \.\./\.\./outside/file"):
        require_own_files(folder)
    require_own_files(folder, deep=False)


def test_a_downloaded_run_may_be_links_into_the_cache_of_the_hub(run: Path, tmp_path: Path):
    blobs = tmp_path / "models--me--it" / "blobs"
    snapshot = tmp_path / "models--me--it" / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    for number, path in enumerate(path for path in sorted(run.rglob("*")) if path.is_file()):
        target = snapshot / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blobs / str(number))
        target.symlink_to(os.path.relpath(blobs / str(number), target.parent))
    require_own_run(snapshot)
    (snapshot / "mine").symlink_to("/etc/hostname")
    with pytest.raises(LinkError, match="mine is a link"):
        require_own_run(snapshot)
