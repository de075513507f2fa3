"""A helper of a pipeline carries out orders of the pipeline's own folder alone, whatever the network says."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.core.errors import UserError
from vaak.core.storage.files import write_json
from vaak.engine.distributed import ranks
from vaak.engine.distributed.launcher import own_place
from vaak.pipeline.jobs import ORDERS_FOLDER, help_rank_0


@pytest.mark.parametrize(("word", "is_rank_0s"), [("0123456789abcdef", True), ("/FOLDER", False), ("../..", False)])
def test_a_word_names_no_folder_elsewhere(
    word: str, is_rank_0s: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word, directory = word.replace("/FOLDER", str(tmp_path / "elsewhere")), tmp_path / "deep" / "pipeline"
    (directory / ORDERS_FOLDER).mkdir(parents=True)
    orders = directory / ORDERS_FOLDER / word
    orders.mkdir(exist_ok=True)
    write_json(orders / "000001.json", {"call": "os:mkdir", "values": {"path": str(tmp_path / "made")}})
    write_json(orders / "000002.json", {"end": False})
    monkeypatch.setattr(ranks, "common_word", lambda said: (word, own_place()))
    monkeypatch.setattr(ranks, "use_own_device", lambda: None)
    monkeypatch.setenv("RANK", "1")
    if is_rank_0s:
        help_rank_0(directory)
    else:
        with pytest.raises(UserError, match=r"^the message received as rank 0's isn't valid: another program sends"):
            help_rank_0(directory)
    assert (tmp_path / "made").exists() == is_rank_0s
