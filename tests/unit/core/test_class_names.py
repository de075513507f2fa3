"""Classes of Hugging Face sets are read by their names, from datasets and from Parquet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.core.class_names import class_names_in
from vaak.core.errors import DataError
from vaak.text.corpora.labelled import LabelledCorpus

datasets: Any = pytest.importorskip("datasets")

TEXTS = ["so it is", "not so", "so", "no more"]
NAMES = ["negative", "positive"]
TOPICS = ["food", "a | b", "travel"]


def made(label: list[int]) -> Any:
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=NAMES),
            "topics": datasets.Sequence(datasets.ClassLabel(names=TOPICS)),
            "stars": datasets.Value("int64"),
        }
    )
    rows = {"text": TEXTS, "label": label, "topics": [[0], [1, 2], [], [2]], "stars": [1, 2, 3, 4]}
    return datasets.Dataset.from_dict(rows, features=features)


def labels_in(**more: Any) -> list[Any]:
    values: dict[str, Any] = {
        "type": "files", "train": (), "valid": (), "test": (), "text_column": "text", "label_columns": ("label",),
        "multi_label": False, "out_of_scope": (), "stratify": False, "seed": 0, "deduplicate": True, "name": None,
        "subset": None, "train_fraction": 1.0, "valid_fraction": 0.0, "on_invalid_utf8": "fail", "num_sentences": 1,
        **more,
    }  # fmt: skip
    options: Any = SimpleNamespace(**values)
    return [row.labels for row in LabelledCorpus(options).source.read("train")]


@pytest.fixture(params=["parquet", "saved", "of a folder"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Options of a corpus with these labels, in one of three ways."""

    def write(label: list[int]) -> dict[str, Any]:
        rows = made(label)
        if request.param == "saved":
            rows.save_to_disk(tmp_path / "saved")
            return {"type": "huggingface", "name": str(tmp_path / "saved")}
        rows.to_parquet(tmp_path / "train.parquet")
        if request.param == "parquet":
            return {"train": (str(tmp_path / "train.parquet"),)}
        return {"type": "huggingface", "name": str(tmp_path)}

    return write


def test_classes_have_their_names(places: Any):
    options = places([0, 1, 1, 0])
    assert labels_in(**options) == [((name,),) for name in ("negative", "positive", "positive", "negative")]
    assert labels_in(**options, label_columns=("stars",)) == [((str(stars),),) for stars in range(1, 5)]
    several = labels_in(**options, label_columns=("topics",), multi_label=True)
    assert several == [(("food",),), (("a | b", "travel"),), ((),), (("travel",),)]


def test_minus_one_is_no_class(places: Any):
    with pytest.raises(DataError, match=r"row 2: label is empty: every row needs a label"):
        labels_in(**places([0, 1, -1, 0]))


def test_metadata_of_others_say_nothing():
    assert class_names_in(SimpleNamespace(metadata=None)) == {}
    assert class_names_in(SimpleNamespace(metadata={b"huggingface": b"{"})) == {}
    assert class_names_in(SimpleNamespace(metadata={b"huggingface": b"[1]"})) == {}
