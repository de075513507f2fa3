"""Export a voice with its vocoder for sherpa-onnx's ``OfflineTts``, version 2 or later, in the form of icefall's VITS.

model.onnx      x (1, symbol) and x_length (1,), int64; noise_scale, length_scale and noise_scale_w (1,), float32; of
                several speakers sid (1,), int64 -> samples (1, time), float32 within ±1; sampling rate and more as
                metadata
tokens.txt      a character and the number of its symbol, in each line
lexicon.txt     WORD || CHARACTERS, in each line
speakers.txt    the number and the name of each speaker, if there are several
processor.json  the front end

sherpa-onnx splits a text at spaces and ``,;:.!?``, looks up each word in the lexicon, puts a space between words, and
encloses a sentence as icefall's voices expect: ``^ _ s _ s _ $``. tokens.txt maps these characters to symbols of the
front end: ``^`` and ``$`` are pauses, the space is the boundary between words, and ``_`` is padding, which the model
removes, as it does boundaries next to punctuation. A symbol of several characters (``AH0``, ``ˈa``) is written as a
character of Unicode's private use area.

Some words sound different alone (``the``, ``to``). The lexicon has a word of the training texts in its most frequent
pronunciation there, and other words as they are pronounced alone. A program that gets the symbols of a whole text from
Vaak passes their characters in ``GenerationConfig.phoneme_codepoints``, and doesn't need the lexicon.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import whole_folder, write_text
from vaak.nn.lora import merged
from vaak.nn.onnx_file import OnnxModule, quantize, write_onnx
from vaak.tasks.tts.model import Text
from vaak.tasks.tts.predict import Speaker
from vaak.tasks.vocoding import NetworkVocoder
from vaak.text.speech.phonemes.alphabets import BOUNDARY, PAUSE, PAUSING, PUNCTUATION
from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor, Processed

Symbols = tuple[str, ...]
PRIVATE_AREA = 0xE000
"""The first code point of Unicode's private use area; the index of a symbol is added to it."""
MARKS = ",;:.!?"
"""The punctuation at which sherpa-onnx splits a text, and which it passes to the model."""
WORD = re.compile(rf"[^ \t\n\r{MARKS}]+")
TOKEN = re.compile(rf"[{MARKS}]|{WORD.pattern}")
"""A token of sherpa-onnx: a word or a mark."""
LARGEST_NUMBER = 100
"""The lexicon has numbers in figures up to this one."""
MOST_AFFIXES = 2
"""Every word of the texts is in the lexicon with this many of the most frequent marks before it, and after it."""
AFTER_ALL_PLACES = 1 << 40
"""A sort key after all positions."""
WORDS_AT_ONCE = 500
"""Number of texts that are pronounced in one call."""


def write_voice(speaker: Speaker, texts: Sequence[str], folder: Path, quantization: str | None) -> None:
    """Write a voice to ``folder``, completely or not at all; the lexicon has the words of ``texts``.

    With ``quantization`` int8, ``model.int8.onnx`` is written, too, with the weights of matrices in 8 bits.

    Raises UserError for a speaker without a trained vocoder, as ``write_onnx`` does, and if the folder isn't empty.
    """
    exported, processor = _make_module(speaker), speaker.processor
    with whole_folder(folder) as made:
        write_onnx(made / "model.onnx", exported)
        if quantization is not None:
            quantize(made / "model.onnx", made / "model.int8.onnx")
        processor.save(made / PROCESSOR_FILE)
        tokens = number_tokens(processor).items()
        write_text(made / "tokens.txt", "".join(f"{character} {number}\n" for character, number in tokens))
        lexicon = make_lexicon(processor, texts, speaker.lexicon)
        write_text(made / "lexicon.txt", "".join(render_lexicon(processor, lexicon)))
        if _count_speakers(speaker) > 1:
            names = enumerate(speaker.speakers)
            write_text(made / "speakers.txt", "".join(f"{number} {name}\n" for number, name in names))


