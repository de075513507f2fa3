"""What a Whisper writes with times, by its own procedure, is what transformers writes: the same tokens and times."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from lhotse import Recording, SupervisionSegment
from transformers import WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper import generation_whisper, tokenization_whisper

import tiny_listener
from tiny_whisper import whisper_tokenizer, write_whisper
from vaak.audio.segments import Interval
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.nn.decoding import sampling
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.transcripts import Segment, Transcript, vtt_text
from vaak.tasks.asr.utterances import join_utterances
from vaak.tasks.asr.vocabulary import SpecialIds, Vocabulary
from vaak.tasks.asr.whisper.data import Timing, WhisperDataset
from vaak.tasks.asr.whisper.features import WhisperFeatures, WhisperSamples
from vaak.tasks.asr.whisper.model import AsrModel
from vaak.tasks.asr.whisper.network import loaded_whisper
from vaak.tasks.asr.whisper.predict import TranscriptWriter, WhisperTranscriber, compression_ratio, require_decoding
from vaak.tasks.asr.whisper.seeking import Listener, listen_on, open_listener
from vaak.tasks.asr.whisper.sherpa import written_tokens
from vaak.tasks.asr.whisper.task import WhisperTask
from vaak.tasks.asr.whisper.times import Piece, median_filtered, read_words, warped, words_by_token

SECONDS, SEEDS = 2.0, (0, 2, 4)
HEADS = ((0, 1), (1, 0), (1, 1))


@dataclass
class Made:
    """A Whisper of random weights that reads 2 s; times, and the end of its texts, are probable enough to matter."""

    original: WhisperForConditionalGeneration
    tokenizer: WhisperTokenizer
    vocabulary: Vocabulary
    features: WhisperFeatures

    def transcriber(self, **options: Any) -> WhisperTranscriber:
        decoding = AsrDecodingConfig(**options)
        return WhisperTranscriber(AsrModel(self.original).eval(), self.vocabulary, self.features, decoding, heads=HEADS)

    def generate(self, features: torch.Tensor, **options: Any) -> Any:
        self.original.set_attn_implementation("eager")
        options = {"language": "hi", "task": "transcribe", "return_timestamps": True, **options}
        with torch.no_grad():
            return self.original.generate(features, **options)

    def text_ids(self, row: list[int]) -> list[int]:
        """The tokens of a row without the end."""
        return [token for token in row if token != self.vocabulary.ids.end]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Made]:
    found = {}
    for seed in SEEDS:
        folder = write_whisper(tmp_path_factory.mktemp("whisper"), seed, max_target_positions=40, num_times=101)
        model, tokenizer = loaded_whisper(str(folder), SECONDS).eval(), WhisperTokenizer.from_pretrained(folder)
        ids, generation = tokenizer.get_vocab(), model.generation_config
        first = ids["<|0.00|>"]
        generation.suppress_tokens = [token for token in generation.suppress_tokens if token < first]
        generation.prev_sot_token_id, generation.max_initial_timestamp_index = ids["<|startofprev|>"], 50
        generation.alignment_heads = [list(one) for one in HEADS]
        with torch.no_grad():
            model.model.decoder.embed_tokens.weight[ids["<|endoftext|>"]] *= 1.6
        vocabulary = Vocabulary.of_whisper(tokenizer, model.config, generation, "hi")
        found[seed] = Made(model, tokenizer, vocabulary, WhisperFeatures(80, SECONDS))
    return found


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise whose level rises and falls."""
    rng, time = np.random.default_rng(seed), np.arange(round(seconds * 16_000)) / 16_000
    return (rng.normal(0, 0.1, len(time)) * np.sin(2 * np.pi * (0.7 + seed) * time)).astype(np.float32)


