"""Web and e-mail addresses, hashtags, user names and postcodes, as one says them."""

from __future__ import annotations

import re

from vaak.text.speech.normalisation.number_words import digits
from vaak.text.speech.normalisation.tables import table, words

ENDINGS = words("com org net edu gov mil info biz app dev io ai tv uk ca au nz de fr nl ch jp cn ru eu")
"""Last parts of names that are taken for web addresses without ``www`` or ``https``.

Not those that are English words: a space is more often missing ("the end.It was").
"""

SAID = table(
    """
    .=dot /=slash -=dash :=colon @=at ?=question_mark &=and #=hash %=percent +=plus ~=tilde ,=comma !=bang
    """
) | {"_": "underscore", "=": "equals"}

STATES = table(
    """
    AL=Alabama AK=Alaska AZ=Arizona AR=Arkansas CA=California CO=Colorado CT=Connecticut DE=Delaware FL=Florida
    GA=Georgia HI=Hawaii ID=Idaho IL=Illinois IN=Indiana IA=Iowa KS=Kansas KY=Kentucky LA=Louisiana ME=Maine
    MD=Maryland MA=Massachusetts MI=Michigan MN=Minnesota MS=Mississippi MO=Missouri MT=Montana NE=Nebraska NV=Nevada
    NH=New_Hampshire NJ=New_Jersey NM=New_Mexico NY=New_York NC=North_Carolina ND=North_Dakota OH=Ohio OK=Oklahoma
    OR=Oregon PA=Pennsylvania RI=Rhode_Island SC=South_Carolina SD=South_Dakota TN=Tennessee TX=Texas UT=Utah
    VT=Vermont VA=Virginia WA=Washington WV=West_Virginia WI=Wisconsin WY=Wyoming
    """
)
"""Before a postcode."""

_AFTER = r"(?=$|[\s)\]\"'>,;!?]|\.(?:\s|$|[\"')]))"
_EMAIL = re.compile(r"\b[\w.+%-]{1,64}@[\w-]+(?:\.[\w-]+)+\b", re.ASCII)
_URL = re.compile(
    rf"\b(?:https?://|ftp://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]"
    rf"|\b(?:[a-z0-9](?:[\w-]{{0,61}}\w)?\.){{1,8}}(?:{'|'.join(ENDINGS)})\b(?:/[^\s<>\"']*[^\s<>\"'.,;:!?)\]])?{_AFTER}",
    re.IGNORECASE | re.ASCII,
)
_SCHEME = re.compile(r"^(?:https?|ftp)://", re.IGNORECASE)
_HASHTAG = re.compile(r"(?<!\w)#([A-Za-z]\w*)", re.ASCII)
_USER = re.compile(r"(?<!\w)@([A-Za-z]\w*)", re.ASCII)
_POSTCODE = re.compile(rf"(?:(?<=, )|(?<=[a-z] ))({'|'.join(STATES)})\.? (\d{{5}})(?:-(\d{{4}}))?\b(?![,.]\d)")
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|.")
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)


def addresses(text: str) -> str:
    """
    >>> addresses("Write to jo.doe@example.com, or see https://www.example.org/a_b.")
    'Write to jo dot doe at example dot com, or see W W W dot example dot org slash a underscore B.'
    >>> addresses("#ThrowbackDay with @jo")
    'hashtag Throwback Day with at jo'
    """
    text = _POSTCODE.sub(_postcode, text)
    text = _EMAIL.sub(lambda match: spoken(match[0]), text)
    text = _URL.sub(lambda match: _SCHEME.sub("", match[0]) and spoken(_SCHEME.sub("", match[0])), text)
    text = _HASHTAG.sub(lambda match: f"hashtag {_HUMPS.sub(' ', match[1])}", text)
    return _USER.sub(lambda match: f"at {_HUMPS.sub(' ', match[1])}", text)


def spoken(address: str) -> str:
    """An address piece by piece; a piece without vowel is spelled."""
    said = []
    for piece in _PIECE.findall(address.rstrip("/")):
        if piece.isascii() and piece.isalpha():
            spelled = not _VOWEL.search(piece) or (piece in ENDINGS and len(piece) == 2)
            said.append(" ".join(piece.upper()) if spelled else piece)
        elif piece.isdecimal():
            said.append(piece)
        else:
            said.append(SAID.get(piece, "" if piece.isascii() else piece))
    return " ".join(filter(None, said))


def _postcode(match: re.Match[str]) -> str:
    code = f"{digits(match[2])} {digits(match[3])}" if match[3] else digits(match[2])
    return f"{STATES[match[1]]} {code}"
