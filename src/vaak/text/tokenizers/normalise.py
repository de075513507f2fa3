"""Text in one canonical form, so that the same words are always the same bytes.

NFC only, never NFKC: compatibility forms, and the zero-width joiner and non-joiner that choose between a conjunct and a
half form in Devanagari, carry meaning. NFC writes the eight letters that include a nukta (U+0958 to U+095F) as
letter and nukta, since Unicode excludes them from composition, and joins the other three (U+0929, U+0931, U+0934).
Source: Unicode Standard Annex 15.
"""

from __future__ import annotations

import re
import unicodedata

BYTE_ORDER_MARK = "\ufeff"
_CARRIAGE_RETURNS = re.compile(r"\r+\n")


def normalise(text: str) -> str:
    r"""``text`` in NFC, without byte-order marks, its lines ended by ``\n``; doing it again changes nothing.

    >>> normalise("\ufeffक़लम\r\n") == "क\u093cलम\n"
    True
    >>> normalise("क्\u200dष") == "क्\u200dष"
    True
    """
    if BYTE_ORDER_MARK in text:
        text = text.replace(BYTE_ORDER_MARK, "")
    if "\r" in text:
        text = _CARRIAGE_RETURNS.sub("\n", text)
    return unicodedata.normalize("NFC", text)