def rows_of(made: Made, number: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.stack([made.features(speech(1.0 + 0.3 * seed, seed)) for seed in range(number)]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"language": "auto"}, {"language": None}),
        pytest.param(
            {"task": "translate", "language": "en"}, {"task": "translate", "language": "en"}, marks=pytest.mark.slow
        ),
        pytest.param({"prompt": "so it is"}, {"prompt": True}, marks=pytest.mark.slow),
        ({"max_initial_timestamp": None}, {"latest": None}),
        pytest.param({"max_initial_timestamp": 0.2}, {"latest": 10}, marks=pytest.mark.slow),
        ({"max_new_tokens": 7}, {"max_new_tokens": 7}),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_tokens_with_times_are_those_of_generate(made: dict[int, Made], options: Any, expected: Any):
    one, more = made[SEEDS[len(str(options)) % len(SEEDS)]], dict(expected)
    rows, generation = rows_of(one, 3), cast("Any", one.original.generation_config)
    if more.pop("prompt", False):
        more["prompt_ids"] = torch.tensor(one.tokenizer.get_prompt_ids("so it is"))
    latest, before = more.pop("latest", 50), generation.max_initial_timestamp_index
    generation.max_initial_timestamp_index = latest
    try:
        found = [one.generate(row[None], force_unique_generate_call=True, **more)[0].tolist() for row in rows]
    finally:
        generation.max_initial_timestamp_index = before
    transcriber = one.transcriber(timestamps="segment", **options)
    decoded = transcriber.decode(transcriber.encoded(list(rows.numpy())))
    assert [list(row.prompt) + list(row.tokens) for row in decoded] == [one.text_ids(row) for row in found]
    assert any(token in one.vocabulary.times for token in decoded[0].tokens)


def test_without_times_prompts_are_those_of_generate(made: dict[int, Made]):
    one = made[2]
    rows, prompt = rows_of(one), torch.tensor(one.tokenizer.get_prompt_ids("so it is"))
    options = {
        "task": "translate",
        "language": None,
        "prompt_ids": prompt,
        "return_timestamps": False,
        "suppress_tokens": list(one.vocabulary.ids.never),
        "force_unique_generate_call": True,
    }
    expected = [one.text_ids(one.generate(row[None], **options)[0].tolist()) for row in rows]
    transcriber = one.transcriber(task="translate", language="auto", prompt="so it is")
    for decoded, tokens in zip(transcriber.decode(transcriber.encoded(list(rows.numpy()))), expected, strict=True):
        assert [*decoded.prompt, *decoded.tokens][: len(tokens)] == tokens  # ours may have one more, which isn't read


LONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"condition_on_previous": True}, {"condition_on_prev_tokens": True}),
    ({"prompt": "so it is"}, {"prompt": True}),
    ({"condition_on_previous": True, "prompt": "no"}, {"condition_on_prev_tokens": True, "prompt": "no"}),
    ({"language": "auto", "max_initial_timestamp": 0.5}, {"language": None, "latest": 25}),
    ({"timestamps": "word"}, {"return_token_timestamps": True}),
    (
        {"timestamps": "word", "condition_on_previous": True},
        {"return_token_timestamps": True, "condition_on_prev_tokens": True},
    ),
]


def test_hypotheses_of_one_recording_share_the_keys_of_its_audio(
    made: dict[int, Made], monkeypatch: pytest.MonkeyPatch
):
    shared, select = list[bool](), TranscriptWriter.select

    def note(self: TranscriptWriter, rows: torch.Tensor) -> None:
        select(self, rows)
        shared.append(all(one.keys.stride(0) == 0 for one in self.cache.cross_attention_cache.layers))

    monkeypatch.setattr(TranscriptWriter, "select", note)
    transcriber = made[0].transcriber(method="beam", beam_size=3, max_new_tokens=12)
    features = [made[0].features(speech(seconds, seed)) for seed, seconds in enumerate((1.9, 1.2))]
    alone = [transcriber.texts_of_windows([one])[0] for one in features]
    assert shared
    assert all(shared)
    shared.clear()
    assert transcriber.texts_of_windows(features) == alone, "where several have copies"
    assert not shared[0]


def listened(transcriber: WhisperTranscriber, path: Path) -> Any:
    listener = open_listener(transcriber, path)
    assert isinstance(listener, Listener)
    while listener.frames_left > 0:
        listen_on(transcriber, [listener])
    return listener