def _make_module(speaker: Speaker) -> OnnxModule:
    """Return a voice and its vocoder as one function, with sherpa-onnx's metadata.

    Raises UserError for a speaker without a trained vocoder.
    """
    vocoder, processor, num_speakers = speaker.vocoder, speaker.processor, _count_speakers(speaker)
    if not isinstance(vocoder, NetworkVocoder):
        raise UserError(
            "--format sherpa-onnx: this run speaks by Griffin–Lim, which such a file can't have; give --vocoder, a run "
            "of task vocoder that was trained on the same spectrograms"
        )
    metadata = {
        "model_type": "vits",
        # sherpa-onnx recognises the form of the voice by the word icefall.
        "comment": "a voice of Vaak, in the form of icefall",
        "language": processor.config.language,
        "sample_rate": speaker.sampling_rate,
        "n_speakers": num_speakers,
        "add_blank": 0,
    }
    inputs, *others = (_draw_text(processor, num_speakers, *one) for one in ((0, 9), (1, 3), (2, 25)))
    strings = {name: str(value) for name, value in metadata.items()}
    return OnnxModule(SpokenFunction(speaker, vocoder), inputs, {"x": {1: "symbol"}}, ("samples",), others, strings)


def _count_speakers(speaker: Speaker) -> int:
    return len(speaker.speakers) if speaker.model.speakers is not None else 1


def _draw_text(processor: PhonemeProcessor, num_speakers: int, seed: int, length: int) -> dict[str, Tensor]:
    """Draw a text of ``length`` symbols in the form that sherpa-onnx gives it, with the model's other inputs."""
    symbols = torch.randint(1, processor.num_symbols, (length,), generator=torch.Generator().manual_seed(seed))
    # A pause at both ends, and padding between symbols.
    spaced = torch.stack([symbols, torch.full_like(symbols, processor.pad_id)], 1).flatten()
    pause, pad = torch.tensor([processor.pause_id]), torch.tensor([processor.pad_id])
    x = torch.cat([pause, pad, spaced, pause])[None]
    scales = {"noise_scale": torch.zeros(1), "length_scale": torch.tensor([0.8]), "noise_scale_w": torch.ones(1)}
    sid = {"sid": torch.tensor([num_speakers - 1])} if num_speakers > 1 else {}
    return {"x": x, "x_length": torch.tensor([x.shape[1]]), **scales, **sid}


class SpokenFunction(nn.Module):
    """A voice and its vocoder as one function, for one text; inputs and outputs are in the module's docstring."""

    parts_words: Tensor

    def __init__(self, speaker: Speaker, vocoder: NetworkVocoder) -> None:
        super().__init__()
        self.model, self.generator = speaker.model, merged(vocoder.generator)
        self.controls, self.hop_length = speaker.controls, vocoder.hop_length
        symbols = speaker.processor.symbols
        self.pad_id, self.boundary_id = speaker.processor.pad_id, symbols.index(BOUNDARY)
        self.register_buffer("parts_words", torch.tensor([one in (PAUSE, *PUNCTUATION) for one in symbols]))

    def forward(self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, *rest: Tensor) -> Any:
        """Return samples (1, time); ``rest`` has the ignored ``noise_scale_w``, and ``sid`` of several speakers."""
        # Neighbouring symbols are two positions apart, with padding between them.
        before, after = F.pad(x, (2, 0))[:, :-2], F.pad(x, (0, 2))[:, 2:]
        is_real = (x != self.pad_id) & ~((x == self.boundary_id) & (self.parts_words[before] | self.parts_words[after]))
        places = torch.arange(x.shape[1]).where(is_real, AFTER_ALL_PLACES)
        # Real symbols move to the front, as in a padded batch.
        symbols = x.gather(1, places.argsort(1))
        speakers = rest[1] if len(rest) > 1 else torch.zeros_like(x_length)
        controls = self.controls._replace(speed=self.controls.speed / length_scale[0], temperature=noise_scale[0])
        plan = self.model.plan(Text(symbols, is_real.sum(1), speakers), controls)
        noise = torch.randn_like(self.model.mel(plan.frames)) if self.model.config.matches_flows else None
        spoken = self.model.spectrogram(plan, noise, controls)
        num_frames: Any = spoken.plan.frame_lengths[0].item()
        # The exporter needs bounds for a size that depends on data.
        torch._check(num_frames >= 2)
        torch._check(num_frames <= spoken.mel.shape[1])
        samples = self.generator(spoken.mel[:, :num_frames])
        return (samples[:, : (num_frames - 1) * self.hop_length].clamp(-1, 1),)


