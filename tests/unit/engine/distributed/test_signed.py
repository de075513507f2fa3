"""A message that isn't what a process of the run sent isn't unpickled. The key is this user's alone."""

from __future__ import annotations

import os
import pickle
import re
import secrets
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from shared_preparation import Planted
from vaak.core.errors import UserError
from vaak.core.process_pool import in_order
from vaak.engine.distributed.signed import CODE_BYTES, KEY_BYTES, SignedPeers, key_file, leave_key, read_key
from vaak.engine.distributed.tasks import SharedTasks, help_rank_0

KEY = bytes(range(KEY_BYTES))
LINE = r"^rank \d received a message that isn't message \d of rank \d, [^\n]*start the run again[^\n]*$"


class Wire:
    """A rank: what is put into ``coming`` is what it receives, whoever it is from; ``sent`` is what it sends."""

    device = torch.device("cpu")

    def __init__(self, rank: int) -> None:
        self.rank, self.world_size = rank, 3
        self.coming: SimpleQueue[bytes] = SimpleQueue()
        self.sent: SimpleQueue[bytes] = SimpleQueue()

    def send(self, content: bytes, rank: int) -> None:
        self.sent.put(content)

    def receive(self, rank: int) -> bytes:
        return self.coming.get()


def signed(content: bytes, sender: int, receiver: int, number: int = 0, key: bytes = KEY) -> bytes:
    """The message that ``sender`` sends to ``receiver`` after ``number`` others."""
    wire = Wire(sender)
    peers = SignedPeers(wire, key)
    for _ in range(number):
        peers.send(b"", receiver)
        wire.sent.get()
    peers.send(content, receiver)
    return wire.sent.get()


Attack = Callable[[bytes, int, int], bytes]
"""Gives what arrives at a rank as another's, of content, sender and receiver."""
ATTACKS: dict[str, Attack] = {
    "without a code": lambda content, sender, receiver: content,
    "nothing": lambda content, sender, receiver: b"",
    "an empty code": lambda content, sender, receiver: bytes(CODE_BYTES) + content,
    "another key": lambda content, sender, receiver: signed(content, sender, receiver, key=bytes(KEY_BYTES)),
    "altered": lambda content, sender, receiver: signed(b"", sender, receiver) + content,
    "truncated": lambda content, sender, receiver: signed(content, sender, receiver)[:-1],
    "a later one": lambda content, sender, receiver: signed(content, sender, receiver, number=1),
    "reflected": lambda content, sender, receiver: signed(content, receiver, sender),
    "another rank's": lambda content, sender, receiver: signed(content, 2, receiver),
    "for another rank": lambda content, sender, receiver: signed(content, sender, 2),
}


def nothing_to_do() -> Callable[[int], int]:
    return lambda number: number


def lead(wire: Wire) -> None:
    SharedTasks(SignedPeers(wire, KEY)).lead(lambda: [*in_order(nothing_to_do, range(3))])


def help_out(wire: Wire) -> None:
    help_rank_0(SignedPeers(wire, KEY))


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize(("rank", "sender", "work"), [(0, 1, lead), (1, 0, help_out)], ids=["rank 0", "rank 1"])
def test_what_others_send_is_refused_in_one_line_and_nothing_of_it_is_unpickled(
    rank: int, sender: int, work: Callable[[Wire], None], attack: Attack, tmp_path: Path
) -> None:
    wire, planted = Wire(rank), pickle.dumps(Planted(tmp_path / "planted"))
    wire.coming.put(attack(planted, sender, rank))
    with pytest.raises(UserError, match=LINE):
        work(wire)
    assert not (tmp_path / "planted").exists()


def test_a_message_of_the_run_is_used(tmp_path: Path) -> None:
    """So the test above would fail if a message weren't refused."""
    wire = Wire(1)
    wire.coming.put(signed(pickle.dumps(Planted(tmp_path / "planted")), 0, 1))
    help_out(wire)  # what was planted is None when it is unpickled: no more tasks
    assert (tmp_path / "planted").exists()


def test_a_message_is_used_once() -> None:
    wire = Wire(1)
    peers = SignedPeers(wire, KEY)
    for message in (first := signed(b"one", 0, 1), signed(b"two", 0, 1, number=1), first):
        wire.coming.put(message)
    assert [bytes(peers.receive(0)) for _ in range(2)] == [b"one", b"two"]
    assert not peers.has_refused
    with pytest.raises(UserError, match=LINE):
        peers.receive(0)
    assert peers.has_refused


def test_threads_send_in_the_order_of_the_numbers() -> None:
    wire, other = Wire(0), Wire(1)
    peers, receiver = SignedPeers(wire, KEY), SignedPeers(other, KEY)
    threads = [threading.Thread(target=lambda: [peers.send(b"x", 1) for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(1200):
        other.coming.put(wire.sent.get(timeout=10))
        receiver.receive(0)
    for thread in threads:
        thread.join()


def test_only_this_user_can_read_the_key_from_the_moment_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    def key_of(num_bytes: int) -> bytes:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
        return os.urandom(num_bytes)

    monkeypatch.setattr(secrets, "token_bytes", key_of)
    umask = os.umask(0)
    try:
        name = leave_key(tmp_path)
    finally:
        os.umask(umask)
    assert modes == [0o600] == [stat.S_IMODE((tmp_path / name).stat().st_mode)]
    assert len(read_key(key_file(tmp_path, name))) == KEY_BYTES


def test_each_key_is_another_and_replaces_one_that_was_left(tmp_path: Path) -> None:
    names = [leave_key(tmp_path)]
    keys = [read_key(tmp_path / names[0])]
    names.append(leave_key(tmp_path))
    keys.append(read_key(tmp_path / names[1]))
    assert len({*names}) == len({*keys}) == 2
    assert [path.name for path in tmp_path.iterdir()] == [names[1]]


def test_a_file_that_was_put_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "anyone's").touch()
    (tmp_path / ".key-0011223344556677").symlink_to(tmp_path / "anyone's")
    monkeypatch.setattr(secrets, "token_hex", lambda num_bytes: "0011223344556677")
    monkeypatch.setattr("vaak.engine.distributed.signed.remove_keys", lambda folder: None)
    with pytest.raises(FileExistsError):
        leave_key(tmp_path)
    assert (tmp_path / "anyone's").read_bytes() == b""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.chmod(0o640), "a file of mode 600 has 640 there"),
        (lambda path: path.write_bytes(KEY[1:]), "isn't whole"),
        (lambda path: path.write_bytes(KEY + b"0"), "isn't whole"),
        (lambda path: (path.rename(path.with_name("key")), path.symlink_to("key")), "[Ss]ymbolic|symlink"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "isn't whole"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["mode", "short", "long", "link", "pipe", "gone"],
)
def test_a_file_that_could_be_anothers_is_not_read_as_a_key(
    change: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / leave_key(tmp_path)
    change(path)
    with pytest.raises(OSError, match=said):
        read_key(path)


def test_a_key_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / leave_key(tmp_path)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=rf"belongs to user {owner} there"):
        read_key(path)


@pytest.mark.parametrize("name", ["/tmp/key", "../.key-0011223344556677", ".key-00112233/4556677", "run.json", ""])
def test_a_name_leads_to_no_other_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("what came as rank 0's name for a file isn't one")):
        key_file(tmp_path, name)
