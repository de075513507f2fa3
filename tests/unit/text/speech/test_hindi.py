"""Hindi in words: every number below a hundred against espeak-ng's own, and a table that was checked by hand."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from vaak.core.errors import DataError
from vaak.text.speech.hindi import POWERS_OF_TEN, SMALL, cardinal
from vaak.text.speech.languages import normalise
from vaak.text.speech.phonemes.pronunciation import espeak_phonemes

TABLE = """
15/08/1947 को = पंद्रह अगस्त उन्नीस सौ सैंतालीस को
१५/०८/१९४७ को = पंद्रह अगस्त उन्नीस सौ सैंतालीस को
26-1-1950 से = छब्बीस जनवरी उन्नीस सौ पचास से
2024-03-05 = पाँच मार्च दो हज़ार चौबीस
2 अक्टूबर 1869 को = दो अक्टूबर अठारह सौ उनहत्तर को
सन् 1857 में = सन् अठारह सौ सत्तावन में
2011 में = दो हज़ार ग्यारह में
32/13/1999 = बत्तीस बटा तेरह बटा एक हज़ार नौ सौ निन्यानबे
10:30 बजे = दस बजकर तीस मिनट
शाम 5:00 बजे = शाम पाँच बजे
₹1 = एक रुपया
₹2.50 = दो रुपये पचास पैसे
₹ 1,25,000 = एक लाख पच्चीस हज़ार रुपये
₹5 करोड़ = पाँच करोड़ रुपये
रु. 500 = पाँच सौ रुपये
$20 = बीस डॉलर
25% = पच्चीस प्रतिशत
3.14 = तीन दशमलव एक चार
-5°C = ऋण पाँच डिग्री सेल्सियस
5 किमी = पाँच किलोमीटर
1ला, 2री, 3रे, 4था, 6ठा = पहला, दूसरी, तीसरे, चौथा, छठा
5वाँ 21वीं 100वें = पाँचवाँ इक्कीसवीं सौवें
½, 1½, 2½, 3½, 1¼, 4¼, 3¾ = आधा, डेढ़, ढाई, साढ़े तीन, सवा, सवा चार, पौने चार
10-12 लोग = दस से बारह लोग
007 = शून्य शून्य सात
09876543210 = शून्य नौ आठ सात छह पाँच चार तीन दो एक शून्य
1,00,00,000 = एक करोड़
डॉ. राव = डॉक्टर राव
वहाँ 4 थे और 2 ले आओ = वहाँ चार थे और दो ले आओ
4था और 5 वीं = चौथा और पाँचवीं
गुरु 5 बार = गुरु पाँच बार
कक्षा-5 में -5 = कक्षा- पाँच में ऋण पाँच
रु. 5 और रुपये 20 = पाँच रुपये और बीस रुपये
5 सेमीफ़ाइनल, 5 सेमी = पाँच सेमीफ़ाइनल, पाँच सेंटीमीटर
₹5 लाखों = पाँच रुपये लाखों
राम & श्याम = राम और श्याम
वह घर गया। क्यों? = वह घर गया. क्यों?
मेरी meeting 3 बजे है = मेरी meeting तीन बजे है
"""


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_what_is_written_is_said_so(line: str) -> None:
    written, said = line.split(" = ")
    assert normalise(written, "hi") == nfc(said)


def consonants(words: tuple[tuple[str, ...], ...]) -> str:
    """The consonants of words, without nasals and glides, which vowels may have taken, and how each is said."""
    text = unicodedata.normalize("NFD", "".join(unit for word in words for unit in word))
    text = re.sub(r"[nmɲŋɳ]", "", text).replace("w", "ʋ").replace("z", "ɟ").replace("r", "ɾ").replace("ʈ", "t")
    kept = re.sub(r"[^bcdfɡhklpstʋɖɟɭɾɽʂʃ]", "", text)
    return re.sub(r"(.)\1+", r"\1", kept)


def test_every_number_below_a_hundred_is_that_of_espeak() -> None:
    """Whose words, of another dictionary, are spelt by nobody; the consonants of all 100 are told apart."""
    figures = espeak_phonemes([str(number) for number in range(100)], "hi")
    ours = espeak_phonemes(list(SMALL), "hi")
    assert len({*SMALL}) == 100
    different = [number for number in range(100) if consonants(figures[number]) != consonants(ours[number])]
    assert different == []


def value_of(words: str) -> int:
    """The number that words say, read in another way: each unit multiplies what was said since the last."""
    units = {name: size for size, name in POWERS_OF_TEN}
    total, open_ = 0, 0
    for word in words.split():
        if word not in units:
            open_ += SMALL.index(word)
        elif word == "सौ":
            open_ *= 100
        else:
            total, open_ = (total + open_ * units[word], 0) if open_ else (total * units[word], 0)
    return total + open_


def test_every_number_can_be_read_back() -> None:
    rng = random.Random(0)
    some = [*range(2000), *(rng.randrange(10 ** rng.randint(4, 13)) for _ in range(2000))]
    assert [value_of(cardinal(number)) for number in some] == some


def test_what_nothing_reads_is_one_line() -> None:
    with pytest.raises(DataError, match="☃ can't be read; replace or remove them"):
        normalise("बर्फ़ ☃", "hi")
