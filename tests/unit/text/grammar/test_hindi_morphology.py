"""Forms against paradigms written by hand, not by the rules."""

import unicodedata
from pathlib import Path

import pytest

import vaak.text.grammar as hindi
from vaak.text.grammar.composer import readings
from vaak.text.grammar.lexicon import (
    NUMERALS,
    ONE,
    PARTICLES,
    POSTPOSITIONS,
    PRONOUNS,
    QUESTION_WORDS,
    RELATIONS,
    lexicon,
)
from vaak.text.grammar.morphology import (
    Features,
    Nominal,
    Predicate,
    adjective_form,
    future,
    imperative,
    noun_form,
    participle,
    perfective,
    verb_group,
)

# singular oblique, plural direct, plural oblique
NOUNS = """
लड़का लड़के लड़के लड़कों
बेटा बेटे बेटे बेटों
कमरा कमरे कमरे कमरों
कौआ कौए कौए कौओं
कछुआ कछुए कछुए कछुओं
डाकिया डाकिए डाकिए डाकियों
घर घर घर घरों
किसान किसान किसान किसानों
आदमी आदमी आदमी आदमियों
भाई भाई भाई भाइयों
कवि कवि कवि कवियों
आलू आलू आलू आलुओं
साधु साधु साधु साधुओं
डाकू डाकू डाकू डाकुओं
राजा राजा राजा राजाओं
नेता नेता नेता नेताओं
गाँव गाँव गाँव गाँवों
लड़की लड़की लड़कियाँ लड़कियों
नदी नदी नदियाँ नदियों
मेज़ मेज़ मेज़ें मेज़ों
किताब किताब किताबें किताबों
बहन बहन बहनें बहनों
गाय गाय गायें गायों
चिड़िया चिड़िया चिड़ियाँ चिड़ियों
बुढ़िया बुढ़िया बुढ़ियाँ बुढ़ियों
छात्रा छात्रा छात्राएँ छात्राओं
माला माला मालाएँ मालाओं
बहू बहू बहुएँ बहुओं
मिठाई मिठाई मिठाइयाँ मिठाइयों
सुई सुई सुइयाँ सुइयों
स्त्री स्त्री स्त्रियाँ स्त्रियों
"""

# masculine singular and plural, feminine singular and plural
PERFECTIVES = """
करना किया किए की कीं
देना दिया दिए दी दीं
लेना लिया लिए ली लीं
जाना गया गए गई गईं
आना आया आए आई आईं
पीना पिया पिए पी पीं
सोना सोया सोए सोई सोईं
रोना रोया रोए रोई रोईं
धोना धोया धोए धोई धोईं
छूना छुआ छुए छुई छुईं
खाना खाया खाए खाई खाईं
पढ़ना पढ़ा पढ़े पढ़ी पढ़ीं
देखना देखा देखे देखी देखीं
लौटना लौटा लौटे लौटी लौटीं
मुस्कुराना मुस्कुराया मुस्कुराए मुस्कुराई मुस्कुराईं
"""

# I (masculine), you, he, they (feminine), the order to तुम and to आप
FUTURES = """
करना करूँगा करोगे करेगा करेंगी करो कीजिए
देना दूँगा दोगे देगा देंगी दो दीजिए
लेना लूँगा लोगे लेगा लेंगी लो लीजिए
जाना जाऊँगा जाओगे जाएगा जाएँगी जाओ जाइए
पीना पिऊँगा पियोगे पिएगा पिएँगी पियो पीजिए
सोना सोऊँगा सोओगे सोएगा सोएँगी सोओ सोइए
छूना छुऊँगा छुओगे छुएगा छुएँगी छुओ छुइए
खाना खाऊँगा खाओगे खाएगा खाएँगी खाओ खाइए
पढ़ना पढ़ूँगा पढ़ोगे पढ़ेगा पढ़ेंगी पढ़ो पढ़िए
"""


def rows(table: str) -> list[list[str]]:
    return [unicodedata.normalize("NFC", line).split() for line in table.strip().splitlines()]


def noun(lemma: str):
    lemma = unicodedata.normalize("NFC", lemma)
    return next(noun for noun in lexicon().nouns if noun.lemma == lemma)


@pytest.mark.parametrize("row", rows(NOUNS), ids=lambda row: row[0])
def test_noun_forms(row):
    word = noun(row[0])
    assert [noun_form(word), *(noun_form(word, *cell) for cell in (("sg", True), ("pl",), ("pl", True)))] == row


@pytest.mark.parametrize("row", rows(PERFECTIVES), ids=lambda row: row[0])
def test_perfective_forms(row):
    forms = [perfective(row[0], Features(gender, number)) for gender in "mf" for number in ("sg", "pl")]
    assert [row[0], *forms] == row
    assert perfective(row[0], Features("f", "pl"), finite=False) == row[3], "no nasal before हैं"


@pytest.mark.parametrize("row", rows(FUTURES), ids=lambda row: row[0])
def test_future_and_imperative_forms(row):
    people = (("m", "sg", 1), ("m", "pl", 2), ("m", "sg", 3), ("f", "pl", 3))
    forms = [future(row[0], Features(*person)) for person in people]
    assert [row[0], *forms, imperative(row[0], False), imperative(row[0], True)] == row


def test_future_of_the_copula():
    people = (("m", "sg", 3), ("f", "sg", 3), ("m", "pl", 3), ("f", "pl", 3))
    assert [future("होना", Features(*person)) for person in people] == ["होगा", "होगी", "होंगे", "होंगी"]


