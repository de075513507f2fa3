"""A task of one's own takes no more lines than with transformers' Trainer (35), and the page says how many."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "library.md"


def test_lines_of_the_task_in_the_documents():
    text = PAGE.read_text(encoding="utf-8")
    task, training = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    code = [line for line in f"{task}{training}".splitlines() if line.strip() and not line.lstrip().startswith("#")]
    said = re.search(r"Here are (\d+) lines of code", text)
    assert said is not None
    assert len(code) == int(said[1]) <= 35