def assign_characters(processor: PhonemeProcessor) -> dict[str, str]:
    """Return the character of each symbol in tokens.txt."""
    return {
        symbol: symbol if len(symbol) == 1 and symbol != BOUNDARY else chr(PRIVATE_AREA + number)
        for number, symbol in enumerate(processor.symbols)
    }


def number_tokens(processor: PhonemeProcessor) -> dict[str, int]:
    """Return the id of each character in tokens.txt: those of symbols, and those that sherpa-onnx itself writes."""
    ids = {symbol: index for index, symbol in enumerate(processor.symbols)}
    if not processor.config.word_boundaries:
        ids[BOUNDARY] = processor.pad_id
    characters = assign_characters(processor)
    found = {characters[symbol]: index for symbol, index in ids.items()}
    if processor.config.punctuation == "pause":
        found |= dict.fromkeys(MARKS, processor.pause_id)
    ends = dict.fromkeys("^$", processor.pause_id)
    return found | {"_": processor.pad_id, **ends, " ": ids[BOUNDARY]}


def render_lexicon(processor: PhonemeProcessor, lexicon: Mapping[str, Symbols]) -> Iterator[str]:
    """Yield the lines of lexicon.txt, except for words that contain its syntax (``#``, ``||``)."""
    characters = assign_characters(processor)
    for word in sorted(lexicon):
        if not word.startswith("#") and "||" not in word:
            yield f"{word} || {' '.join(characters[one] for one in lexicon[word])}\n"


def make_lexicon(
    processor: PhonemeProcessor, texts: Sequence[str], given: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Symbols]:
    """Return the symbols of each word of ``texts``, of the front end's own lexicon, and of small numbers in figures.

    ``given`` maps words, in lower case, to phonemes (ARPAbet or IPA) that replace those of the front end.

    A word of the texts is listed with the marks that it has there, such as quotation marks, and with the most frequent
    marks of all. A pair of words has an entry of its own if the front end joins it (``of the``), or pronounces it
    otherwise than the two words (``the old``).
    """
    content = json.loads(processor.to_json())
    # Boundaries separate words here; tokens.txt decides whether they are spoken.
    content["options"]["word_boundaries"] = True
    processor = PhonemeProcessor.from_json(json.dumps(content))
    marks = Marks(processor)
    written = Counter(marks.split(word) for text in texts for word in WORD.findall(text))
    known = find_usual_symbols(processor, marks, texts)
    # Reversed, so that the most common spelling of a word is the last one, which a dictionary keeps.
    cores = {core.lower(): core for (_, core, _), _ in reversed(written.most_common()) if core}
    alone = {word: cores.get(word, word) for word in (*cores, *processor.entries, *map(str, range(LARGEST_NUMBER + 1)))}
    missing = [word for word in alone if word not in known]
    for word, processed in zip(missing, pronounce(processor, [alone[word] for word in missing]), strict=True):
        if processed is not None:
            known[word] = processed.symbols
    known = {words: symbols for words, symbols in known.items() if given.keys().isdisjoint(words.split())}
    known |= {word: processor.symbols_of_phonemes(phonemes) for word, phonemes in given.items()}
    # The empty word belongs to a mark that stands alone.
    known[""] = ()
    before = Counter(prefix for prefix, core, _ in written.elements() if prefix and core)
    after = Counter(suffix for _, core, suffix in written.elements() if suffix and core)
    usual = [("", ""), *((prefix, "") for prefix, _ in before.most_common(MOST_AFFIXES))]
    usual += [("", suffix) for suffix, _ in after.most_common(MOST_AFFIXES)]
    affixed = {(prefix, core.lower(), suffix) for prefix, core, suffix in written if core.lower() in known}
    affixed |= {(prefix, core, suffix) for core in cores.keys() & known.keys() for prefix, suffix in usual}
    affixed |= {("", word, "") for word in known}
    return {
        form: symbols
        for prefix, core, suffix in affixed
        if (symbols := (*marks.symbols(prefix), *known[core], *marks.symbols(suffix)))
        for form in _spell_forms(core, prefix, suffix)
    }


