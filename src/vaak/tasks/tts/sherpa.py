"""A voice with its vocoder as files for sherpa-onnx's ``OfflineTts``, of version 2 or later, as one of icefall's VITS.

model.onnx      x (1, symbol) and x_length (1,), int64; noise_scale, length_scale and noise_scale_w (1,), float32; of
                several speakers sid (1,), int64 -> samples (1, time), float32 within ±1; sampling rate and more as
                metadata
tokens.txt      a character and the number of its symbol, in each line
lexicon.txt     WORD || CHARACTERS, in each line
speakers.txt    the number and the name of each speaker, if there are several
processor.json  the front end

sherpa-onnx divides a text at spaces and ``,;:.!?``, looks for each word in the lexicon, puts a space between words, and
encloses a sentence as icefall's voices want it: ``^ _ s _ s _ $``. The characters of tokens.txt give that the meaning
that the front end has for it: ``^`` and ``$`` are pauses, the space is the boundary between words, and ``_`` is
padding, which the model takes out, as it does boundaries next to punctuation. A symbol of several characters (``AH0``,
``ˈa``) has one of Unicode's private area.

Words sound different alone (``the``, ``to``): a word of the training texts is written as the front end has it most
often there, and others as it has them alone. A program that has the symbols of a whole text, from Vaak, gives their
characters in ``GenerationConfig.phoneme_codepoints``, and needs no lexicon.
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
"""The first character that Unicode leaves to its users; the number of a symbol is added."""
MARKS = ",;:.!?"
"""The punctuation at which sherpa-onnx divides a text, and which it passes on."""
WORD = re.compile(rf"[^ \t\n\r{MARKS}]+")
TOKEN = re.compile(rf"[{MARKS}]|{WORD.pattern}")
"""How sherpa-onnx divides a text."""
LARGEST_NUMBER = 100
"""The lexicon has the numbers in figures up to this one."""
MOST_AFFIXES = 2
"""Marks at the beginning of words, and as many at their end, with which the lexicon has every word of the texts."""
AFTER_ALL_PLACES = 1 << 40
"""A place after all others."""
WORDS_AT_ONCE = 500
"""Texts that are pronounced together."""


def write_voice(speaker: Speaker, texts: Sequence[str], folder: Path, quantization: str | None) -> None:
    """Write ``folder``, completely or not at all; the lexicon has the words of ``texts``.

    With ``quantization`` int8, there is ``model.int8.onnx``, too: weights of matrices in 8 bits, by onnxruntime.

    Raises UserError for a speaker without a trained vocoder, as ``write_onnx`` does, and where the folder has something
    in it.
    """
    vocoder, processor, model = speaker.vocoder, speaker.processor, speaker.model
    if not isinstance(vocoder, NetworkVocoder):
        raise UserError(
            "--format sherpa-onnx: this run speaks by Griffin–Lim, which such a file can't have; give --vocoder, a run "
            "of task vocoder that was trained on the same spectrograms"
        )
    several = len(speaker.speakers) if model.speakers is not None else 1

    def inputs(seed: int, number: int) -> dict[str, Tensor]:
        symbols = torch.randint(1, processor.num_symbols, (number,), generator=torch.Generator().manual_seed(seed))
        # As sherpa-onnx makes it of a text: a pause at both ends, and padding between symbols.
        spaced = torch.stack([symbols, torch.full_like(symbols, processor.pad_id)], 1).flatten()
        pause, pad = torch.tensor([processor.pause_id]), torch.tensor([processor.pad_id])
        x = torch.cat([pause, pad, spaced, pause])[None]
        scales = {"noise_scale": torch.zeros(1), "length_scale": torch.tensor([0.8]), "noise_scale_w": torch.ones(1)}
        sid = {"sid": torch.tensor([several - 1])} if several > 1 else {}
        return {"x": x, "x_length": torch.tensor([x.shape[1]]), **scales, **sid}

    metadata = {
        "model_type": "vits",
        # sherpa-onnx looks for the word icefall here, to know the form of the voice.
        "comment": "a voice of Vaak, in the form of icefall",
        "language": processor.config.language,
        "sample_rate": speaker.sampling_rate,
        "n_speakers": several,
        "add_blank": 0,
    }
    exported = OnnxModule(
        SpokenFunction(speaker, vocoder),
        inputs(0, 9),
        {"x": {1: "symbol"}},
        ("samples",),
        [inputs(1, 3), inputs(2, 25)],
        {name: str(value) for name, value in metadata.items()},
    )
    with whole_folder(folder) as made:
        write_onnx(made / "model.onnx", exported)
        if quantization is not None:
            quantize(made / "model.onnx", made / "model.int8.onnx")
        processor.save(made / PROCESSOR_FILE)
        write_text(
            made / "tokens.txt", "".join(f"{one} {number}\n" for one, number in number_tokens(processor).items())
        )
        write_text(
            made / "lexicon.txt", "".join(render_lexicon(processor, make_lexicon(processor, texts, speaker.lexicon)))
        )
        if several > 1:
            write_text(
                made / "speakers.txt", "".join(f"{number} {name}\n" for number, name in enumerate(speaker.speakers))
            )


class SpokenFunction(nn.Module):
    """A voice and its vocoder as a function of the tensors in the module's docstring, for one text."""

    parts_words: Tensor

    def __init__(self, speaker: Speaker, vocoder: NetworkVocoder) -> None:
        super().__init__()
        self.model, self.generator = speaker.model, merged(vocoder.generator)
        self.controls, self.hop_length = speaker.controls, vocoder.hop_length
        symbols = speaker.processor.symbols
        self.pad_id, self.boundary_id = speaker.processor.pad_id, symbols.index(BOUNDARY)
        self.register_buffer("parts_words", torch.tensor([one in (PAUSE, *PUNCTUATION) for one in symbols]))

    def forward(self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, *rest: Tensor) -> Any:
        """``rest`` is ``noise_scale_w``, which means nothing here, and, of several speakers, ``sid``."""
        # The neighbours are two places away, as sherpa-onnx puts padding between symbols.
        before, after = F.pad(x, (2, 0))[:, :-2], F.pad(x, (0, 2))[:, 2:]
        is_real = (x != self.pad_id) & ~((x == self.boundary_id) & (self.parts_words[before] | self.parts_words[after]))
        places = torch.arange(x.shape[1]).where(is_real, AFTER_ALL_PLACES)
        # What is real comes to the front, as in a padded batch.
        symbols = x.gather(1, places.argsort(1))
        speakers = rest[1] if len(rest) > 1 else torch.zeros_like(x_length)
        controls = self.controls._replace(speed=self.controls.speed / length_scale[0], temperature=noise_scale[0])
        plan = self.model.plan(Text(symbols, is_real.sum(1), speakers), controls)
        noise = torch.randn_like(self.model.mel(plan.frames)) if self.model.config.matches_flows else None
        spoken = self.model.spectrogram(plan, noise, controls)
        num_frames: Any = spoken.plan.frame_lengths[0].item()
        # What an exporter can't see in a number that data decide.
        torch._check(num_frames >= 2)
        torch._check(num_frames <= spoken.mel.shape[1])
        samples = self.generator(spoken.mel[:, :num_frames])
        return (samples[:, : (num_frames - 1) * self.hop_length].clamp(-1, 1),)