def long_form(one: Made, path: Path, **options: Any) -> Any:
    """The segments that transformers finds in a recording."""
    samples = soundfile.read(path, dtype="float32")[0]
    whole = one.features._extractor(
        samples,
        sampling_rate=16_000,
        truncation=False,
        padding="longest",
        return_attention_mask=True,
        return_tensors="pt",
    )
    generation, latest = cast("Any", one.original.generation_config), options.pop("latest", 50)
    before, generation.max_initial_timestamp_index = generation.max_initial_timestamp_index, latest
    if text := options.pop("prompt", None):
        text = "so it is" if text is True else text
        options["prompt_ids"] = torch.tensor(one.tokenizer.get_prompt_ids(text))
    try:
        return one.generate(
            whole["input_features"], attention_mask=whole["attention_mask"], return_segments=True, **options
        )["segments"][0]
    finally:
        generation.max_initial_timestamp_index = before


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "long.wav"
    soundfile.write(path, speech(4.71, 1), 16_000, subtype="FLOAT")
    return path


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[pytest.mark.slow] if number not in (0, 4) else []) for number in range(len(LONG))],
)
def test_long_recordings_are_those_of_generate(made: dict[int, Made], number: int, recording: Path):
    one, (options, expected) = made[SEEDS[number % len(SEEDS)]], LONG[number]
    segments = long_form(one, recording, **dict(expected))
    found = listened(one.transcriber(long_form="seek", **options), recording)
    assert found.said == [segment["tokens"].tolist() for segment in segments]
    assert len(segments) > 3
    for ours, theirs in zip(found.segments, segments, strict=True):
        assert (ours.start, ours.end) == pytest.approx((float(theirs["start"]), float(theirs["end"])), abs=6e-4)
        if "token_timestamps" not in theirs:
            continue
        times = theirs["token_timestamps"].tolist()
        tokens = theirs["tokens"].tolist()
        spans = [
            (token, (round(times[place - 1], 2), round(times[place], 2)))
            for place, token in enumerate(tokens)
            if token not in one.vocabulary.times
        ]
        words = tokenization_whisper._collate_word_timestamps(
            one.tokenizer, [token for token, _ in spans], [span for _, span in spans], "hindi", False
        )
        words = [word for word in words if word["text"].strip()]
        assert [word.text for word in ours.words] == [word["text"].strip() for word in words]
        for word, about in zip(ours.words, words, strict=True):
            assert (word.start, word.end) == pytest.approx(about["timestamp"], abs=1e-3)


