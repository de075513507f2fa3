"""A voice in sherpa-onnx says of the same symbols what ``vaak speak`` says, and texts become those symbols."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import tiny_vocoder
import tiny_voice
from vaak.audio.corpora.voices import sentences
from vaak.runs.open_run import open_run
from vaak.tasks.tts.sherpa import LARGEST_NUMBER, MARKS, SpokenFunction, assign_characters, make_lexicon, number_tokens
from vaak.text.grammar.translation import grammar_pairs
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.phonemes.alphabets import BOUNDARY, PAUSE, PUNCTUATION
from vaak.text.speech.processor import PhonemeProcessor

CARD = re.compile(r"```python\n(.*?)```", re.DOTALL)


def by_sherpa(processor: PhonemeProcessor, lexicon: dict[str, tuple[str, ...]], text: str) -> list[str] | None:
    """The symbols that sherpa-onnx and the file make of a text; None where a word isn't in the lexicon."""
    longest = max(word.count(" ") for word in lexicon) + 1
    found: list[str] = []
    tokens = re.findall(rf"[{MARKS}]|[^ {MARKS}]+", text.lower())
    while tokens:
        if tokens[0] in MARKS:
            found.append(tokens.pop(0))
            continue
        size = next((size for size in range(longest, 0, -1) if " ".join(tokens[:size]) in lexicon), None)
        if size is None:
            return None
        found += [*([BOUNDARY] if found and found[-1] not in MARKS else []), *lexicon[" ".join(tokens[:size])]]
        del tokens[:size]
    if not processor.config.word_boundaries:
        found = [one for one in found if one != BOUNDARY]
    gaps = (PAUSE, *PUNCTUATION)
    around = zip(["", *found], found, [*found[1:], ""], strict=False)
    found = [one for last, one, next_ in around if one != BOUNDARY or not (last in gaps or next_ in gaps)]
    return [PAUSE if one in MARKS and processor.config.punctuation == "pause" else one for one in found]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"punctuation": "pause", "alphabet": "arpabet"}, marks=pytest.mark.slow),
        pytest.param({"word_boundaries": False}, marks=pytest.mark.slow),
        {"phonemizer": "characters"},
    ],
    ids=["espeak", "pauses", "together", "characters"],
)
def test_texts_have_nearly_always_the_symbols_of_the_front_end(options: dict[str, Any]):
    texts = sentences(800, np.random.default_rng(0))
    processor = PhonemeProcessor(FrontEndConfig.model_validate(options))
    lexicon = make_lexicon(processor, texts[:600])
    said = [by_sherpa(processor, lexicon, text) for text in texts[600:]]
    same = [one == list(whole.symbols) for one, whole in zip(said, processor.process_all(texts[600:]), strict=True)]
    assert said.count(None) <= 3
    assert np.mean(same) > (0.98 if options.get("phonemizer") == "characters" else 0.9)


def test_texts_of_another_language_have_the_symbols_of_the_front_end():
    """With dandas at the end of words."""
    texts = [max(pair, key=lambda text: not text.isascii()) for pair in grammar_pairs("train", 300, 0)]
    texts = [text.replace(" ।", "।") for text in texts]
    assert sum("।" in text for text in texts) > 100
    processor = PhonemeProcessor(FrontEndConfig(language="hi"))
    lexicon = make_lexicon(processor, texts)
    whole = processor.process_all(texts)
    said = [by_sherpa(processor, lexicon, text) for text in texts]
    assert np.mean([one == list(other.symbols) for one, other in zip(said, whole, strict=True)]) > 0.95


def test_words_have_entries_with_their_marks_and_figures_and_another_apostrophe():
    processor = PhonemeProcessor(FrontEndConfig(phonemizer="characters"))
    lexicon = make_lexicon(processor, ['"Don\'t go," he said — (well-known, it is) and #1 left.'])
    assert lexicon["don't"] == lexicon["don’t"] == tuple("don't")
    assert lexicon["\"don't"] == ('"', *"don't")
    assert lexicon["left"] == tuple("left")
    assert lexicon["(left"] == ("(", *"left")
    assert lexicon["—"] == ("—",)
    assert lexicon["well-known"] == (*"well", BOUNDARY, *"known")
    assert lexicon["21"] == (*"twenty", BOUNDARY, *"one")
    assert str(LARGEST_NUMBER) in lexicon
    assert str(LARGEST_NUMBER + 1) not in lexicon


