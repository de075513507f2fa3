"""Models by their names on the Hugging Face Hub where there is no network."""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

import pytest

from vaak.core.errors import UserError


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
    spec = importlib.util.find_spec("vaak.tasks.pretrained")
    assert spec is not None
    assert spec.loader is not None
    fresh: Any = importlib.util.module_from_spec(spec)  # as in a process that has not asked yet
    spec.loader.exec_module(fresh)
    for name in ("no-such-model", "nor/this"):
        with pytest.raises(UserError, match=rf"^model\.pretrained: {name} can't be loaded: "):
            fresh.config_of("model.pretrained", name)
    assert len(asked) == 1
    assert "Retrying" not in caplog.text + capfd.readouterr().err
