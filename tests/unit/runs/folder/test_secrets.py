"""Secrets in options: nothing that a run stores or shows has them, and it resumes with them given again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vaak.cli.table import COMMANDS
from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.resolved import as_yaml, resolved_values
from vaak.config.tasks import built_in
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.core import secrets
from vaak.core.secrets import hide_secrets, is_secret_key, mask, refer

Vaak = Callable[..., tuple[int, str, str]]

KEY, PASSWORD, TOKEN, BEARER, FROM_ENV = (
    "sk-literal-1111",
    "pw-literal-2222",
    "tk-literal-3333",
    "br-4444444",
    "env-555555",
)
LITERALS = (KEY, PASSWORD, TOKEN, BEARER, FROM_ENV)

OWN = """
from pathlib import Path
from vaak.engine.callback import Callback

class Uploads(Callback):
    def __init__(self, api_key, url, headers, from_env, folder, num_tokens=3, pad_token="<pad>"):
        given = [api_key, url, headers["Authorization"], from_env["password"], pad_token]
        Path(folder, "seen").write_text(" ".join(given))
        self.key = api_key

    def on_step_end(self, trainer, report):
        if report.step == 2:
            import logging
            logging.getLogger("vaak").warning("uploading, %s, https://me:a@h", self.key)
"""

TINY = f"""
task: lm
name: tiny
model: {{d_model: 16, num_layers: 1, num_heads: 2}}
data:
  max_length: 16
  corpus: {{type: text, train: [CORPUS/train.txt], valid_fraction: 0.1}}
  tokenizer: {{type: byte_level, vocab_size: 300}}
training:
  max_steps: 4
  batch_size: 4
  checkpoint: {{interval: 2}}
  callbacks:
    - type: ./own.py:Uploads
      url: https://me:{PASSWORD}@host/in?token={TOKEN}&n=1
      headers: {{Authorization: Bearer {BEARER}, Accept: text}}
      from_env:
        password: ${{OWN_SECRET}}
      folder: FOLDER
"""


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_names", {})


@pytest.fixture
def config(tmp_path: Path, tiny_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OWN_SECRET", FROM_ENV)
    text = TINY.replace("CORPUS", str(tiny_text)).replace("FOLDER", str(tmp_path))
    (tmp_path / "own.py").write_text(OWN)
    path = tmp_path / "tiny.yml"
    path.write_text(text)
    return path


def found_in(folder: Path) -> list[str]:
    """The files below a folder that have one of the secrets."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [f"{path.name}: {one}" for path in files for one in LITERALS if one.encode() in path.read_bytes()]


