"""Addresses of the web, of mail and of files, hashtags, user names, and postcodes after states, as one says them."""

from __future__ import annotations

import re

from vaak.text.speech.words import cardinal, digits, grouped, table, whole, words, year

DOMAIN_ENDINGS = words("com org net edu gov mil info biz app dev io ai tv uk ca au nz de fr nl ch jp cn ru eu ly")
"""Last parts of names that are taken for web addresses without ``www`` or ``https``.

Not those that are English words: a space is more often missing ("the end.It was").
"""
SAID = table(
    """
    .=dot /=slash -=dash :=colon @=at ?=question_mark &=and #=hash %=percent +=plus ~=tilde ,=comma !=bang
    \\=backslash $=dollar *=star ;=semicolon |=bar
    """
) | {"_": "underscore", "=": "equals"}
STATES = table(
    """
    AL=Alabama AK=Alaska AZ=Arizona AR=Arkansas CA=California CO=Colorado CT=Connecticut DE=Delaware FL=Florida
    GA=Georgia HI=Hawaii ID=Idaho IL=Illinois IN=Indiana IA=Iowa KS=Kansas KY=Kentucky LA=Louisiana ME=Maine
    MD=Maryland MA=Massachusetts MI=Michigan MN=Minnesota MS=Mississippi MO=Missouri MT=Montana NE=Nebraska
    NV=Nevada NH=New_Hampshire NJ=New_Jersey NM=New_Mexico NY=New_York NC=North_Carolina ND=North_Dakota OH=Ohio
    OK=Oklahoma OR=Oregon PA=Pennsylvania RI=Rhode_Island SC=South_Carolina SD=South_Dakota TN=Tennessee TX=Texas
    UT=Utah VT=Vermont VA=Virginia WA=Washington WV=West_Virginia WI=Wisconsin WY=Wyoming
    """
)
"""States, read in full before a postcode."""
_AFTER = r"(?=$|[\s)\]\"'>,;!?]|\.(?:\s|$|[\"')]))"
_EMAIL = re.compile(r"\b[\w.+%-]{1,64}@[\w-]+(?:\.[\w-]+)+\b", re.ASCII)
_URL = re.compile(
    rf"\b(?:https?://|ftp://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]"
    rf"|\b(?:[a-z0-9](?:[\w-]{{0,61}}\w)?\.){{1,8}}(?:{'|'.join(DOMAIN_ENDINGS)})\b(?:/[^\s<>\"']*[^\s<>\"'.,;:!?)\]])?{_AFTER}",
    re.IGNORECASE | re.ASCII,
)
_PORT = re.compile(r"\b((?:[a-z][\w-]*\.)*[a-z][\w-]*):(\d{2,5})\b(?![:.]\d)")
_IP = re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?::(\d{2,5}))?(?![\w.]\w)")
_DRIVE = re.compile(r"(?<!\w)([A-Z]):(\\[^\s<>\"']*[^\s<>\"'.,;:!?)\]])")
_FILES = (
    "py|txt|csv|tsv|pdf|jpe?g|png|gif|svg|bmp|md|rst|json|ya?ml|toml|ini|cfg|conf|xml|html?|css|js|ts|zip|tar|gz|docx?|xlsx?|pptx?|"
    "mp[34]|wav|avi|mov|sh|bat|exe|dll|log|sql|cc?|cpp|hpp|h|rb|rs|java|php|pl|pm|po|ipynb|tex|bib|dat|bak|tmp|iso"
)
_PATH = re.compile(
    rf"(?<![\w/.])(?:/(?:[\w.*?-]+/)+|(?:\.{{1,2}}|~)/(?:[\w.*?-]+/)*)(?:[\w.*-]*[\w*])"  # /usr/lib, ./configure
    rf"|(?<![\w/.@-])(?:[\w.+-]+/)+(?:[\w.-]*\*[\w.*]*(?<!\.)|[\w.+*-]+\.(?:{_FILES})\b)"  # doc/*, lib/md5.c
    rf"|(?<![\w/])(?=[\w-]*[A-Za-z_])[\w-]+\.(?:{_FILES})\b",
    re.ASCII,
)
"""Paths from the root, from here, or of several folders to a file; and files by their endings."""
_SCHEME = re.compile(r"^(?:https?|ftp)://", re.IGNORECASE)
_DIRECTIVE = re.compile(
    r"(?<![\w#])#(?=(?:include|define|undef|if|ifn?def|elif|else|endif|pragma|error)\b|([nNxX])\1+\b)"
)
"""Directives of C, and a number in general, such as #nnn."""
_HASHTAG = re.compile(r"(?<!\w)#(?!(?=[\da-fA-F]*\d)[\da-fA-F]{6}(?!\w))((?:[A-Za-z]|\d+[A-Z][a-z])\w*)", re.ASCII)
_USER = re.compile(r"(?<!\w)@([A-Za-z]\w*)", re.ASCII)
_STATE_AND_POSTCODE = re.compile(
    rf"(?:(?<=, )|(?<=[a-z] ))({'|'.join(STATES)})\.? (\d{{5}})(?:-(\d{{4}}))?\b(?![,.]\d)"
)
_CITY = re.compile(
    r"(?:,|(?<!\w)(?!(?:Account|Apple|Booking|Case|Customer|Device|Driver|Employee|Item|Meeting|Member|Order|Patient|Payment|"
    r"Photo|Product|Session|Student|Tax|The|Ticket|Transaction|User|Voter|Your|Zoom)\b)[A-Z][\w'.-]*) $"
)
"""A city, or another name, before a state's short form; the words that it excludes make ``ID 88213`` an identity."""
_OF_CITIES = table(
    """
    Boston=MA Lowell=MA Quincy=MA Worcester=MA Cambridge=MA Pittsburgh=PA Philadelphia=PA Scranton=PA Allentown=PA
    Harrisburg=PA Portland=OR Eugene=OR Baltimore=MD Bethesda=MD Annapolis=MD Honolulu=HI New_Orleans=LA
    Baton_Rouge=LA Indianapolis=IN Fort_Wayne=IN Bloomington=IN Oklahoma_City=OK Tulsa=OK Boise=ID Wilmington=DE
    Jackson=MS Bangor=ME
    """
)
"""Cities of states whose short form after a comma may be a word or a degree (Smith, MD)."""
_SURE_STATES = "|".join(one for one in STATES if one not in _OF_CITIES.values())
_CITY_STATE = re.compile(
    rf"(?<=[a-z], )({_SURE_STATES})(?=[.,;:!?)]|$| (?:[a-z]|\())|\b({'|'.join(_OF_CITIES)}), (?:[A-Z]{{2}})\b"
)
_NAMED_PLACE = re.compile(r"\b[A-Z][\w'-]*, $")
_STATE_BEFORE_POSTCODE = re.compile(rf"(?<=, )({'|'.join(STATES.values())}),? (\d{{5}})(?=[.,;)]|$)")
_SMALL_STATE = re.compile(
    r"(?<=[a-z], )(fl|ga|tx|nc|nj|nv|va|tn|az|wi|mn|ky|ct|nh|ks|ut|nm|sd|nd|wv|sc|ny|mo|ca|il|wa|mi|ri|mt|wy)"
    r"(?=[.,;?!]|$| (?:to|on|at|in|from|for|and|by|with|this|next|tomorrow|today)\b)"
)
"""``atlanta, ga``, in a text without capitals; those that are words (in, or, me) aren't read."""
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
_TAG_YEAR = re.compile(r"(?<=[A-Za-z])(?:19|20)\d\d$")
_TAG_FIGURES = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Z][a-z])")
_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|.")
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9]+|.")
_RANDOM = re.compile(r"(?=[\da-f]*\d[a-f]+\d)[\da-f]{7,}|(?=\d*[a-z]+[A-Z]|\d+[A-Z]+[a-z])(?=[A-Za-z]*\d)\w{4,7}")
"""A hash, or a short code of letters in both cases and figures: these are spelled."""
_YEAR = re.compile(r"(?:19|20)\d\d")
_AFTER_NUMBER = re.compile(r"\d\s$")