def test_words_of_a_lexicon_to_speak_with_are_said_as_it_says():
    texts = ["He saw the old car.", "The man left the car and the door."]
    processor = PhonemeProcessor(FrontEndConfig(alphabet="arpabet"))
    plain = make_lexicon(processor, texts)
    assert plain["the"] == ("DH", "AH0")
    assert plain["the old"][:2] == ("DH", "IH0")
    lexicon = make_lexicon(processor, texts, {"old": "AO1 L D", "sql": "S IY1 K W AH0 L"})
    assert lexicon["old"] == ("AO1", "L", "D")
    assert lexicon["sql"] == ("S", "IY1", "K", "W", "AH0", "L")
    assert "the old" not in lexicon


def test_capitals_of_other_alphabets_are_entries():
    lexicon = make_lexicon(PhonemeProcessor(FrontEndConfig(language="ru")), ["Привет, мир."])
    assert lexicon["привет"] == lexicon["Привет"] == lexicon["ПРИВЕТ"]


def test_every_symbol_has_one_character_of_its_own():
    for options in ({}, {"alphabet": "arpabet", "punctuation": "pause"}, {"language": "hi", "word_boundaries": False}):
        processor = PhonemeProcessor(FrontEndConfig.model_validate(options))
        characters, tokens = assign_characters(processor), number_tokens(processor)
        assert len(set(characters.values())) == processor.num_symbols
        assert all(len(one) == 1 and not one.isspace() for one in characters.values())
        assert tokens["^"] == tokens["$"] == processor.pause_id
        assert tokens["_"] == processor.pad_id
        assert (tokens[" "] == processor.pad_id) is not processor.config.word_boundaries
        assert (tokens[","] == processor.pause_id) is (processor.config.punctuation == "pause")


def test_as_a_function_it_speaks_as_the_run_without_boundaries_next_to_marks(voice_run: Path, vocoder_run: Path):
    opened: Any = open_run(voice_run, device="cpu")
    speaker = opened.task.speaker(opened.model.eval(), vocoder=str(vocoder_run))
    processor = speaker.processor
    pause, pad, boundary = processor.pause_id, processor.pad_id, processor.symbols.index(BOUNDARY)
    ids = processor.process("He saw me, now.").ids
    comma = ids.index(processor.symbols.index(","))
    written = [*ids[:comma], boundary, ids[comma], boundary, *ids[comma + 1 :]]
    x = torch.tensor([[pause, pad, *(one for number in written for one in (number, pad)), pause]])
    scales = [torch.tensor([scale]) for scale in (0.0, 0.5, 0.8)]
    with torch.no_grad():
        [samples] = SpokenFunction(speaker, speaker.vocoder)(x, torch.tensor([x.shape[1]]), *scales)
    speaker.controls = speaker.controls._replace(speed=2.0)
    expected = speaker.sentence("", ids).samples
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(samples[0].numpy(), expected, atol=1e-6)


