"""cpWER and tcpWER against a plain search over all permutations, against MeetEval's figures, and readers of turns."""

from __future__ import annotations

import json
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from vaak.core.errors import DataError
from vaak.scoring.normalisers import normaliser
from vaak.scoring.speaker_errors import Turn, read_turns, rttm_words, score_turns, split_words, stm_text


def conversation(seed: int, speakers: int, errors: float) -> tuple[list[Turn], list[Turn]]:
    """A reference and what a system made of it: words changed, dropped and repeated, times off, speakers mixed up."""
    rng = np.random.default_rng(seed)
    reference, hypothesis, time = [], [], 0.0
    for _ in range(8):
        words = [f"w{number}" for number in rng.integers(0, 12, rng.integers(1, 6))]
        end = time + float(rng.uniform(0.5, 3))
        speaker = int(rng.integers(speakers))
        reference.append(Turn(round(time, 2), round(end, 2), f"r{speaker}", " ".join(words)))
        heard = [word if rng.random() > errors else "x" * int(rng.integers(1, 9)) for word in words]
        heard = [word for word in heard for _ in range(int(rng.choice([1, 1, 1, 0, 2])))]
        off = float(rng.uniform(-2, 2))
        who = speaker if rng.random() > errors else int(rng.integers(speakers + 1))
        if heard:
            start = max(0.0, time + off)
            hypothesis.append(Turn(round(start, 2), round(max(start, end + off), 2), f"h{who}", " ".join(heard)))
        time = end + float(rng.uniform(-0.5, 1))
        time = max(time, 0.0)
    return reference, hypothesis


def by_the_book(reference: list[Turn], hypothesis: list[Turn], collar: float | None) -> int:
    """The fewest errors over all permutations, each by the recursion of Levenshtein's distance."""

    def spoken(turns: list[Turn]) -> list[list[tuple[str, float, float]]]:
        names = sorted({turn.speaker for turn in turns})
        return [
            [word for turn in sorted(turns) if turn.speaker == name for word in split_words(turn)] for name in names
        ]

    def distance(ours: list, theirs: list) -> int:
        @cache
        def errors(i: int, j: int) -> int:
            if not i or not j:
                return i + j
            (word, start, end), (other, begun, ended) = ours[i - 1], theirs[j - 1]
            middle = (begun + ended) / 2
            found = min(errors(i - 1, j), errors(i, j - 1)) + 1
            if collar is None or (start < middle + collar and middle - collar < end):
                found = min(found, errors(i - 1, j - 1) + (word != other))
            return found

        return errors(len(ours), len(theirs))

    one, other = spoken(reference), spoken(hypothesis)
    size = max(len(one), len(other))
    one, other = ([*each, *[[]] * (size - len(each))] for each in (one, other))
    return min(sum(map(distance, one, order)) for order in permutations(other))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("collar", [0.5, 5.0])
def test_it_is_the_search_by_the_book(seed: int, collar: float):
    reference, hypothesis = conversation(seed, 2 + seed % 2, 0.3)
    scores = score_turns({"a": reference}, {"a": hypothesis}, collar=collar)
    assert scores.total.cp_errors == by_the_book(reference, hypothesis, None)
    assert scores.total.tcp_errors == by_the_book(reference, hypothesis, collar)
    assert scores.total.words == sum(len(turn.text.split()) for turn in reference)


MEETEVAL = {(0, 0.5): (29, 41), (0, 5.0): (29, 29), (1, 0.5): (27, 33), (2, 5.0): (20, 23), (3, 0.5): (19, 24)}
"""Errors by meeteval 0.4.3 (cpwer, tcpwer with its defaults), by seed and collar; it has no wheel to test with."""


@pytest.mark.parametrize(("seed", "collar"), MEETEVAL)
def test_the_figures_are_those_of_meeteval(seed: int, collar: float):
    reference, hypothesis = conversation(seed, 2 + seed % 3, 0.3)
    total = score_turns({"a": reference}, {"a": hypothesis}, collar=collar).total
    assert (total.cp_errors, total.tcp_errors) == MEETEVAL[seed, collar]


def test_perfect_turns_have_no_errors_whoever_the_speakers_are_called():
    reference, _ = conversation(0, 3, 0.0)
    renamed = [turn._replace(speaker=turn.speaker[::-1]) for turn in reversed(reference)]
    total = score_turns({"a": reference}, {"a": renamed}).total
    assert (total.cp_errors, total.tcp_errors, total.speakers, total.found_speakers) == (0, 0, 3, 3)


def test_right_words_at_the_wrong_time_are_missed_and_inserted():
    reference = [Turn(0, 1, "A", "so it is"), Turn(50, 51, "B", "no")]
    late = [turn._replace(start=turn.start + 20, end=turn.end + 20) for turn in reference]
    total = score_turns({"a": reference}, {"a": late}).total
    assert (total.cp_errors, total.tcp_errors) == (0, 8)


