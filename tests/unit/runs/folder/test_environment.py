"""What is written down of a run's surroundings, and what isn't."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from vaak.runs.folder.sessions import environment


def test_it_says_what_bits_depend_on(tiny_run: Path):
    about = json.loads((tiny_run / "environment.json").read_text())
    assert about["packages"]["torch"] == torch.__version__.partition("+")[0] or about["packages"]["torch"]
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"vaak", "commit", "platform", "processor", "device", "cuda", "world_size", "command"} <= set(about)
    assert about["processor"]["torch_threads"] >= 1


def test_it_holds_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cret-0")
    monkeypatch.setenv("HF_TOKEN", "s3cret-1")
    secrets = [
        "wandb.api_key=s3cret-2",
        "--token=s3cret-3",
        "HF_TOKEN=s3cret-4 more s3cret-5",
        "data.corpus.name=https://user:s3cret-6@host/x",
        "db_password=s3cret-7",
        "PASSWD=s3cret-8",
    ]
    harmless = ["train", "a.yml", "data.tokenizer.vocab_size=600", "data.token_dropout=0.1", "note=https://host:80/a@b"]
    monkeypatch.setattr(sys, "argv", ["vaak", *harmless, *secrets])
    about = environment(torch.device("cpu"), 1)
    assert "s3cret" not in json.dumps(about)
    assert about["command"][: len(harmless) + 1] == ["vaak", *harmless]
    assert about["command"][-3] == "data.corpus.name=https://user:***@host/x"
