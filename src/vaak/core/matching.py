"""Match texts written differently by two sources: invisible characters, Unicode forms, names of files.

Texts are compared in one form (``compose``). Names of recordings, utterances and files are paired by ``pair_names``:
those that are equal first, then those that differ in nothing but

    case      call · Call                 spaces    board meeting · board_meeting
    ending    call · call.wav             folders   call · /data/calls/call.wav
    Unicode   café composed · café decomposed, with or without a byte-order mark or a zero-width space

as long as no second name could be meant. Pairs whose names differ are reported.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeVar

from vaak.core.errors import DataError

log = logging.getLogger("vaak")
Values = TypeVar("Values")
MOST_NAMED_MATCHES = 3
"""How many names a line shows before it only counts."""
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties.txt), which Python doesn't have."""
_BETWEEN = re.compile(r"[\s_]+")
_ENDING = re.compile(
    r"(?<=.)\.(wav|flac|mp3|og[ag]|opus|m4a|mp4|mkv|webm|aac|aiff?|au|caf|sph|w64|rf64|wma|amr|"
    r"rttm|uem|ctm|stm|seglst|trn|textgrid|lab|eaf|srt|vtt|txt|jsonl?|csv|tsv|npy|pt)$",
    re.IGNORECASE,
)
"""Files with recordings or annotations: ``call.wav`` and ``call.rttm`` are of the same recording."""


def drop_ignorable(text: str) -> str:
    """Return the text without characters that are never shown: variation selectors, joiners, soft hyphens, marks.

    >>> drop_ignorable("I love it \u2764\ufe0f, co\u00adoperate")
    'I love it ❤, cooperate'
    """
    return _IGNORABLE.sub("", text)


def compose(text: str) -> str:
    """Return the text composed (NFC) and without ignorable characters, so that equal texts are equal strings."""
    return unicodedata.normalize("NFC", drop_ignorable(text))


def fold_name(name: str) -> str:
    """Return the form that all names of one thing share, without case, known endings and kinds of space.

    >>> fold_name("Board Meeting.WAV") == fold_name("board_meeting")
    True
    """
    folded = _BETWEEN.sub("_", unicodedata.normalize("NFKC", drop_ignorable(name)).casefold()).strip("_")
    return _ENDING.sub("", folded)


def pair_names(references: Collection[str], others: Collection[str]) -> dict[str, str]:
    """Return, for each of the other names that has one, its reference: the equal one, or the only one alike.

    Logs how many pairs differ in more than the ending. Raises DataError if a name could be that of two.
    """
    known = set(references)
    pairs = {name: name for name in others if name in known}
    left = [name for name in references if name not in pairs]
    alike = _pair_alike(left, [name for name in others if name not in pairs])
    left = [name for name in left if name not in alike.values()]
    unpaired = [name for name in others if name not in pairs and name not in alike]
    # a path on one side only: s1/call and s2/call are two recordings, call and s1/call may be one
    alike |= _pair_alike(list(filter(_is_path, left)), [name for name in unpaired if not _is_path(name)])
    alike |= _pair_alike([name for name in left if not _is_path(name)], list(filter(_is_path, unpaired)))
    different = [(one, name) for one, name in alike.items() if _ENDING.sub("", one) != _ENDING.sub("", name)]
    if different:
        log.warning(
            "%d of %d names are written differently and taken for the same, such as %s for %s",
            *(len(different), len(pairs) + len(alike), quote_names([different[0][0]]), quote_names([different[0][1]])),
        )
    return pairs | alike


def rename_like(references: Collection[str], others: Mapping[str, Values]) -> dict[str, Values]:
    """Return ``others`` under the names of the references that they are paired with, or their own."""
    pairs = pair_names(references, others)
    return {pairs.get(name, name): values for name, values in others.items()}


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name


def _pair_alike(references: Collection[str], others: Collection[str]) -> dict[str, str]:
    """The pairs whose names are the same once they are folded, and once folders are left out where one has some."""
    has_paths = any(map(_is_path, references)) != any(map(_is_path, others))
    ours, theirs = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for names, found in ((references, ours), (others, theirs)):
        for name in names:
            found[fold_name(name.replace("\\", "/").rpartition("/")[2] if has_paths else name)].append(name)
    for key in sorted(ours.keys() & theirs.keys()):
        if len(ours[key]) > 1 or len(theirs[key]) > 1:
            raise DataError(
                f"{quote_names(theirs[key])} could be {quote_names(ours[key])}, which differ in no more than case, "
                "spaces, ending or folder; write the same names on both sides"
            )
    return {theirs[key][0]: ours[key][0] for key in theirs if key in ours}


def quote_names(names: Collection[str]) -> str:
    """Return the first names, invisible characters as their code points, and how many more there are.

    >>> print(quote_names(["b", "a", "d", "c"]), quote_names(["call\u200b"]))
    'a', 'b', 'c' and 1 more 'call\\u200b'
    """
    shown = [
        _IGNORABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", repr(name))
        for name in sorted(names)[:MOST_NAMED_MATCHES]
    ]
    return ", ".join(shown) + (
        f" and {len(names) - MOST_NAMED_MATCHES} more" if len(names) > MOST_NAMED_MATCHES else ""
    )
