"""The roles of a table's columns (audio, text, speaker, …): by their names first, then by their contents.

names     synonyms in several languages, in any case, with any signs between words (``NAMES_BY_ROLE``)
contents  names of audio that is there; numbers (lengths); few values (labels, speakers); sentences (texts)

A name that the contents contradict is not believed: a column ``path`` without audio isn't audio, and ``text`` of
numbers isn't text. A role that no name tells is found by contents alone if exactly one column fits.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MOST_ROWS_READ = 1000
"""Rows that are looked at."""
FEW_VALUES = 50
"""Values that a column of labels or speakers has, at most, where no name tells it."""

NAMES_BY_ROLE: Mapping[str, str] = {
    "audio": "audio audio_filepath file_name filename path wav wav_path file audio_file audio_path clip recording "
    "wav_file sound media utterance_path utt_path ऑडियो फ़ाइल ध्वनि datei audiodatei tondatei fichier son archivo "
    "fichero arquivo аудио файл 音频 文件 音声",
    "text": "text transcript transcription transcripts sentence normalized_text normalised_text utterance content "
    "document body message review tweet comment question query raw_text words raw_transcription पाठ वाक्य लिखित "
    "प्रतिलेख satz transkript transkription texte phrase transcripción transcripcion texto oración frase transcrição "
    "testo frase trascrizione текст предложение 文本 句子 テキスト",
    "speaker": "speaker speaker_id spk spk_id speakerid client_id speaker_name voice voice_id reader वक्ता sprecher "
    "locuteur hablante falante parlante locutore диктор спикер говорящий 说话人 话者",
    "label": "label labels category class intent sentiment topic tag emotion target_label लेबल श्रेणी वर्ग भावना "
    "klasse kategorie etikett étiquette catégorie classe etiqueta categoría categoria etichetta метка "
    "категория класс 标签 类别",
    "language": "language lang locale language_id भाषा sprache langue idioma lingua язык 语言",
    "start": "start start_time begin begin_time offset onset from start_s शुरू आरंभ anfang début inicio início "
    "inizio начало",
    "end": "end end_time stop stop_time offset_end to end_s अंत ende fin fim fine конец",
    "duration": "duration length seconds dur अवधि dauer durée duración duração durata длительность",
    "id": "id utt_id utterance_id key uid index row no number nr क्रमांक",
}
"""The usual names of a column, of each role: the first one counts most."""
LEAST_TEXT_LENGTH = 12
"""Characters that a text has, on average, where no name tells it."""


class Contents(NamedTuple):
    """The contents of a column: shares of its cells by their appearance."""

    audio: float
    numbers: float
    values: int
    """Different ones."""
    length: float
    """Characters, on average."""
    words: float
    filled: int

    def may_be(self, role: str) -> bool:
        """Return whether a column of this content can have a role that its name says."""
        if role == "audio":
            return self.audio > 0.5
        if role in ("start", "end", "duration"):
            return self.numbers > 0.9
        if role == "text":
            return self.audio < 0.5 and self.numbers < 0.5
        return role in ("id", "label", "speaker", "language") and self.audio < 0.5


class FoundColumns(NamedTuple):
    """The column of each role that one was found for; ``by_content`` are the roles that no name told."""

    columns: dict[str, str]
    by_content: frozenset[str] = frozenset()

    def describe(self) -> str:
        """Return one line that says which columns are what.

        >>> FoundColumns({"audio": "File name", "text": "B"}, frozenset({"text"})).describe()
        "columns: audio is 'File name', text is 'B' (by its contents)"
        """
        said = [
            f"{role} is {name!r}" + (" (by its contents)" if role in self.by_content else "")
            for role, name in self.columns.items()
        ]
        return f"columns: {', '.join(said) or 'none is known'}"


def plain_name(name: str) -> str:
    """Return a column's name for comparison: without case and signs.

    >>> plain_name("File Name"), plain_name("speaker_id")
    ('filename', 'speakerid')
    """
    folded = unicodedata.normalize("NFKD", name).casefold()
    return "".join(one for one in folded if unicodedata.category(one)[0] in "LN")


_ROLES = {
    role: {plain_name(name): place for place, name in reversed(list(enumerate(names.split())))}
    for role, names in NAMES_BY_ROLE.items()
}


def rank_name(name: str, role: str) -> int | None:
    """Return the place of a name among those of a role: 0 is the most usual; None if it isn't among them."""
    return _ROLES[role].get(plain_name(name))


def find_columns(
    names: Sequence[str],
    rows: Sequence[Mapping[str, object]],
    roles: Sequence[str] = ("audio", "text", "speaker", "language", "label", "start", "end", "duration"),
    is_audio: Callable[[str], bool] = lambda _: False,
) -> FoundColumns:
    """Return the columns of some roles in a table, of which some rows are given.

    is_audio
        Whether a cell is the name of an audio file that is there.
    """
    looks = {name: look_at([row.get(name) for row in rows[:MOST_ROWS_READ]], is_audio) for name in names}
    found: dict[str, str] = {}
    for role in roles:
        ranked = [(rank, name) for name in names if (rank := rank_name(name, role)) is not None]
        fitting = [name for _, name in sorted(ranked, key=lambda one: one[0]) if looks[name].may_be(role)]
        if own := next((name for name in fitting if name not in found.values()), None):
            found[role] = own
    guessed = set[str]()
    for role in ("audio", "label", "text"):
        if role in roles and role not in found:
            left = {name: look for name, look in looks.items() if name not in found.values()}
            if own := _by_content(role, left, len(rows[:MOST_ROWS_READ])):
                found[role] = own
                guessed.add(role)
    return FoundColumns({role: found[role] for role in roles if role in found}, frozenset(guessed))


def look_at(cells: Sequence[object], is_audio: Callable[[str], bool] = lambda _: False) -> Contents:
    """Return a summary of a column's cells."""
    texts = [text for cell in cells if cell is not None and (text := str(cell).strip())]
    number = max(1, len(texts))
    return Contents(
        audio=sum(map(is_audio, texts)) / number,
        numbers=sum(re.fullmatch(r"[+-]?\d+([.,]\d+)?", text) is not None for text in texts) / number,
        values=len(set(texts)),
        length=statistics.fmean(map(len, texts)) if texts else 0.0,
        words=statistics.fmean(len(text.split()) for text in texts) if texts else 0.0,
        filled=len(texts),
    )


def _by_content(role: str, looks: Mapping[str, Contents], num_rows: int) -> str | None:
    """Return the only column, or the clearest one, whose contents are those of a role."""
    if role == "audio":
        best = max(looks, key=lambda name: looks[name].audio, default=None)
        return best if best is not None and looks[best].audio > 0.5 else None
    if role == "text":
        texts = {name: look for name, look in looks.items() if look.may_be("text") and look.filled}
        sentences = [name for name in texts if texts[name].words >= 2 or texts[name].length >= LEAST_TEXT_LENGTH]
        return max(sentences, key=lambda name: texts[name].length, default=None)
    # A label comes back: by this limit, each value has three rows on average.
    few = [
        name
        for name, look in looks.items()
        if 2 <= look.values <= min(FEW_VALUES, num_rows // 3) and look.filled and look.words < 3 and not look.audio
    ]
    return few[0] if len(few) == 1 else None