def test_a_run_has_no_secrets_and_resumes_with_them(
    vaak: Vaak, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, seen = tmp_path / "run", tmp_path / "seen"
    given = f"training.callbacks.0.api_key={KEY}"
    code, out, err = vaak("train", config, f"run_dir={run}", given)
    assert code == 0, err
    expected = f"{KEY} https://me:{PASSWORD}@host/in?token={TOKEN}&n=1 Bearer {BEARER} {FROM_ENV} <pad>"
    assert seen.read_text() == expected
    assert found_in(run) == []
    assert not [one for one in LITERALS if one in out + err]
    assert "uploading, ***, https://me:***@h" in (run / "train.log").read_text()
    stored = (run / "config.yml").read_text()
    assert 'api_key: "${VAAK_SECRET_TRAINING_CALLBACKS_0_API_KEY}"\n' in stored
    assert 'password: "${OWN_SECRET}"\n' in stored
    assert "Accept: text" in stored
    log = (run / "train.log").read_text()
    assert "training.callbacks.0.api_key is a secret, stored nowhere; the run refers to it by ${VAAK_SECRET_TR" in log
    assert "training.callbacks.0.from_env.password is a secret, taken from the variable OWN_SECRET;" in log

    # what uses the model alone doesn't ask for them
    monkeypatch.setattr(secrets, "_names", {})
    monkeypatch.delenv("OWN_SECRET")
    for command in (("eval", run), ("generate", run, "a"), ("report", run), ("config", "show", run / "config.yml")):
        code, out, err = vaak(*command, "--trust-code") if command[0] in ("eval", "generate") else vaak(*command)
        assert code == 0, (command, err)
        assert not [one for one in LITERALS if one in out + err]
    assert "VAAK_SECRET_TRAINING_CALLBACKS_0_API_KEY" in (run / "report.html").read_text()

    # a resume does, in one line, and takes them from the environment or the command line
    resume = ("train", run / "config.yml", "--resume", "auto", "--trust-code", "training.max_steps=6")
    seen.unlink()
    code, out, err = vaak(*resume)
    assert (code, err.count("\n"), seen.exists()) == (2, 1, False)
    assert re.match(
        r"training\.callbacks\.0\.\S+ is a secret, which is not stored: set the environment variable \S+, or give ",
        err,
    )
    monkeypatch.setenv("VAAK_SECRET_TRAINING_CALLBACKS_0_URL", f"https://me:{PASSWORD}@host/in?token={TOKEN}&n=1")
    monkeypatch.setenv("VAAK_SECRET_TRAINING_CALLBACKS_0_HEADERS_AUTHORIZATION", f"Bearer {BEARER}")
    monkeypatch.setenv("OWN_SECRET", FROM_ENV)
    code, out, err = vaak(*resume, given)
    assert code == 0, err
    assert seen.read_text() == expected
    assert found_in(run) == []
    code, out, err = vaak(*resume, "training.callbacks.0.api_key=", "training.max_steps=7")
    assert KEY not in out + err


def test_a_job_file_has_none(vaak: Vaak, config: Path, tmp_path: Path):
    launch = ("launch", "slurm", config, f"run_dir={tmp_path / 'run'}", "--output", tmp_path / "job")
    code, out, err = vaak(*launch, f"training.callbacks.0.api_key={KEY}")
    assert (code, KEY in out + err, (tmp_path / "job").exists()) == (2, False, False)
    assert "training.callbacks.0.api_key=*** is a secret" in err
    code, out, err = vaak(*launch, "training.callbacks.0.api_key=${OWN_SECRET}")
    assert code == 0, err
    assert "'training.callbacks.0.api_key=${OWN_SECRET}'" in (tmp_path / "job").read_text()
    assert found_in(tmp_path / "job") == []


@pytest.mark.parametrize(
    "wrong", ["training.optimizer.api_key={}", "training.callbacks=[{{api_key: {}}}]", "wandb={{password: {}}}"]
)
def test_a_mistake_does_not_show_them(vaak: Vaak, config: Path, tmp_path: Path, wrong: str):
    code, out, err = vaak("config", "check", config, wrong.format(KEY))
    assert code == 2
    assert KEY not in out + err


def test_no_option_of_vaak_is_taken_for_a_secret():
    def names(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for one in schema.values():
                yield from names(one)
        elif isinstance(schema, list):
            for one in schema:
                yield from names(one)

    seen = {name for task in built_in() for name in names(experiment_type(task).model_json_schema())}
    assert len(seen) > 300
    assert [name for name in sorted(seen) if is_secret_key(name)] == []
    assert COMMANDS


SECRET = "api_key apiKey API_KEY x-api-key hf_token HF_TOKEN access_token auth token db_password passwd client_secret"
SECRET += (
    " Authorization credentials AWS_SECRET_ACCESS_KEY private_key webhook_url sentry_dsn wandb_api_key bearerToken"
)
PLAIN = (
    "tokenizer num_tokens max_new_tokens pad_token eos_token special_tokens token_dropout key keys sort_key label_key"
)
PLAIN += " keyword monkey tokens passes secretary compass bypass author authority key_frames user_token keyboard"


def test_names_that_look_like_secrets():
    assert [name for name in SECRET.split() if not is_secret_key(name)] == []
    assert [name for name in PLAIN.split() if is_secret_key(name)] == []


def test_what_is_stored_reads_back_as_the_same_reference(tmp_path: Path):
    values = {
        "a": [{"api_key": KEY, "size": 3}],
        "url": f"http://x?sig={TOKEN}",
        "text": "password: none",
        "n": None,
        "tokens": [f"http://x?sig={TOKEN}"],
    }
    stored = refer(values)
    assert stored["a"][0] == {"api_key": "${VAAK_SECRET_A_0_API_KEY}", "size": 3}
    assert (stored["text"], stored["n"]) == ("password: none", None)
    assert refer(stored) == stored
    assert mask(values) == mask(stored)
    assert "$$" not in yaml_text(stored)
    path = tmp_path / "stored.yml"
    path.write_text(yaml_text(stored))
    assert read_yaml(path) == stored
    assert hide_secrets(f"at {KEY}") == "at ***"


def test_a_reference_is_what_the_configuration_keeps(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded = load([config], [f"training.callbacks.0.api_key={KEY}"])
    options = loaded.experiment.training.callbacks[0].options
    assert (options["api_key"], options["from_env"]) == (KEY, {"password": FROM_ENV})
    assert not [one for one in LITERALS if one in as_yaml(loaded.experiment)]
    again = tmp_path / "again.yml"
    again.write_text(as_yaml(loaded.experiment))
    assert load([again]).experiment.training.callbacks[0].options == options  # as this process knows them
    monkeypatch.setattr(secrets, "_names", {})
    monkeypatch.delenv("OWN_SECRET")
    assert resolved_values(load([again]).experiment) == resolved_values(load([again]).experiment)
    assert load([again]).experiment.training.callbacks[0].options["from_env"] == {"password": "${OWN_SECRET}"}