@pytest.mark.slow
def test_failed_windows_are_written_again_as_by_generate(
    made: dict[int, Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # What is drawn is the token at which the running sum of probabilities exceeds 0.37, there and here.
    def drawn(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        return sampling.drawn(probabilities, torch.full((len(probabilities),), 0.37))[:, None]

    monkeypatch.setattr(torch, "multinomial", drawn)
    monkeypatch.setattr(sampling, "uniform_numbers", lambda keys, position: np.full(len(keys), 0.37))
    one, short, differ = made[2], tmp_path / "short.wav", set()
    soundfile.write(short, speech(2.7, 1), 16_000, subtype="FLOAT")
    for thresholds in (
        {},
        {"compression_ratio_threshold": 1.35},
        {"logprob_threshold": -1.45},
        {"logprob_threshold": -1.45, "no_speech_threshold": 1e-5},
        {"logprob_threshold": -1.0, "no_speech_threshold": 0.0},
    ):
        theirs = {"condition_on_prev_tokens": True, "temperature": (0.0, 0.35, 0.7), "top_k": 0, **thresholds}
        segments = long_form(one, short, **theirs)
        ours = {**thresholds, "condition_on_previous": True, "temperature_step": 0.35}
        found = listened(one.transcriber(long_form="seek", **ours), short)
        assert found.said == [segment["tokens"].tolist() for segment in segments], thresholds
        differ.add(str(found.said))
    assert len(differ) == 5, "each threshold changes something"
    assert "[]" in differ, "where all windows are silent, nothing is written"


def test_recordings_together_are_as_alone(made: dict[int, Made], recording: Path, tmp_path: Path):
    one = made[2]
    paths = [recording, tmp_path / "none.wav", *(tmp_path / f"{number}.wav" for number in range(3))]
    for number, path in enumerate(paths[2:]):
        soundfile.write(path, speech((0.5, 4.1, 0.0)[number], number), 16_000)
    transcriber = one.transcriber(long_form="seek", condition_on_previous=True, timestamps="word", language="auto")
    together = list(transcriber.transcribe_files(paths, batch_size=4))
    assert [isinstance(found, UserError) for found in together] == [False, True, False, False, True]
    for number in (0, 2, 3):
        assert together[number] == transcriber.transcribe(paths[number])
    assert isinstance(together[0], Transcript)
    segment = together[0].segments[0]
    assert segment.words
    assert segment.language in ("en", "hi")


def test_silence_is_looked_for_in_all_windows_at_once(made: dict[int, Made], monkeypatch: pytest.MonkeyPatch):
    """The previous texts have two lengths here, so there are two passes for four windows."""
    transcriber = made[0].transcriber(logprob_threshold=-1.0, no_speech_threshold=0.5)
    encoded, before = transcriber.encoded(list(rows_of(made[0]).numpy())), [[], [5, 6], [], [7, 8]]
    prompts = [transcriber.prompt("hi", one) for one in before]
    passes, decode = list[int](), AsrModel.decode

    def count(model: AsrModel, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        passes.append(len(tokens))
        return decode(model, tokens, *others)

    monkeypatch.setattr(AsrModel, "decode", count)
    together = transcriber._silence(encoded, prompts)
    assert passes == [2, 2]
    alone = [transcriber._silence(encoded.rows(slice(row, row + 1)), [prompts[row]])[0] for row in range(4)]
    assert together == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == 4


def test_windows_cut_at_silences_have_times_of_the_recording(made: dict[int, Made], recording: Path):
    transcript = made[2].transcriber(timestamps="word", long_form="silences").transcribe(recording)
    starts = [segment.start for segment in transcript.segments]
    assert starts == sorted(starts)
    assert starts[-1] > SECONDS
    for segment in transcript.segments:
        assert 0 <= segment.start <= segment.end
        assert all(word.start <= word.end for word in segment.words)
    plain = made[2].transcriber().transcribe(recording)
    assert len(transcript.segments) > len(plain.segments)
    assert transcript.vtt.startswith("WEBVTT\n\nSTYLE\n")
    assert plain.vtt.startswith("WEBVTT\n\n00:00:0")


def test_words_and_compression_are_those_of_transformers(made: dict[int, Made]):
    vocabulary, tokenizer = made[0].vocabulary, made[0].tokenizer
    for text in ("So, it is (quite) good.", "“नमस्ते” दुनिया, क्या हाल?", " - x", "100 % so-called"):
        tokens = vocabulary.encode(text)
        expected = tokenization_whisper._combine_tokens_into_words(tokenizer, tokens, "hindi")
        assert words_by_token(vocabulary, tokens) == list(zip(expected[0], map(len, expected[1]), strict=True))
        expected = tokenization_whisper._combine_tokens_into_words(tokenizer, tokens, "japanese")
        assert words_by_token(vocabulary, tokens, by_spaces=False) == list(
            zip(expected[0], map(len, expected[1]), strict=True)
        )
    times = [0.02 * place for place in range(len(vocabulary.encode("so it")))]
    assert [tuple(word) for word in read_words(vocabulary, vocabulary.encode("so it"), times, "en", 0.0)] == [
        (0.0, 0.04, "so"), (0.04, 0.1, "it")
    ]  # fmt: skip
    for tokens in (list(range(40)), [5, 6, 7] * 20):
        expected = generation_whisper.WhisperGenerationMixin._retrieve_compression_ratio(torch.tensor(tokens), 400)
        assert compression_ratio(tokens, 400) == expected


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 3), (12, 40)])
def test_warping_and_median_are_those_of_transformers(shape: tuple[int, int]):
    rng = np.random.default_rng(0)
    for _ in range(10):
        costs = np.round(rng.normal(size=shape), 1)  # some are equal
        rows, positions = generation_whisper._dynamic_time_warping(costs)
        begins = positions[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]
        assert warped(costs) == [max(0, one) for one in begins.tolist()]
    values = torch.from_numpy(rng.normal(size=(2, *shape)))
    expected = generation_whisper._median_filter(values[None], 7)[0]
    torch.testing.assert_close(median_filtered(values, 7), expected, rtol=0, atol=0)


def test_what_a_base_cannot_do_is_an_error(made: dict[int, Made], tmp_path: Path):
    known = made[0].vocabulary
    require_decoding(known, AsrDecodingConfig(language="auto", timestamps="word", task="translate", prompt="so"))
    with pytest.raises(UserError, match=r"data\.decoding\.language: the base doesn't know fr; expected auto, en, hi"):
        require_decoding(known, AsrDecodingConfig(language="fr"))
    english = Vocabulary(known.content, replace(known.ids, prompt=(known.ids.prompt[0], known.ids.prompt[-1])))
    for options in ({"language": "auto"}, {"task": "translate"}):
        with pytest.raises(UserError, match="knows one language only"):
            require_decoding(english, AsrDecodingConfig(**options))


def write_pairs(folder: Path, rng: np.random.Generator) -> dict[str, list[dict[str, Any]]]:
    """Recordings of two utterances with pauses of up to 0.35 s before them; their lines by split."""
    found = dict[str, list[dict[str, Any]]]()
    for split, number in (("train", 6), ("valid", 2), ("test", 2)):
        lines = found[split] = []
        for index in range(number):
            segments, samples, seconds = list[dict[str, Any]](), list[np.ndarray](), 0.0
            for _ in range(2):
                words = [str(word) for word in rng.choice(list(tiny_listener.WORDS), 1 + int(rng.integers(2)))]
                spoken = tiny_listener.make_samples(words, "low", rng)
                pause = np.zeros(round(rng.uniform(0.05, 0.35) * tiny_listener.RATE))
                start = seconds + len(pause) / tiny_listener.RATE
                seconds = start + len(spoken) / tiny_listener.RATE
                segments.append({"start": start, "end": seconds, "speaker": "a", "text": " ".join(words)})
                samples += [pause, spoken]
            sound = np.concatenate(samples)
            file = folder / f"{split}{index}.wav"
            soundfile.write(file, sound + 1e-3 * rng.standard_normal(len(sound)), tiny_listener.RATE)
            lines.append({"audio": file.name, "segments": segments})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return found


def experiment_on_pairs(folder: Path, *more: str) -> Any:
    options = write_whisper(folder / "whisper", max_target_positions=48, num_times=101) / "generation_config.json"
    options.write_text(json.dumps({**json.loads(options.read_text()), "alignment_heads": HEADS}))
    about = tiny_listener.options(
        folder,
        model={"base": str(folder / "whisper")},
        data={"max_duration": 2.0, "language": "hi", "timestamps": 1.0, "join_utterances": True},
    )
    (folder / "pairs.yml").write_text(yaml_text(about))
    return load([folder / "pairs.yml"], [f"run_dir={folder / 'run'}", *more])


def test_times_in_training_are_targets_as_in_transformers(tmp_path: Path):
    lines = write_pairs(tmp_path, np.random.default_rng(0))["train"]
    task = WhisperTask(experiment_on_pairs(tmp_path).experiment, tmp_path / "run", tmp_path)
    task.prepare()
    dataset, vocabulary = task.dataset("train"), task.prepared.vocabulary
    assert len(dataset.lengths) == len(lines)
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(3)]
    for example, line in zip(examples, lines, strict=False):
        expected = list[int]()
        for one in line["segments"]:
            times = [vocabulary.times[round(one[edge] / 0.02)] for edge in ("start", "end")]
            expected += [times[0], *vocabulary.encode(one["text"]), times[1]]
        assert example.ids.tolist() == expected
    plain = replace(examples[0], ids=np.array(vocabulary.encode("so it is"), np.int64), has_times=False)
    batch, model = dataset.collate([[one] for one in (*examples, plain)]), task.model().eval()
    assert isinstance(model, AsrModel)
    assert task.transcriber(model).heads == HEADS  # those of the base
    assert batch["inputs"][3, 3] == vocabulary.times.start - 1
    assert batch["inputs"][0, 3] in vocabulary.times
    [term] = task.losses(model, batch).values()
    with torch.no_grad():
        theirs = model.whisper(batch["features"], decoder_input_ids=batch["inputs"], labels=batch["targets"])
    torch.testing.assert_close(term.total / batch.counts["token"].sum(), theirs.loss)
    # A text that doesn't fit with its times is learned without.
    assert isinstance(dataset, WhisperDataset)
    dataset.timing = Timing(1.0, 3)
    assert not dataset.example(0, np.random.default_rng(0)).has_times
    assert not task.dataset("valid").example(0, np.random.default_rng(0)).has_times


