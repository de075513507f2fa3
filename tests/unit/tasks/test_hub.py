"""Models by their names on the Hugging Face Hub where there is no network."""

from __future__ import annotations

import os
import subprocess
import sys

WITHOUT_NETWORK = """
import socket
asked = []
def fail(*arguments, **options):
    asked.append(arguments)
    raise socket.gaierror(-2, "Name or service not known")
socket.getaddrinfo = fail
from vaak.core.errors import UserError
from vaak.tasks.pretrained import config_of
for name in ("no-such-model", "nor/this"):
    try:
        config_of("model.pretrained", name)
    except UserError as error:
        print(error)
print(len(asked))
"""


def test_the_hub_is_looked_up_once_and_not_retried(tmp_path):
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in proxies}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WITHOUT_NETWORK], env=environment, capture_output=True, text=True)
    first, second, asked = done.stdout.splitlines()
    assert first.startswith("model.pretrained: no-such-model can't be loaded: ")
    assert second.startswith("model.pretrained: nor/this can't be loaded: ")
    assert asked == "1"
    assert "Retrying" not in done.stderr
