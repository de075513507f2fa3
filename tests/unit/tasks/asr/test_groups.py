"""Labels of groups: those that training never sees, that are one, or that don't exist, are named."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import tiny_listener
from vaak.config.load import load_layers
from vaak.core.errors import DataError
from vaak.tasks.asr.whisper.task import WhisperTask


@pytest.fixture
def prepared(corpus: Path, whisper_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    """``prepared(train, valid, **data)`` prepares utterances with these labels and gives the warnings."""

    def prepare(train: list[Any], valid: list[Any], **data: Any) -> list[str]:
        shutil.copytree(corpus, tmp_path / "data")
        for split, labels in {"train": train, "valid": valid, "test": []}.items():
            path = tmp_path / "data" / f"{split}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            given = [*labels, *["ALS"] * (len(lines) - len(labels))]
            path.write_text(
                "".join(json.dumps(line | {"accent": one}) + "\n" for line, one in zip(lines, given, strict=True))
            )
        values = {
            "task": "asr",
            "name": "groups",
            "run_dir": str(tmp_path / "run"),
            "model": {"base": str(whisper_folder)},
            "datasets": [tiny_listener.make_dataset_from(tmp_path / "data")],
            "data": {"group": "accent", "max_duration": tiny_listener.SECONDS, **data},
        }
        loaded: Any = load_layers([values])
        with caplog.at_level(logging.WARNING):
            WhisperTask(loaded.experiment, tmp_path / "run", loaded.folder).prepare()
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        return [line for line in said if "are in train, too" not in line]  # of these recordings, they are

    return prepare


def test_groups_that_train_lacks_are_named_with_the_nearest(prepared: Any) -> None:
    assert prepared(["PD"], ["Als ", None, 7]) == [
        "valid: train has no accent '7' (1 utterance), 'Als ' (1 utterance; did you mean 'ALS'?), "
        "'unlabelled' (1 utterance); it has 'ALS', 'PD'"
    ]


def test_groups_that_differ_by_case_or_spaces_and_utterances_without_one(prepared: Any) -> None:
    said = prepared(["als", "PD", None, ""], [])
    assert "train: accent 'ALS' and 'als' differ by case or spaces only" in said
    assert "train: 2 utterances have no accent; they are a group, unlabelled" in said


def test_groups_that_are_asked_for_and_do_not_exist(prepared: Any) -> None:
    expected = r"data.groups: no utterance of train has the accent 'P.D.'; did you mean 'PD'\?; it has 'ALS', 'PD'"
    with pytest.raises(DataError, match=expected):  # although the other one exists
        prepared(["PD"], [], groups=["ALS", "P.D."])


def test_only_groups_that_do_not_exist(prepared: Any) -> None:
    with pytest.raises(
        DataError, match=r"no utterance of train has the accent 'Als'; did you mean 'ALS'\?; it has 'ALS'"
    ):
        prepared([], [], groups=["Als"])