def addresses(text: str) -> str:
    """
    >>> addresses("Write to jo.doe@example.com, or see https://www.example.org/a_b.")
    'Write to jo dot doe at example dot com, or see W W W dot example dot org slash a underscore B.'
    >>> addresses("#ThrowbackDay with @jo")
    'hashtag Throwback Day with at jo'
    """
    text = _CITY_STATE.sub(_read_state, _STATE_AND_POSTCODE.sub(_read_postcode, text))
    text = _STATE_BEFORE_POSTCODE.sub(lambda match: f"{match[1]} {digits(match[2])}", text)
    if text.islower():
        text = _SMALL_STATE.sub(lambda match: STATES[match[1].upper()], text)
    text = _EMAIL.sub(_read_address, text)
    text = _URL.sub(_read_address, text)
    text = _IP.sub(_read_ip, text)
    text = _PORT.sub(lambda match: f"{match[1]} colon {digits(match[2])}", text)
    text = _DRIVE.sub(lambda match: f"{match[1]} colon {spoken(match[2])}", text)
    text = _PATH.sub(_read_address, text)
    text = _DIRECTIVE.sub(" hash ", text)
    text = _HASHTAG.sub(lambda match: f"hashtag {_split_tag(match[1])}", text)
    return _USER.sub(lambda match: f"at {_split_tag(match[1])}", text)


