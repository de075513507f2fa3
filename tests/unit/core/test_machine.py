"""Vaak's code is identified by its commit, and by a hash of its files if they changed since or no commit exists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vaak.core import machine

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    machine.code_version.cache_clear()
    yield
    machine.code_version.cache_clear()


def version(monkeypatch: pytest.MonkeyPatch, commit: str | None) -> str:
    monkeypatch.setattr(machine, "commit", lambda: commit)
    machine.code_version.cache_clear()
    return machine.code_version()


def test_the_code_is_its_commit_or_a_hash_of_its_files(monkeypatch: pytest.MonkeyPatch):
    assert version(monkeypatch, COMMIT) == COMMIT[:12]
    changed, unknown = version(monkeypatch, f"{COMMIT}+"), version(monkeypatch, None)
    assert changed == f"{COMMIT[:12]}+{unknown}"
    assert len(unknown) == 12
