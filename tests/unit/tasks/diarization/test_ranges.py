"""Ranges in a YAML: two numbers in a list, or one that is both."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError

YAML = """task: diarization
datasets:
  - name: pool
    type: json
    conversations: {{duration: {duration}, num_speakers: {speakers}, noise: {{snr: {snr}}}}}
"""


@pytest.mark.parametrize(
    ("duration", "speakers", "snr"), [("[30, 60]", "[2, 3]", "[10.5, 20]"), ("30", "2", "15"), ("[30.0, 30]", "2", "0")]
)
def test_a_range_is_a_list_or_a_number(tmp_path: Path, duration: str, speakers: str, snr: str):
    (tmp_path / "a.yml").write_text(YAML.format(duration=duration, speakers=speakers, snr=snr), encoding="utf-8")
    (dataset,) = load([tmp_path / "a.yml"], []).experiment.datasets
    found = dataset.conversations
    for text, value in ((duration, found.duration), (speakers, found.num_speakers), (snr, found.noise.snr)):
        ends = [float(part) for part in text.strip("[]").split(",")]
        assert value == (ends[0], ends[-1])


@pytest.mark.parametrize("duration", ["[30]", '["30", "60"]', "[30, 60, 90]", "true"])
def test_what_is_no_range_is_refused(tmp_path: Path, duration: str):
    (tmp_path / "a.yml").write_text(YAML.format(duration=duration, speakers=2, snr=15), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.yml:5: datasets\.0\.conversations\.duration"):
        load([tmp_path / "a.yml"], [])


def test_bounds_of_speakers_that_cross_are_refused(tmp_path: Path):
    text = "task: diarization\ndata: {inference: {min_speakers: 3, max_speakers: 2}}\n"
    (tmp_path / "a.yml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"min_speakers \(3\) is more than max_speakers \(2\)"):
        load([tmp_path / "a.yml"], [])