def _read_address(match: re.Match[str]) -> str:
    """An address without its scheme; a comma keeps its first letters from a number before it, whose unit they'd be."""
    said = spoken(_SCHEME.sub("", match[0]))
    return f", {said}" if _AFTER_NUMBER.search(match.string[max(0, match.start() - 2) : match.start()]) else said


def _split_tag(tag: str) -> str:
    """A tag's words, parted at capitals and figures; 1900 to 2099 after letters are a year.

    >>> _split_tag("SaveWater2025"), _split_tag("Tom99"), _split_tag("dev_team")
    ('Save Water twenty twenty-five', 'Tom 99', 'dev team')
    """
    parts = _HUMPS.sub(" ", _TAG_YEAR.sub(lambda match: f" {year(int(match[0]))}", tag))
    return _TAG_FIGURES.sub(" ", parts)


def _read_state(match: re.Match[str]) -> str:
    """``Austin, TX``; of other letters than the city's state nothing is read."""
    if match[1]:
        # "In other words, AR ..." has no city before its comma.
        is_city = _NAMED_PLACE.search(match.string[max(0, match.start() - 30) : match.start()])
        return STATES[match[1]] if is_city else match[0]
    return f"{match[2]}, {STATES[_OF_CITIES[match[2]]]}" if match[0].endswith(_OF_CITIES[match[2]]) else match[0]


def _read_postcode(match: re.Match[str]) -> str:
    """A state and its postcode; ``ID`` after no city is an identity."""
    if match[1] == "ID" and not _CITY.search(match.string[max(0, match.start() - 40) : match.start()]):
        return match[0]
    return f"{STATES[match[1]]} {digits(match[2])}" + (f" {digits(match[3])}" if match[3] else "")


def _read_ip(match: re.Match[str]) -> str:
    """An address of four bytes and its port; a larger number makes it a version."""
    if any(int(part) > 255 for part in match.groups()[:4]) or not any(len(part) > 1 for part in match.groups()[:4]):
        return match[0]
    said = " dot ".join(digits(part) if len(part) > 2 else cardinal(int(part)) for part in match.groups()[:4])
    return f"{said} colon {digits(match[5])}" if match[5] else said


def spoken(address: str) -> str:
    """An address piece by piece, in words, so that no later rule takes a figure for a measure; pieces without vowel are
    spelled.

    >>> spoken("src/md5*.c"), spoken("a.org/2024/b")
    ('S R C slash M D five star dot C', 'a dot org slash twenty twenty-four slash B')
    """
    said = []
    for name in _NAME.findall(address.rstrip("/")):
        if _RANDOM.fullmatch(name):
            said += [digits(one) if one.isdecimal() else one.upper() for one in name]
            continue
        said += _read_pieces(_PIECE.findall(name))
    return " ".join(filter(None, said))


def _read_figures(figures: str) -> str:
    """A year, the number of a page in pairs, a long one digit by digit."""
    if _YEAR.fullmatch(figures):
        return year(int(figures))
    return grouped(figures) if len(figures) in (3, 4) else whole(figures) if len(figures) < 6 else digits(figures)


def _read_pieces(pieces: list[str]) -> list[str]:
    said = []
    for piece in pieces:
        if piece.isascii() and piece.isalpha():
            spelled = not _VOWEL.search(piece) or (piece in DOMAIN_ENDINGS and len(piece) == 2)
            said.append(" ".join(piece.upper()) if spelled else piece)
        elif piece.isdecimal():
            said.append(_read_figures(piece))
        else:
            said.append(SAID.get(piece, "" if piece.isascii() else piece))
    return said
