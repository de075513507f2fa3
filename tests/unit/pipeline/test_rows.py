"""Rows stored by key come back, whoever made them; missing ones are made, and no others."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numbered_rows import begin, row
from vaak.config.components import import_file
from vaak.core.errors import DataError, FormatError, UserError
from vaak.pipeline import rows
from vaak.pipeline.jobs import Jobs
from vaak.pipeline.rows import PipelineRowStore, completed, disk_bytes, make_rows

KEYS = [f"utterance {number}" for number in range(230)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(6,), (5, 3)])
def test_rows_come_back(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    made = make_rows(tmp_path / "rows", KEYS, partial(begin, shape), shape=shape, dtype=dtype)
    for store in (made, PipelineRowStore(tmp_path / "rows")):
        assert (store.keys, store.shape, len(store), store.num_shards) == (KEYS, shape, 230, 3)
        expected = np.stack([row(key, shape) for key in KEYS]).astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(store.row(KEYS[117]), expected[117])
        flat = expected.reshape(230, -1)
        np.testing.assert_array_equal(store.matrix(), flat)
        np.testing.assert_array_equal(np.concatenate(list(store.blocks())), flat)
        np.testing.assert_array_equal(store.columns(2, 5), flat[:, 2:5])
    on_disk = sum(path.stat().st_size for path in (tmp_path / "rows").glob("rows-*"))
    assert on_disk == disk_bytes(230, shape, dtype)


@pytest.mark.slow  # several processes make a pipeline in tests/process/test_pipeline_process.py
def test_processes_make_the_same_files_and_only_what_is_missing(tmp_path: Path) -> None:
    """They do without a user's file that was imported here and is gone."""
    (tmp_path / "mine.py").write_text("")
    import_file(tmp_path / "mine.py")
    (tmp_path / "mine.py").unlink()
    one = make_rows(tmp_path / "one", KEYS, partial(begin, (6,)), shape=(6,))
    shutil.copytree(one.folder, tmp_path / "two")
    (tmp_path / "two" / "rows-00001.bin").unlink()
    (tmp_path / "two" / "rows-00000.bin").write_bytes(one.path(0).read_bytes()[:-1])
    (tmp_path / "two" / ".rows-00002.bin.4711.tmp").write_bytes(b"half")
    journal = tmp_path / "journal"
    two = make_rows(tmp_path / "two", KEYS, partial(begin, (6,), journal), shape=(6,), jobs=Jobs(num_jobs=2))
    assert sorted(journal.read_text().splitlines()) == sorted(KEYS[:200])
    files = {path.name: path.read_bytes() for path in one.folder.iterdir()}
    assert {path.name: path.read_bytes() for path in two.folder.iterdir()} == files


def test_other_keys_in_a_folder_replace_what_was_there(tmp_path: Path) -> None:
    make_rows(tmp_path, KEYS, partial(begin, (6,)), shape=(6,))
    store = make_rows(tmp_path, KEYS[::-1][:50], partial(begin, (6,)), shape=(6,))
    assert len(list(tmp_path.glob("rows-*"))) == 1
    np.testing.assert_array_equal(store.row(KEYS[-1]), row(KEYS[-1], (6,)).astype(np.float32))


def test_large_rows_make_small_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SHARD_BYTES", 3 * disk_bytes(1, (6,), "float32") + 1)
    assert make_rows(tmp_path, KEYS[:10], partial(begin, (6,)), shape=(6,)).rows_per_shard == 3


def test_a_missing_row_warns_and_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_rows(tmp_path / "rows", KEYS[:150], partial(begin, (6,)), shape=(6,), dtype="float16")
    store.path(1).unlink()
    wanted = KEYS[90:170]
    with caplog.at_level(logging.WARNING, "vaak"):
        found = completed(store, wanted, tmp_path / "more", partial(begin, (6,)))
    assert caplog.messages == [f"{tmp_path}/rows lacks 70 of 80 rows, such as utterance 100: they are made"]
    for key in wanted:
        np.testing.assert_array_equal(found.row(key), row(key, (6,)).astype(np.float16).astype(np.float32))
    with pytest.raises(DataError, match="no row of utterance 229"):
        found.row(KEYS[229])
    caplog.clear()
    assert len(completed(store, KEYS[:50], tmp_path / "none", partial(begin, (6,))).stores) == 1
    assert not caplog.messages


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda keys: np.zeros((len(keys), 5)), r"utterance 0 and so on have the shape \(5,\); expected \(6,\)"),
        (lambda keys: np.full((len(keys), 6), 1e6), "utterance 0: its row isn't finite as float16; try float32"),
    ],
)
def test_rows_that_cannot_be_stored_are_named(made: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=error):
        make_rows(tmp_path, KEYS, lambda: made, shape=(6,), dtype="float16")
    assert not list(tmp_path.glob("rows-*"))


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the key utterance 3 occurs twice"):
        make_rows(tmp_path, [*KEYS, KEYS[3]], partial(begin, (6,)), shape=(6,))
    with pytest.raises(DataError, match=r"the rows are missing or incomplete .*run the stage that makes it"):
        PipelineRowStore(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"format": "vaak rows 9"}))
    with pytest.raises(FormatError, match="vaak rows 9"):
        PipelineRowStore(tmp_path)
    store = make_rows(tmp_path / "rows", KEYS, partial(begin, (6,)), shape=(6,))
    store.path(2).write_bytes(b"")
    assert KEYS[229] not in store
    with pytest.raises(DataError, match=r"rows-00002\.bin: this is missing or truncated"):
        store.matrix()
