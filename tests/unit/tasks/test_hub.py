"""Models by their names on the Hugging Face Hub, without a network."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from vaak.core.errors import UserError
from vaak.tasks.pretrained import load_config


def test_the_hub_is_looked_up_once_and_not_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    asked = []

    def fail(*arguments: Any, **options: Any) -> None:
        asked.append(arguments)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.find_spec("vaak.tasks.fetching")
    assert spec is not None
    assert spec.loader is not None
    fresh: Any = importlib.util.module_from_spec(spec)  # as in a process that has not asked yet
    spec.loader.exec_module(fresh)
    for name in ("no-such-model", "nor/this"):
        with pytest.raises(UserError, match=rf"^model\.pretrained: {name} can't be loaded: "):
            fresh.fetch_model("model.pretrained", name, lambda one=name: AutoConfig.from_pretrained(one))
    assert len(asked) == 1
    assert "Retrying" not in caplog.text + capfd.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        {"attn_implementation": "org/kernel"},
        {"text_config": {"_attn_implementation": "org/kernel@main"}},
        {"attn_implementation": {"vision": "org/kernel:name"}},
        {"experts_implementation": "org/kernel"},
    ],
)
def test_a_model_that_names_code_on_the_hub_is_refused(tmp_path: Path, given: dict[str, object]):
    """transformers fetches and runs such kernels, whatever USE_HUB_KERNELS says, where the package is installed."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **given}))
    with pytest.raises(UserError, match="which is code on the Hub: remove it from there"):
        load_config("model.pretrained", str(tmp_path))
