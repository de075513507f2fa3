"""Messages that only the processes of one run can have written: each carries a code, made with a secret key.

    rank 0       makes a key at each start, and writes it to RUN/.key-NAME, which only the run's user can read
    other ranks  learn the name by a broadcast, and read the file; when all have done so, rank 0 removes it
    a message    code (32 bytes), content; the code is keyed BLAKE2b of sender, receiver, number and content

The key never goes over the network. A message that is another process's, altered, sent again, sent back, or for another
rank has another code, and is refused before its content is used. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import re
import secrets
import stat
import struct
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from vaak.core.errors import UserError

KEY_BYTES = CODE_BYTES = 32
KEY_NAME = ".key-"


class Peers(Protocol):
    """The ranks, as far as messages between two of them need them."""

    rank: int
    world_size: int
    device: torch.device

    def send(self, content: bytes, rank: int) -> None: ...
    def receive(self, rank: int) -> bytes: ...


class SignedPeers:
    """``Peers`` whose messages have codes by a ``key``, which all of them have.

    Several threads may send. One thread at a time receives from a rank. Once it ``has_refused`` a message, this
    rank has to end without another word: what the others wait for is no longer known.
    """

    def __init__(self, peers: Peers, key: bytes) -> None:
        self.rank, self.world_size, self.device = peers.rank, peers.world_size, peers.device
        self.has_refused = False
        self._peers, self._key = peers, key
        self._num_sent, self._num_received = [0] * self.world_size, [0] * self.world_size
        self._sending = [Lock() for _ in range(self.world_size)]

    def send(self, content: bytes, rank: int) -> None:
        """Give one rank some bytes, when it receives them."""
        with self._sending[rank]:  # messages arrive in the order of their numbers
            code = self._code(self.rank, rank, self._num_sent[rank], content)
            self._num_sent[rank] += 1
            self._peers.send(code + content, rank)

    def receive(self, rank: int) -> memoryview:
        """The next bytes that a rank sent to this one. Raises UserError where something else arrives."""
        message = memoryview(self._peers.receive(rank))
        code, content = message[:CODE_BYTES], message[CODE_BYTES:]
        number = self._num_received[rank]
        if not hmac.compare_digest(code, self._code(rank, self.rank, number, content)):
            self.has_refused = True
            raise UserError(
                f"rank {self.rank} received a message that isn't message {number} of rank {rank}, and didn't use it: "
                "another program sends to the ports of this run, or alters what is sent; start the run again, with "
                "--resume auto, in a network that others can't reach (docs/security.md)"
            )
        self._num_received[rank] += 1
        return content

    def _code(self, sender: int, receiver: int, number: int, content: bytes | memoryview) -> bytes:
        code = blake2b(struct.pack("<QQQ", sender, receiver, number), digest_size=CODE_BYTES, key=self._key)
        code.update(content)
        return code.digest()


def leave_key(folder: Path) -> str:
    """Write a new key to a file of ``folder`` that only this user can read; return its name, which nobody can foresee.

    A key that a killed start left there is removed. Raises OSError.
    """
    remove_keys(folder)
    name = KEY_NAME + secrets.token_hex(8)
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
    return name


def remove_keys(folder: Path) -> None:
    """Remove the files of keys from a folder, as far as that is possible."""
    for path in folder.glob(f"{KEY_NAME}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def key_file(folder: Path, name: str) -> Path:
    """The file of a key. Raises UserError where ``name``, which came over the network, could be any other file."""
    if not re.fullmatch(re.escape(KEY_NAME) + "[0-9a-f]{16}", name):
        raise UserError(
            "what came as rank 0's name for a file isn't one: another program sends to the ports of this run; start it "
            "again in a network that others can't reach (docs/security.md)"
        )
    return folder / name


def read_key(path: Path) -> bytes:
    """Return the key in a file. Raises OSError where it isn't this user's alone, or can't be read."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"a file of its own belongs to user {status.st_uid} there")
        if hasattr(os, "geteuid") and stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, f"a file of mode 600 has {stat.S_IMODE(status.st_mode):03o} there")
        key = file.read(KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    if len(key) != KEY_BYTES:
        raise OSError(errno.EIO, "the file of a key isn't whole there")
    return key
