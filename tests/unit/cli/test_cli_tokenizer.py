"""``vaak tokenizer show``."""

import json
from pathlib import Path


def test_tokens_of_a_text_and_the_vocabulary(vaak, tiny_run: Path):
    code, out, err = vaak("tokenizer", "show", tiny_run, "लड़की सोती है 🙂")
    assert (code, err) == (0, "")
    assert "".join(out.split()).startswith("लड़की␣सोती␣है␣")
    assert "‹F0›" in out
    code, out, _ = vaak("tokenizer", "show", tiny_run / "prepared" / "tokenizer", "--number", "7")
    assert code == 0
    assert out.splitlines()[0].split() == ["0", "<pad>"]
    assert out.splitlines()[-1] == "7 of 500 tokens"
    code, out, _ = vaak("tokenizer", "show", tiny_run, "क", "--json")
    assert [each["token"] for each in json.loads(out)["tokens"]] == ["क"]
    assert vaak("tokenizer", "show", tiny_run / "nothing")[0] == 2
