"""Reads what W&B writes on disk: the file that ``wandb sync`` sends."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, FILE_HEADER, HEADER = 32768, 7, 7
WHOLE, LAST = 1, 4


def messages(path: Path) -> Iterator[Any]:
    """The messages of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # protobuf makes it at run time

    content, at, message = path.read_bytes(), FILE_HEADER, b""
    assert content[:4] == b":W&B"
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        message += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(message)
            yield record
            message = b""


def history_of(path: Path) -> list[dict[str, Any]]:
    """The rows of metrics in a .wandb file, without W&B's own times."""
    histories = [message.history for message in messages(path) if message.WhichOneof("record_type") == "history"]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in histories
    ]
    return [{name: value for name, value in row.items() if name not in ("_timestamp", "_runtime")} for row in rows]


def run_of(path: Path) -> Any:
    """The run that a .wandb file describes: id, project, config."""
    return next(message.run for message in messages(path) if message.WhichOneof("record_type") == "run")


def artifacts_of(path: Path) -> list[Any]:
    return [message.artifact for message in messages(path) if message.WhichOneof("record_type") == "artifact"]