def assign_characters(processor: PhonemeProcessor) -> dict[str, str]:
    """The character that each symbol has in tokens.txt."""
    return {
        symbol: symbol if len(symbol) == 1 and symbol != BOUNDARY else chr(PRIVATE_AREA + number)
        for number, symbol in enumerate(processor.symbols)
    }


def number_tokens(processor: PhonemeProcessor) -> dict[str, int]:
    """The number of each character: those of symbols, and those that sherpa-onnx itself writes."""
    number = {symbol: place for place, symbol in enumerate(processor.symbols)}
    if not processor.config.word_boundaries:
        number[BOUNDARY] = processor.pad_id
    characters = assign_characters(processor)
    found = {characters[symbol]: place for symbol, place in number.items()}
    if processor.config.punctuation == "pause":
        found |= dict.fromkeys(MARKS, processor.pause_id)
    ends = dict.fromkeys("^$", processor.pause_id)
    return found | {"_": processor.pad_id, **ends, " ": number[BOUNDARY]}


def render_lexicon(processor: PhonemeProcessor, lexicon: Mapping[str, Symbols]) -> Iterator[str]:
    """The lines of lexicon.txt."""
    characters = assign_characters(processor)
    for word in sorted(lexicon):
        if not word.startswith("#") and "||" not in word:
            # A comment; where the word ends.
            yield f"{word} || {' '.join(characters[one] for one in lexicon[word])}\n"


def make_lexicon(
    processor: PhonemeProcessor, texts: Sequence[str], given: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Symbols]:
    """The symbols of each word of ``texts``, of the front end's own lexicon, and of small numbers in figures.

    Words that are ``given``, in small letters, with their phonemes (ARPAbet or IPA) have these.

    A word of the texts is there with the marks that it has in them, such as quotation marks, and with those that are
    the most common there. Two words have an entry where the front end makes one of them (``of the``), and where they
    sound otherwise than usual one after the other (``the old``).
    """
    content = json.loads(processor.to_json())
    # Boundaries tell words apart here; tokens.txt knows whether they are spoken.
    content["options"]["word_boundaries"] = True
    processor = PhonemeProcessor.from_json(json.dumps(content))
    marks = Marks(processor)
    written = Counter(marks.parted(word) for text in texts for word in WORD.findall(text))
    known = find_usual_symbols(processor, marks, texts)
    # Reversed, so that the most common spelling of a word is the last one, which a dictionary keeps.
    cores = {core.lower(): core for (_, core, _), _ in reversed(written.most_common()) if core}
    alone = {word: cores.get(word, word) for word in (*cores, *processor.entries, *map(str, range(LARGEST_NUMBER + 1)))}
    missing = [word for word in alone if word not in known]
    for word, processed in zip(missing, pronounced(processor, [alone[word] for word in missing]), strict=True):
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
        for form in _forms(core, prefix, suffix)
    }