def _recording(path: Path, segments: list[dict[str, Any]]) -> Any:
    supervisions = [
        SupervisionSegment(str(number), "r", one["start"], one["end"] - one["start"], text=one["text"], speaker="a")
        for number, one in enumerate(segments)
    ]
    cut = Recording.from_file(path, recording_id="r").to_cut()
    cut.supervisions = supervisions
    return cut


def test_joined_utterances_are_neighbours_that_fit(tmp_path: Path):
    [line, *_] = write_pairs(tmp_path, np.random.default_rng(0))["train"]
    (first, second), duration = line["segments"], line["segments"][1]["end"]
    for longest, number in ((2.0, 1), (second["end"] - first["start"] - 0.01, 2)):
        parts = list(join_utterances(_recording(tmp_path / line["audio"], line["segments"]), longest))
        assert len(parts) == number
        assert all(part.duration <= longest + 1e-6 for part in parts)
        for part in parts:
            for item in part.supervisions[0].alignment["segment"]:
                truth = next(one for one in line["segments"] if one["text"] == item.symbol)
                assert part.start + item.start == pytest.approx(truth["start"], abs=1e-4)
    assert parts[0].end <= second["start"] + 1e-4
    assert duration == pytest.approx(parts[1].end, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"timestamps": "word", "language": "auto"}])