def find_usual_symbols(processor: PhonemeProcessor, marks: Marks, texts: Sequence[str]) -> dict[str, Symbols]:
    """Return the most frequent symbols of words in ``texts``, and of pairs that sound unlike the two words alone."""
    phrases = [marks.phrases(text) for text in texts]
    pairs = Counter(f"{one} {next_}" for some in phrases for phrase in some for one, next_ in pairwise(phrase))
    often = [pair for pair, count in pairs.items() if count > 1]
    spoken = zip(often, pronounce(processor, often), strict=True)
    together = {pair for pair, processed in spoken if processed and len(_split_words(processed.symbols)) == 1}
    found: dict[tuple[str, ...], Counter[Symbols]] = defaultdict(Counter)
    for some, processed in zip(phrases, pronounce(processor, texts), strict=True):
        units = [_join_words(phrase, together) for phrase in some]
        groups = [] if processed is None else _split_words(processed.symbols)
        # Figures and abbreviations are spoken as several words, so symbols can't be assigned to words.
        if len(groups) != sum(map(len, units)):
            continue
        spoken_words = iter(groups)
        for phrase in units:
            spoken_units = [(unit, next(spoken_words)) for unit in phrase]
            for unit, symbols in spoken_units:
                found[(unit,)][symbols] += 1
            for (first, symbols), (second, others) in pairwise(spoken_units):
                found[first, second][*symbols, BOUNDARY, *others] += 1
    usual = {units: counts.most_common(1)[0][0] for units, counts in found.items()}
    return {
        " ".join(units): symbols
        for units, symbols in usual.items()
        if len(units) == 1 or symbols != (*usual[units[:1]], BOUNDARY, *usual[units[1:]])
    }


def pronounce(processor: PhonemeProcessor, texts: Sequence[str]) -> Iterator[Processed | None]:
    """Yield each text in symbols; None for one that the front end can't read."""
    for start in range(0, len(texts), WORDS_AT_ONCE):
        some = texts[start : start + WORDS_AT_ONCE]
        try:
            yield from processor.process_all(some)
        except DataError:
            if len(some) == 1:
                yield None
            else:
                yield from (one for text in some for one in pronounce(processor, [text]))


def _split_words(symbols: Symbols) -> list[Symbols]:
    """Split the symbols of a text into words."""
    gaps = {BOUNDARY, PAUSE, *PUNCTUATION}
    return [tuple(group) for is_gap, group in groupby(symbols, gaps.__contains__) if not is_gap]


def _join_words(words: Sequence[str], together: Container[str]) -> list[str]:
    """Return the words of a phrase, with each pair in ``together``, which is spoken as one word, joined."""
    found: list[str] = []
    for word in words:
        if found and f"{found[-1]} {word}" in together:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def _spell_forms(word: str, prefix: str, suffix: str) -> Iterator[str]:
    """Yield the spellings of a word with its marks, in all cases unless it is ASCII, which sherpa-onnx lower-cases."""
    cases = {word} if word.isascii() else {word, word.capitalize(), word.upper()}
    for one in cases | {case.replace("'", "’") for case in cases}:
        yield f"{prefix}{one}{suffix}"


class Marks:
    """The marks next to words that the front end reads, such as quotation marks or a danda."""

    def __init__(self, processor: PhonemeProcessor) -> None:
        self.processor = processor
        self._known: dict[str, Symbols | None] = {}

    def symbols(self, marks: str) -> Symbols:
        return tuple(one for mark in marks for one in self._read(mark) or ())

    def split(self, word: str) -> tuple[str, str, str]:
        """Split the marks before and after a word from it."""
        start, end = 0, len(word)
        while start < end and self._read(word[start]) is not None:
            start += 1
        while start < end and self._read(word[end - 1]) is not None:
            end -= 1
        return word[:start], word[start:end], word[end:]

    def phrases(self, text: str) -> list[list[str]]:
        """Return the runs of words in a text, in lower case, that no marks interrupt."""
        found: list[list[str]] = [[]]
        for token in TOKEN.findall(text):
            prefix, core, suffix = self.split(token)
            found += [[]] if prefix else []
            found[-1] += [core.lower()] if core else []
            found += [[]] if suffix else []
        return [phrase for phrase in found if phrase]

    def _read(self, mark: str) -> Symbols | None:
        """Return the symbols of a character; None if it isn't a mark."""
        if mark not in self._known:
            try:
                read = "" if mark.isalnum() else self.processor.normalise(mark)
            except DataError:
                read = ""
            keeps = self.processor.config.punctuation == "keep"
            spoken = (read,) if keeps else (PAUSE,) if read in PAUSING else ()
            self._known[mark] = spoken if read in PUNCTUATION else None
        return self._known[mark]