def test_adjectives_and_participles():
    new = [adjective_form("नया", gender, number) for gender in "mf" for number in ("sg", "pl")]
    assert new == ["नया", "नए", "नई", "नई"]
    good = [adjective_form("अच्छा", "m", "sg", True), adjective_form("अच्छा", "f"), adjective_form("का", "m", "pl")]
    assert good == ["अच्छे", "अच्छी", "के"]
    assert adjective_form("लाल", "f", "pl") == "लाल"
    assert participle("जाना", Features("f", "pl")) == "जाती"


GROUPS = [
    ("habitual_present", Features("m", "sg", 1), "जाता हूँ"),
    ("habitual_present", Features("f", "pl", 2), "जाती हो"),
    ("habitual_present", Features("f", "pl"), "जाती हैं"),
    ("habitual_past", Features("f", "pl"), "जाती थीं"),
    ("habitual_past", Features("m", "pl"), "जाते थे"),
    ("progressive_present", Features("f", "sg"), "जा रही है"),
    ("progressive_past", Features("m", "sg"), "जा रहा था"),
    ("perfective", Features("f", "pl"), "गईं"),
    ("perfective_present", Features("f", "pl"), "गई हैं"),
    ("perfective_past", Features("f", "sg"), "गई थी"),
]


@pytest.mark.parametrize(("tense", "features", "words"), GROUPS)
def test_verb_groups(tense, features, words):
    assert " ".join(verb_group("जाना", tense, features)) == words


CLAUSES = [
    ("लड़का", "sg", "पढ़ना", "perfective", "किताब", "sg", False, "लड़के ने किताब पढ़ी"),
    ("लड़की", "sg", "पढ़ना", "perfective", "अख़बार", "sg", False, "लड़की ने अख़बार पढ़ा"),
    ("लड़की", "pl", "पढ़ना", "perfective", "किताब", "pl", False, "लड़कियों ने किताबें पढ़ीं"),
    ("लड़की", "pl", "पढ़ना", "perfective_present", "किताब", "pl", False, "लड़कियों ने किताबें पढ़ी हैं"),
    ("लड़की", "sg", "पढ़ना", "habitual_present", "अख़बार", "sg", False, "लड़की अख़बार पढ़ती है"),
    ("लड़का", "pl", "पढ़ना", "future", "किताब", "sg", False, "लड़के किताब पढ़ेंगे"),
    ("लड़का", "sg", "देखना", "perfective", "लड़की", "pl", True, "लड़के ने लड़कियों को देखा"),
    ("लड़की", "sg", "देखना", "perfective_past", "कुत्ता", "sg", True, "लड़की ने कुत्ते को देखा था"),
    ("लड़की", "sg", "लाना", "perfective", "दूध", "sg", False, "लड़की दूध लाई"),
    ("दादा", "sg", "पीना", "habitual_present", "चाय", "sg", False, "दादा जी चाय पीते हैं"),
    ("दादी", "sg", "पीना", "perfective", "दूध", "sg", False, "दादी जी ने दूध पिया"),
]


@pytest.mark.parametrize("row", CLAUSES, ids=lambda row: row[-1])
def test_clauses(row):
    subject, number, verb, tense, thing, many, marked, words = row
    does = next(each for each in lexicon().verbs if each.lemma == unicodedata.normalize("NFC", verb))
    clause = Predicate(does, tense, object=Nominal(noun(thing), many), marked=marked).of(Nominal(noun(subject), number))
    assert " ".join(clause.words) == unicodedata.normalize("NFC", words)


def test_case_and_number_run_through_a_noun_phrase():
    phrase = Nominal(noun("लड़का"), "pl", (("जो",), ("अच्छा",)))
    assert phrase.words() == ("जो", "अच्छे", "लड़के")
    assert phrase.words("ने") == ("जिन", "अच्छे", "लड़कों", "ने")
    assert Nominal(noun("किताब"), "pl", (("राम", "का"),)).words("में") == ("राम", "की", "किताबों", "में")


def test_lexicon_has_its_size_and_each_lexeme_once():
    counts = lexicon().counts()
    assert sum(counts.values()) == len(lexicon()) >= 650
    assert min(counts["nouns"] - 400, counts["verbs"] - 100, counts["adjectives"] - 80) > 0
    for words in (lexicon().nouns, lexicon().verbs, lexicon().adjectives, lexicon().adverbs):
        lemmas = [word.lemma for word in words]
        assert len(lemmas) == len(set(lemmas))


def test_listed_classes_are_classes_of_some_noun():
    known = {name for noun in lexicon().nouns for name in noun.classes}
    for verb in lexicon().verbs:
        assert verb.subjects | verb.objects | verb.marked_objects <= known, verb.lemma
    for adjective in lexicon().adjectives:
        assert adjective.classes <= known, adjective.lemma


def test_closed_classes_are_counted_once():
    closed = (*(p.direct for p in PRONOUNS), *POSTPOSITIONS, *RELATIONS, ONE, *NUMERALS, *QUESTION_WORDS, *PARTICLES)
    assert len(closed) == len(set(closed))


def test_data_files_and_forms_are_nfc():
    for path in (Path(hindi.__file__).parent / "data").glob("*.tsv"):
        text = path.read_text(encoding="utf-8")
        assert unicodedata.is_normalized("NFC", text), path.name
    assert all(unicodedata.is_normalized("NFC", form) for form in readings())
