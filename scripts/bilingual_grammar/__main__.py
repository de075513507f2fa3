"""Writes the pairs of all splits to ``src/vaak/text/grammar/data``."""

from __future__ import annotations

import gzip
from pathlib import Path

import vaak.text.grammar
from bilingual_grammar.sentences import pairs
from vaak.text.grammar.translation import NUM_PAIRS, name_file

DATA = Path(vaak.text.grammar.__file__).with_name("data")

for split, number in NUM_PAIRS.items():
    lines = "".join(f"{english}\t{hindi}\n" for english, hindi in pairs(split, number, seed=0))
    (DATA / name_file(split)).write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))