def test_without_a_vocoder_a_line_says_what_to_give(vaak, voice_run: Path, vocoder_run: Path, tmp_path: Path):
    export = ("export", voice_run, "--format", "sherpa-onnx", "--output", tmp_path / "out")
    code, _, err = vaak(*export)
    assert (code, err.count("\n")) == (2, 1)
    assert "give --vocoder, a run of task vocoder" in err
    code, _, err = vaak(*export, "--vocoder", vocoder_run, "--words", tmp_path / "none.txt")
    assert (code, err) == (2, f"--words: {tmp_path / 'none.txt'}: can't be read: No such file or directory\n")
    code, _, err = vaak("export", voice_run, "--format", "onnx", "--vocoder", vocoder_run)
    assert (code, err) == (2, "--vocoder: --format onnx doesn't take it; leave it out, or use sherpa-onnx\n")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def duet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``voice``, a run of two speakers with pauses for marks and a lexicon, and ``vocoder``, HiFi-GAN."""
    folder = tmp_path_factory.mktemp("duet")
    corpus = tiny_voice.write_voice(folder / "corpus")
    for split in tiny_voice.NUM_UTTERANCES:
        lines = [json.loads(line) for line in (corpus / f"{split}.jsonl").read_text().splitlines()]
        for number, line in enumerate(lines):
            line["supervisions"][0]["speaker"] = ("ann", "ben")[number % 2]
        (corpus / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lexicon = folder / "words.dict"
    lexicon.write_text("".join(f"{word} {' '.join(phones)}\n" for word, phones in tiny_voice.WORDS.items()))
    rules = {"phonemizer": "lexicon", "lexicon": str(lexicon), "unknown_words": "rules"}
    front_end = {**rules, "punctuation": "pause", "word_boundaries": False, "alphabet": "arpabet"}
    tiny_voice.train(corpus, folder / "voice", data={"front_end": front_end})
    sizes = {
        "upsample_rates": [8, 8],
        "upsample_kernel_sizes": [16, 16],
        "upsample_initial_channel": 16,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3]],
    }
    tiny_vocoder.train(corpus, folder / "vocoder", model={"hifigan": sizes})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voice_run", "flow_run", "duet"])
def test_sherpa_onnx_says_the_same(
    name: str, vaak, request: pytest.FixtureRequest, vocoder_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="sherpa-onnx isn't installed")
    run, vocoder, folder = request.getfixturevalue(name), vocoder_run, tmp_path / "out"
    if name == "duet":
        run, vocoder = run / "voice", run / "vocoder"
    words = tmp_path / "words.txt"
    texts = sentences(640, np.random.default_rng(0))
    words.write_text("\n".join(["Sure, thank you!", *texts[:600]]))
    options = ("--vocoder", vocoder, "--words", words, "--quantization", "int8")
    code, _, err = vaak("export", run, "--format", "sherpa-onnx", "--output", folder, *options)
    assert (code, err) == (0, "")
    names = {"README.md", "lexicon.txt", "model.int8.onnx", "model.onnx", "processor.json", "tokens.txt"}
    assert {path.name for path in folder.iterdir()} == names | ({"speakers.txt"} if name == "duet" else set())
    assert "\nthank || " in (folder / "lexicon.txt").read_text()

    def opened_by_sherpa(file: str) -> Any:
        files = {"model": file, "lexicon": "lexicon.txt", "tokens": "tokens.txt"}
        voice = sherpa_onnx.OfflineTtsVitsModelConfig(
            **{key: str(folder / one) for key, one in files.items()},
            noise_scale=0.0,  # the temperature of flow matching, whose noise is of each side's own
        )
        return sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(sherpa_onnx.OfflineTtsModelConfig(vits=voice)))

    opened: Any = open_run(run, device="cpu")
    voice = opened_by_sherpa("model.onnx")
    assert voice.sample_rate == tiny_voice.RATE
    assert voice.num_speakers == (2 if name == "duet" else 1)
    characters = assign_characters(opened.task.prepared.processor)
    how, found = sherpa_onnx.GenerationConfig(), {}
    how.silence_scale = 1.0
    for sid, speed in ((0, 1.0), (0, 0.7), (voice.num_speakers - 1, 1.0)):
        named = {"speaker": opened.task.prepared.speakers[sid], "speed": speed, "vocoder": str(vocoder)}
        speaker = opened.task.speaker(opened.model, **named)
        speaker.controls = speaker.controls._replace(temperature=0.0)
        processed = speaker.processor.process("He saw me, now.")
        expected = speaker.sentence("", processed.ids).samples
        assert np.abs(expected).max() > 1e-3
        how.sid, how.speed = sid, speed
        how.phoneme_codepoints = [[ord(characters[one]) for one in processed.symbols]]
        found[sid, speed] = np.array(voice.generate("", how).samples, np.float32)
        np.testing.assert_allclose(found[sid, speed], expected, atol=1e-6)
        how.phoneme_codepoints = []
        if name == "duet":  # a lexicon, in which words sound the same alone and in sentences
            by_text = np.array(voice.generate("He saw me, now. Go, she may!", how).samples, np.float32)
            second = speaker.sentence("", speaker.processor.process("Go, she may!").ids).samples
            np.testing.assert_allclose(by_text, np.concatenate([expected, second]), atol=1e-6)
    if name == "voice_run":  # espeak-ng, in whose sentences words sound otherwise than alone
        how.speed = 1.0
        spoken = [speaker.sentence("", speaker.processor.process(text).ids).samples for text in texts[600:]]
        said = [np.array(voice.generate(text, how).samples, np.float32) for text in texts[600:]]
        same = [
            len(one) == len(other) and np.abs(one - other).max() < 1e-6 for one, other in zip(said, spoken, strict=True)
        ]
        store = opened.task.prepared.store("train")
        trained = [store.line(index).text for index in range(len(store))]
        lexicon = make_lexicon(speaker.processor, [*trained, *words.read_text().splitlines()])
        symbols = [by_sherpa(speaker.processor, lexicon, text) for text in texts[600:]]
        whole = [list(one.symbols) for one in speaker.processor.process_all(texts[600:])]
        assert same == [one == other for one, other in zip(symbols, whole, strict=True)]
        assert np.mean(same) > 0.85
    assert len(found[0, 0.7]) > 1.2 * len(found[0, 1.0])
    if name == "duet":
        assert (folder / "speakers.txt").read_text() == "0 ann\n1 ben\n"
        assert not np.array_equal(found[0, 1.0], found[1, 1.0])
    assert len(opened_by_sherpa("model.int8.onnx").generate("He saw me, now.", how).samples) > 100
    assert (folder / "model.int8.onnx").stat().st_size < (folder / "model.onnx").stat().st_size
    [code_in_card] = CARD.findall((folder / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    exec(code_in_card, {})
    assert len(soundfile.read("speech.wav")[0]) > 1000
