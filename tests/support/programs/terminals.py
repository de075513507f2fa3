"""Commands on a terminal of a given width: reads their output as it comes, sends keys, takes their processor time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

import vaak

VAAK = [sys.executable, "-c", "from vaak.cli.main import main; main()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(vaak.__file__).parents[1]), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
ENVIRONMENT.pop("COLUMNS", None)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OnTerminal:
    """``vaak`` with some arguments whose streams are a terminal; left, it is killed if it still runs."""

    def __init__(self, arguments: list[str], folder: Path, columns: int = 100) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [*VAAK, *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
            stdin=follower,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)
        self.said = ""

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._leader)

    def read(self, words: str = "", seconds: float = 300) -> bool:
        """Read until ``words`` (or anything) were written; False where it ended, or took longer, without them."""
        deadline, begun = time.monotonic() + seconds, len(self.said)
        while (words not in self.said[begun:]) if words else len(self.said) == begun:
            ready, _, _ = select.select([self._leader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            try:
                piece = os.read(self._leader, 65536)
            except OSError:  # the end of a terminal
                piece = b""
            if not piece:
                return False
            self.said += piece.decode(errors="replace")
        return True

    def processor_seconds(self) -> float:
        """What the process has used so far, its own and the system's; a busy machine adds nothing."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, seconds: float = 120) -> int:
        """Read to the end; return the exit code."""
        while self.read(seconds=seconds):
            pass
        return self.process.wait(seconds)

    def lines(self) -> list[str]:
        """All that was written on any line, without colours and movements of the cursor."""
        return [CONTROL.sub("", line) for line in re.split(r"[\r\n]", self.said)]