def find_usual_symbols(processor: PhonemeProcessor, marks: Marks, texts: Sequence[str]) -> dict[str, Symbols]:
    """The most frequent symbols of words in ``texts``, and of two words that aren't said as each of them is."""
    phrases = [marks.phrases(text) for text in texts]
    pairs = Counter(f"{one} {next_}" for some in phrases for phrase in some for one, next_ in pairwise(phrase))
    often = [pair for pair, count in pairs.items() if count > 1]
    spoken = zip(often, pronounced(processor, often), strict=True)
    together = {pair for pair, processed in spoken if processed and len(_words_in(processed.symbols)) == 1}
    found: dict[tuple[str, ...], Counter[Symbols]] = defaultdict(Counter)
    for some, processed in zip(phrases, pronounced(processor, texts), strict=True):
        units = [_joined(phrase, together) for phrase in some]
        groups = [] if processed is None else _words_in(processed.symbols)
        # Figures and abbreviations are spoken as several words, so it isn't known which symbols are whose.
        if len(groups) != sum(map(len, units)):
            continue
        said = iter(groups)
        for phrase in units:
            of_phrase = [(unit, next(said)) for unit in phrase]
            for unit, symbols in of_phrase:
                found[(unit,)][symbols] += 1
            for (first, symbols), (second, others) in pairwise(of_phrase):
                found[first, second][*symbols, BOUNDARY, *others] += 1
    usual = {units: counts.most_common(1)[0][0] for units, counts in found.items()}
    return {
        " ".join(units): symbols
        for units, symbols in usual.items()
        if len(units) == 1 or symbols != (*usual[units[:1]], BOUNDARY, *usual[units[1:]])
    }


def pronounced(processor: PhonemeProcessor, texts: Sequence[str]) -> Iterator[Processed | None]:
    """Each text in symbols; None for one that the front end can't read."""
    for start in range(0, len(texts), WORDS_AT_ONCE):
        some = texts[start : start + WORDS_AT_ONCE]
        try:
            yield from processor.process_all(some)
        except DataError:
            if len(some) == 1:
                yield None
            else:
                yield from (one for text in some for one in pronounced(processor, [text]))


def _words_in(symbols: Symbols) -> list[Symbols]:
    """The words of a text in symbols."""
    gaps = {BOUNDARY, PAUSE, *PUNCTUATION}
    return [tuple(group) for is_gap, group in groupby(symbols, gaps.__contains__) if not is_gap]


def _joined(words: Sequence[str], together: Container[str]) -> list[str]:
    """The words of a phrase, in which two that are spoken as one are one."""
    found: list[str] = []
    for word in words:
        if found and f"{found[-1]} {word}" in together:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def _forms(word: str, prefix: str, suffix: str) -> Iterator[str]:
    """A word as texts may have it; sherpa-onnx doesn't know the small letters of all alphabets."""
    cases = {word} if word.isascii() else {word, word.capitalize(), word.upper()}
    for one in cases | {case.replace("'", "’") for case in cases}:
        yield f"{prefix}{one}{suffix}"


class Marks:
    """The marks around words that the front end reads, such as quotation marks or a danda."""

    def __init__(self, processor: PhonemeProcessor) -> None:
        self.processor = processor
        self._known: dict[str, Symbols | None] = {}

    def symbols(self, marks: str) -> Symbols:
        return tuple(one for mark in marks for one in self._read(mark) or ())

    def parted(self, word: str) -> tuple[str, str, str]:
        """Marks, word and marks."""
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
            prefix, core, suffix = self.parted(token)
            found += [[]] if prefix else []
            found[-1] += [core.lower()] if core else []
            found += [[]] if suffix else []
        return [phrase for phrase in found if phrase]

    def _read(self, mark: str) -> Symbols | None:
        """The symbols of a character; None where it isn't a mark."""
        if mark not in self._known:
            try:
                read = "" if mark.isalnum() else self.processor.normalise(mark)
            except DataError:
                read = ""
            keeps = self.processor.config.punctuation == "keep"
            spoken = (read,) if keeps else (PAUSE,) if read in PAUSING else ()
            self._known[mark] = spoken if read in PUNCTUATION else None
        return self._known[mark]