def test_features_that_the_device_makes_give_the_same_transcripts(
    made: dict[int, Made], options: dict[str, str], recording: Path, tmp_path: Path
):
    paths = [tmp_path / "short.wav", recording, tmp_path / "silent.wav"]
    soundfile.write(paths[0], speech(0.5, 1), 16_000)
    soundfile.write(paths[2], np.zeros(4000), 16_000)
    of_loader = made[0].transcriber(**options)
    of_device = replace(of_loader, features=WhisperSamples(80, SECONDS))
    expected = list(of_loader.transcribe_files(paths, 4))
    assert list(of_device.transcribe_files(paths, 3)) == expected
    assert any(isinstance(one, Transcript) and one.text for one in expected)


ADDED = ("चाय", "<laugh>", "kettle")


@pytest.fixture(scope="module")
def with_added(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A Whisper whose tokenizer got three tokens, of which one is special, and whose model has rows for them."""
    folder = write_whisper(tmp_path_factory.mktemp("added"), max_target_positions=40, num_times=101)
    tokenizer: Any = WhisperTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["चाय", "kettle"])
    tokenizer.add_tokens(["<laugh>"], special_tokens=True)
    model = loaded_whisper(str(folder), SECONDS).eval()
    with pytest.raises(UserError, match=r"its tokenizer has 370 tokens, its model 367; call .*resize_token_embeddings"):
        Vocabulary.of_whisper(tokenizer, model.config, model.generation_config, "hi")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    vocabulary = Vocabulary.of_whisper(tokenizer, model.config, model.generation_config, "hi")
    return Made(model, tokenizer, vocabulary, WhisperFeatures(80, SECONDS))


def test_times_are_those_of_that_name_and_added_tokens_are_read_written_and_decoded(with_added: Made, tmp_path: Path):
    vocabulary, ids = with_added.vocabulary, cast("Any", with_added.tokenizer).get_vocab()
    assert [*vocabulary.times] == [ids[f"<|{0.02 * place:.2f}|>"] for place in range(101)]
    added = [ids[name] for name in ADDED]
    assert min(added) > vocabulary.times[-1]
    assert not {*added} & {*vocabulary.ids.never}
    text = "so चाय <laugh> a kettle"
    found = vocabulary.encode(text)
    assert [one for one in found if one in added] == added
    assert vocabulary.decode([vocabulary.times[3], *found, vocabulary.times[9]]) == text
    vocabulary.save(tmp_path)
    again = Vocabulary.load(tmp_path)
    assert (again.times, again.encode(text)) == (vocabulary.times, found)
    assert {*again.added} == {*ADDED}
    written = dict(written_tokens(vocabulary))
    assert [base64.b64decode(written[one]).decode() for one in added] == [*ADDED]
    assert not {*vocabulary.times} & {*written}


@pytest.mark.parametrize("times", ["none", "segment"])
def test_a_model_that_favours_an_added_token_writes_it(with_added: Made, times: str):
    one = with_added.transcriber(timestamps=times, language="hi", max_new_tokens=6)
    token = one.vocabulary.token("<laugh>")
    with torch.no_grad():
        bias = torch.zeros(one.vocabulary.ids.size).index_fill(0, torch.tensor([token]), 30.0)
    whole = one.model.whisper.proj_out.register_forward_hook(lambda module, given, found: found + bias)
    try:
        [decoded] = one.decode(one.encoded([with_added.features(speech(1.0))]))
    finally:
        whole.remove()
    assert token in decoded.tokens
    assert "<laugh>" in one.vocabulary.decode(decoded.tokens)
    spoken = [place for place in decoded.tokens if place in one.vocabulary.times]
    assert bool(spoken) == (times == "segment")
    assert spoken == sorted(spoken)


def test_a_tokenizer_without_names_for_times_has_them_after_the_others_only():
    backend = whisper_tokenizer(num_times=0).backend_tokenizer
    last = backend.token_to_id("<|notimestamps|>")
    content = backend.to_str()
    ids = SpecialIds((backend.token_to_id("<|startoftranscript|>"),), 0, 0, last + 1 + 1501 + 4, ())
    assert Vocabulary(content, ids).times == range(last + 1, last + 1502), "4 more are not times"
    backend.add_tokens(["new"])
    assert not Vocabulary(backend.to_str(), ids).times, "new is where times would begin"


def test_a_word_is_as_probable_as_the_mean_of_its_tokens_in_transformers(made: dict[int, Made]):
    """Geometric, by the logits that transformers' model has when it reads what was written."""
    one = made[0]
    transcriber = one.transcriber(timestamps="word", language="hi", max_new_tokens=12)
    encoded = transcriber.encoded([one.features(speech(1.6))])
    [decoded] = transcriber.decode(encoded, [0])
    [found] = transcriber.segments_of_pieces(decoded, [Piece(0, len(decoded.tokens), 0.0, 1.6)], 0.0, encoded, 0, 160)
    read = [*decoded.prompt, *decoded.tokens]
    features = torch.from_numpy(one.features(speech(1.6)))[None]
    with torch.no_grad():
        logits = one.original(input_features=features, decoder_input_ids=torch.tensor([read])).logits[0]
    logs = logits.log_softmax(-1)
    each = [float(logs[len(decoded.prompt) - 1 + place, token]) for place, token in enumerate(decoded.tokens)]
    spoken = [place for place, token in enumerate(decoded.tokens) if token not in one.vocabulary.times]
    expected, first = [], 0
    for text, size in words_by_token(one.vocabulary, [decoded.tokens[place] for place in spoken]):
        if text.strip():
            expected.append(np.exp(np.mean([each[place] for place in spoken[first : first + size]])))
        first += size
    assert len(found.probabilities) == len(found.words) > 1
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-4)


def test_improbable_words_are_marked_in_webvtt():
    words = (Interval(0.0, 0.5, "so"), Interval(0.5, 1.0, "<it"), Interval(1.0, 1.5, "so"))
    segment = Segment(0.0, 1.5, "so <it so", words, None, (0.9, 0.4, 0.49))
    cue = "00:00:00.000 --> 00:00:01.500\n"
    marked = f"{cue}so <c.low>&lt;it</c> <c.low>so</c>\n\n"
    assert vtt_text([segment]) == f"WEBVTT\n\nSTYLE\n::cue(.low) {{ color: orange; }}\n\n{marked}"
    sure = segment._replace(probabilities=(0.9, 0.5, 0.6))
    assert vtt_text([sure]) == vtt_text([sure._replace(words=(), probabilities=())])
    assert vtt_text([sure]) == f"WEBVTT\n\n{cue}so &lt;it so\n\n"
