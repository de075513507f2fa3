"""``vaak speak``: texts in, audio out, and one line for what can't be spoken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tiny_voice import RATE
from vaak.runs.open_run import open_run
from vaak.text.speech.processor import PhonemeProcessor


def test_a_text_becomes_a_file_of_audio(vaak, voice_run: Path, tmp_path: Path):
    code, out, err = vaak("speak", voice_run, "He saw me. Now she may go.", "-o", tmp_path / "a.wav")
    assert (code, out) == (0, "")
    assert err.startswith(f"{tmp_path / 'a.wav'}: ")
    assert "real-time factor" in err
    samples, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == RATE
    assert 0.5 < len(samples) / rate < 10
    assert np.abs(samples).max() > 0.01


def test_lines_of_a_file_go_to_a_folder(vaak, voice_run: Path, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("He saw me.\n\nNow she may go.\n")
    code, out, _ = vaak("speak", voice_run, tmp_path / "texts.txt", "--output", tmp_path / "audio", "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [Path(line["file"]).name for line in lines] == ["0001.wav", "0002.wav"]
    for line in lines:
        assert soundfile.info(line["file"]).duration == pytest.approx(line["duration"])


def test_symbols_that_are_not_spoken_are_one_line_of_standard_error(vaak, voice_run: Path, tmp_path: Path):
    lines = tmp_path / "texts.txt"
    lines.write_text("He saw me ™.\nNow **she** may go ™.\n")
    code, out, err = vaak("speak", voice_run, lines, "-o", tmp_path / "audio", "--json")
    assert code == 0
    said = f"4 symbols are not spoken: ™ (2, first in {lines}:1), ** (2, first in {lines}:2)"
    assert [line for line in err.splitlines() if "spoken" in line] == [said]
    assert "spoken: " not in out


def test_speed_and_pause_change_the_length(vaak, voice_run: Path, tmp_path: Path):
    def seconds(*options: object) -> float:
        code, _, err = vaak("speak", voice_run, "He saw me. She saw me.", "-o", tmp_path / "a.wav", *options)
        assert code == 0, err
        return float(soundfile.info(tmp_path / "a.wav").duration)

    usual = seconds("--pause", 0)
    assert seconds("--pause", 1) == pytest.approx(usual + 1)
    assert seconds("--pause", 0, "--speed", 2) == pytest.approx(usual / 2, rel=0.2)


def test_a_text_of_two_thousand_words_is_spoken_in_parts(vaak, voice_run: Path, tmp_path: Path):
    text = "he saw me now " * 500
    code, _, err = vaak("speak", voice_run, text, "-o", tmp_path / "a.wav", "--num-iterations", 1, "--speed", 10)
    assert code == 0, err
    assert soundfile.info(tmp_path / "a.wav").duration > 20


def test_the_picture_has_what_was_spoken(vaak, flow_run: Path, tmp_path: Path):
    arguments = ("-o", tmp_path / "a.wav", "--plot", tmp_path / "a.png", "--pitch", 2, "--energy", 2, "--num-steps", 3)
    heights = []
    for text in ("He saw me.", "He saw me. Now she may go.", "He saw me. Now she may go. We met."):
        code, _, err = vaak("speak", flow_run, text, *arguments)
        assert code == 0, err
        content = (tmp_path / "a.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        heights.append(int.from_bytes(content[20:24]))
    one, two, three = heights
    assert three - two == two - one > one / 2  # a row for each sentence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("?!",), "the text: '?!': there is nothing to speak in it"),
        (("",), "there is nothing to speak in it"),
        (("он",), "can't be read in English"),
        (("He saw me.", "--speaker", "bob"), "unknown speaker 'bob'; the model has ann"),
        (("He saw me.", "--speed", "0"), "data.speaking.speed: is 0.0; expected a number at least 0.1"),
        (("He saw me.", "--pitch", "2"), "data.speaking.pitch: 2, but the model predicts no pitch; train with"),
        (("He saw me.", "--plot", "a.jpg"), "--plot: a.jpg: expected a file that ends in .png"),
        (("gone.txt",), "file gone.txt does not exist"),
        (("He saw me.", "-o", "out.mp3"), "out.mp3: expected a file that ends in .wav or .flac"),
    ],
)
def test_what_is_wrong_is_one_line(
    vaak, voice_run: Path, arguments: tuple[str, ...], message: str, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    code, _, err = vaak("speak", voice_run, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


MIXED = "He saw me 😀. She may go.\nनमस्ते\nNow she may go.\n"


@pytest.mark.parametrize(
    ("mode", "code", "sentences", "said"),
    [
        ("skip", 2, 2, ["texts.txt:1: 'He saw me 😀.'", "texts.txt:2: 'नमस्ते'"]),
        (
            "drop",
            2,
            3,
            ["can't be read in English; replace or remove them (left out; the rest is spoken)", "texts.txt:2"],
        ),
    ],
)
def test_what_cant_be_spoken_is_left_out_and_named_at_the_end(vaak, voice_run, tmp_path, mode, code, sentences, said):
    (tmp_path / "texts.txt").write_text(MIXED, encoding="utf-8")
    output = tmp_path / "a.wav"
    found = vaak("speak", voice_run, tmp_path / "texts.txt", "-o", output, "--json", "--on-unspeakable", mode)
    assert found[0] == code
    assert json.loads(found[1])["sentences"] == sentences
    assert all(one in line for one, line in zip(said, found[2].splitlines()[-2:], strict=True))
    assert soundfile.info(output).duration > 0


def test_an_emoji_alone_can_be_dropped(vaak, voice_run, tmp_path):
    code, _, err = vaak("speak", voice_run, "He saw me 😀.", "-o", tmp_path / "a.wav", "--on-unspeakable", "drop")
    assert code == 0
    assert "😀 can't be read in English" in err


def test_what_cant_be_spoken_may_end_everything(vaak, voice_run, tmp_path):
    (tmp_path / "texts.txt").write_text(MIXED, encoding="utf-8")
    options = ("-o", tmp_path / "a.wav", "--on-unspeakable", "error")
    code, _, err = vaak("speak", voice_run, tmp_path / "texts.txt", *options)
    assert code == 2
    assert "texts.txt:1" in err
    assert not list(tmp_path.glob("*.wav"))


def test_a_folder_has_no_file_for_what_cant_be_spoken(vaak, voice_run, tmp_path):
    (tmp_path / "texts.txt").write_text(MIXED, encoding="utf-8")
    code, _, _ = vaak("speak", voice_run, tmp_path / "texts.txt", "-o", tmp_path / "audio")
    assert code == 2
    assert sorted(path.name for path in (tmp_path / "audio").iterdir()) == ["0001.wav", "0003.wav"]


def test_another_task_cant_speak(vaak, diarizer_run: Path):
    code, _, err = vaak("speak", diarizer_run, "He saw me.")
    assert code == 2
    assert "is a run of task diarization; vaak speak requires a run of task tts" in err


def test_ssml_sets_silence_rate_and_volume(vaak, voice_run: Path, tmp_path: Path):
    def spoken(body: str, *options: object) -> np.ndarray:
        text = f"<speak>\n{body}</speak>"
        code, _, err = vaak("speak", voice_run, text, "-o", tmp_path / "a.wav", "--pause", 0.1, *options)
        assert code == 0, err
        return np.asarray(soundfile.read(tmp_path / "a.wav")[0])

    one, two = spoken("He saw me."), spoken("Now she may go.")
    both = spoken("He saw me. Now she may go.")
    np.testing.assert_allclose(both, np.concatenate([one, np.zeros(RATE // 10), two]), atol=2e-4)
    silence = np.zeros(RATE * 3 // 4)
    apart = spoken('<break time="750ms"/>He saw me.<break time="750ms"/> Now she may go.<break time="750ms"/>')
    np.testing.assert_allclose(apart, np.concatenate([silence, one, silence, two, silence]), atol=2e-4)
    quiet = spoken('He saw me. <prosody volume="-6dB">Now she may go.</prosody>')
    np.testing.assert_allclose(quiet, np.concatenate([one, np.zeros(RATE // 10), two * 10**-0.3]), atol=2e-4)
    fast = spoken('He saw me. <prosody rate="200%">Now she may go.</prosody>')
    np.testing.assert_allclose(fast[: len(one)], one, atol=2e-4)
    expected = spoken("Now she may go.", "--speed", 2)
    np.testing.assert_allclose(fast[len(one) + RATE // 10 :], expected, atol=2e-4)


def test_given_phonemes_change_what_is_said(vaak, voice_run: Path, tmp_path: Path):
    def symbols(text: str, *options: str) -> list[str]:
        opened = open_run(voice_run, overrides=options)
        [speech] = opened.task.predict(opened.model, [text])
        return [one for sentence in speech.to_json()["sentences"] for one in sentence["symbols"]]

    usual, lexicon = symbols("He saw me."), tmp_path / "words.txt"
    lexicon.write_text("saw\tM EY1\n")
    expected = list(PhonemeProcessor().symbols_of_phonemes("M EY1"))
    place = usual.index("s")
    changed = [*usual[:place], *expected, " ", "m"]  # espeak-ng stresses the vowel after it by the words around
    assert symbols("He [[M EY1]] me.")[: len(changed)] == changed
    assert symbols('<speak>He <phoneme alphabet="ipa" ph="mˈeɪ">saw</phoneme> me.</speak>')[: len(changed)] == changed
    assert symbols("He saw me.", f"data.speaking.lexicon={lexicon}")[: len(changed)] == changed
    code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / "a.wav", "--lexicon", lexicon)
    assert code == 0, err
    lexicon.write_text("saw\tQQ\n")
    code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / "a.wav", "--lexicon", lexicon)
    assert code == 2
    assert err.startswith(f"{lexicon}:1: QQ is not a phoneme of ARPAbet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><speak>&c;</speak>', "isn't read"),
        ("<speak>He <b>saw</b> me.</speak>", "unknown tag <b>"),
        ("<speak><prosody pitch='+2st'>He saw me.</prosody></speak>", "the model predicts no pitch"),
        ("<speak>He saw me.", "SSML, line 1: no element found"),
        ("<speak></speak>", "the text is empty"),
    ],
)
def test_ssml_that_cannot_be_read_is_one_line(vaak, voice_run: Path, tmp_path: Path, text: str, message: str):
    (tmp_path / "a.ssml").write_text(text)
    code, _, err = vaak("speak", voice_run, tmp_path / "a.ssml", "-o", tmp_path / "a.wav")
    assert (code, len(err.strip().splitlines())) == (2, 1), err
    assert message in err
    assert not (tmp_path / "a.wav").exists()