def test_a_recording_without_turns_is_missed_and_one_without_reference_is_refused():
    reference = {"a": [Turn(0, 1, "A", "so it is")], "b": [Turn(0, 1, "A", "Yes!")]}
    scores = score_turns(reference, {"b": [Turn(0, 1, "S", "yes")]})
    assert scores.recordings["a"].cp_errors == 3
    assert scores.recordings["b"].cp_errors == 0
    assert scores.protocol["without hypothesis"] == "1"
    with pytest.raises(DataError, match="no reference for 'c'"):
        score_turns(reference, {"c": []})


def test_turns_are_read_as_they_were_written(tmp_path: Path):
    turns = [Turn(0.5, 2.0, "speaker_1", "वह घर <है>"), Turn(1.25, 3.0, "speaker_2", "so (it) ;is")]
    (tmp_path / "a.stm").write_text(stm_text("talk", turns, tmp_path / "a.stm"))
    assert read_turns(tmp_path / "a.stm") == {"talk": turns}
    (tmp_path / "a.rttm").write_text(rttm_words("talk", turns, tmp_path / "a.rttm"))
    words = read_turns(tmp_path / "a.rttm")["talk"]
    assert [word.text for word in words] == ["वह", "घर", "<है>", "so", "(it)", ";is"]
    assert (words[0].start, words[2].end, words[3].speaker) == (0.5, 2.0, "speaker_2")
    assert score_turns({"talk": turns}, {"talk": words}, normaliser("none"), collar=0.1).total.tcp_errors == 0
    segments = [{"session_id": "talk", "start_time": t.start, "end_time": t.end, "speaker": t.speaker, "words": t.text} for t in turns]  # fmt: skip  # noqa: E501
    (tmp_path / "a.json").write_text(json.dumps(segments))
    assert read_turns(tmp_path / "a.json") == {"talk": turns}
    (tmp_path / "a.jsonl").write_text(json.dumps({"name": "talk", "segments": [turn._asdict() for turn in turns]}))
    assert read_turns(tmp_path / "a.jsonl") == {"talk": turns}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.stm", "talk 1 A 0\n", "a.stm:1: a line of an STM requires at least 5 fields"),
        ("a.stm", "talk 1 A 3 2 <NA> so\n", "a.stm:1: a turn ends at 2 s, but begins at 3 s"),
        ("a.stm", "", "nobody says anything"),
        ("a.rttm", "SPEAKER talk 1 0 1 <NA> <NA> A <NA> <NA>\n", "nobody says anything"),
        ("a.json", "{", "this is not JSON"),
        ("a.json", '{"a": 1}', "expected a list of segments"),
        ("a.json", '[{"words": "so"}]', "segment 0: expected start_time; there is"),
        ("a.jsonl", '{"name": "talk"}', "a.jsonl:1: expected segments, a list"),
        (
            "a.jsonl",
            '{"name": "t", "segments": [{"start": "x", "end": 1, "speaker": "A", "text": ""}]}',
            "the start is",
        ),
        ("a.txt", "so", "expected a file that ends with .stm, .rttm"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        read_turns(tmp_path / name)


def test_a_folder_is_read_whole_and_what_is_not_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    stm = "{0} 1 A 0 1 <NA> so it is\n"
    for name in ("a.stm", "b.STM", "inner/c.stm", "notes.txt", "._a.stm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(stm.format(Path(name).stem))
    segment = {"session_id": "d", "speaker": "A", "start_time": 0, "end_time": 1, "words": "no"}
    (tmp_path / "d.json").write_text(json.dumps([segment]))
    (tmp_path / "a.rttm").write_text("LEXEME a 1 0 1 so lex A <NA> <NA>\n")
    (tmp_path / "e.rttm").write_text("SPEAKER e 1 0 1 <NA> <NA> A <NA> <NA>\n")
    assert set(read_turns(tmp_path)) == {"a", "b", "c", "d"}
    said = "\n".join(record.getMessage() for record in caplog.records)
    for name, why in (("notes.txt", "not .stm"), ("._a.stm", "hidden"), ("a.rttm", "the same recordings")):
        assert any(name in line and why in line for line in said.splitlines())
    assert "e.rttm" in said
    assert "4 files are read" in said


def test_a_copy_under_another_ending_is_an_error(tmp_path: Path):
    (tmp_path / "a.stm").write_text("a 1 A 0 1 <NA> so\n")
    (tmp_path / "a.stm.bak").write_text("a 1 A 0 1 <NA> so\n")
    assert set(read_turns(tmp_path)) == {"a"}
    (tmp_path / "b.stm.txt").write_text("b 1 A 0 1 <NA> so\n")
    with pytest.raises(DataError, match=r"b\.stm\.txt: it ends with \.txt, so it isn't read"):
        read_turns(tmp_path)


def test_times_in_another_unit_are_found():
    turns = [Turn(3.0 * n, 3.0 * n + 2, "A", f"word {n}") for n in range(10)]
    for factor, unit in ((1000, "milliseconds"), (16000, "samples at 16000 Hz")):
        scaled = [turn._replace(start=factor * turn.start, end=factor * turn.end) for turn in turns]
        with pytest.raises(DataError, match=f"times of the hypothesis look like {unit}"):
            score_turns({"a": turns}, {"a": scaled})
        with pytest.raises(DataError, match=f"times of the reference look like {unit}"):
            score_turns({"a": scaled}, {"a": turns})
