"""Sentences in two languages against pairs written by hand, of every kind of clause."""

from dataclasses import replace

import pytest

from bilingual_grammar.clauses import Event, State, existence, identity, possession, quality, relative, whose
from bilingual_grammar.dictionary import bilingual_adverbs, bilingual_lexicon, noun_english
from bilingual_grammar.phrases import HE, ME, SHE, THEY, WE, WHO, YOU, Adjunct, Phrase


def the(english, number="sg", determiner="", **more):
    """The phrase whose noun is this in English."""
    noun = next(noun for noun in bilingual_lexicon().nouns if noun_english(noun) == english)
    return Phrase(noun, number, determiner, **more)


def many(english, determiner="", **more):
    return the(english, "pl", determiner, definite=False, **more)


def verb(lemma):
    return next(verb for verb in bilingual_lexicon().verbs if verb.lemma == lemma)


def adjective(lemma):
    return next(adjective for adjective in bilingual_lexicon().adjectives if adjective.lemma == lemma)


def adverb(english, tense, kind="time"):
    return next(each for each in bilingual_adverbs(kind, tense, ("free", "mid", "end")) if each.english == english)


def event(lemma, tense, subject, **more):
    return Event(verb(lemma), tense, subject, **more)


def at(english, *postposition):
    return Adjunct(the(english), postposition)


def joined(english, hindi):
    return english, " ".join(hindi)


TOLD = [
    (
        event("सोना", "habitual_present", the("boy"), adjunct=at("table", "पर")),
        "the boy sleeps on the table",
        "लड़का मेज़ पर सोता है",
    ),
    (event("सोना", "habitual_past", the("girl")), "the girl used to sleep", "लड़की सोती थी"),
    (event("रोना", "progressive_present", SHE), "she is crying", "वह रो रही है"),
    (event("रोना", "progressive_past", the("boy", "pl")), "the boys were crying", "लड़के रो रहे थे"),
    (event("पीना", "perfective", ME, object=the("tea")), "I drank the tea", "मैंने चाय पी"),
    (
        event("पढ़ना", "perfective_present", the("girl"), object=many("book", "दो")),
        "the girl has read two books",
        "लड़की ने दो किताबें पढ़ी हैं",
    ),
    (event("लाना", "perfective_past", HE, object=the("map", "sg", "एक")), "he had brought a map", "वह एक नक़्शा लाया था"),
    (event("आना", "future", the("Father")), "Father will come", "पिता जी आएँगे"),
    (event("जाना", "habitual_present", YOU, adjunct=Adjunct(the("fair"), ("",))), "you go to the fair", "आप मेले जाते हैं"),
    (
        event("देखना", "perfective", the("Sita"), object=ME, time=adverb("yesterday", "perfective")),
        "Sita looked at me yesterday",
        "सीता ने कल मुझे देखा",
    ),
    (
        event(
            "देखना",
            "perfective",
            the("Sita"),
            object=the("dog"),
            time=adverb("yesterday", "perfective"),
            time_first=True,
        ),
        "yesterday Sita looked at the dog",
        "कल सीता ने कुत्ते को देखा",
    ),
    (
        event("जाना", "future", WE, time=adverb("tomorrow", "future"), adjunct=Adjunct(the("market"), ("",))),
        "we will go to the market tomorrow",
        "हम कल बाज़ार जाएँगे",
    ),
    (
        event("देना", "perfective", the("Ram"), object=the("watch"), receiver=the("queen")),
        "Ram gave the watch to the queen",
        "राम ने रानी को घड़ी दी",
    ),
    (
        event("सुलाना", "habitual_present", the("mother", possessor=ME), object=the("child")),
        "my mother puts the child to sleep",
        "मेरी माँ बच्चे को सुलाती है",
    ),
    (
        event("पढ़ना", "habitual_present", HE, object=the("book", possessor=HE)),
        "he reads his book",
        "वह अपनी किताब पढ़ता है",
    ),
    (
        event("पढ़ना", "habitual_present", SHE, object=the("book", possessor=HE)),
        "she reads his book",
        "वह उसकी किताब पढ़ती है",
    ),
    (
        event("पढ़ना", "future", the("student", "pl"), object=many("poem", possessor=the("boy", "pl"))),
        "the students will read the boys' poems",
        "छात्र लड़कों की कविताएँ पढ़ेंगे",
    ),
    (
        event("मिलना", "perfective", THEY, adjunct=Adjunct(ME, ("से",), "")),
        "they met me",
        "वे मुझसे मिले",
    ),
    (
        event(
            "मिलना",
            "habitual_present",
            the("girl"),
            adjunct=Adjunct(ME, ("से",), ""),
            manner=adverb("happily", "habitual_present", "manner"),
        ),
        "the girl meets me happily",
        "लड़की मुझसे ख़ुशी से मिलती है",
    ),
    (
        event("बैठना", "future", the("actress"), adjunct=Adjunct(ME, ("के", "साथ"))),
        "the actress will sit down with me",
        "अभिनेत्री मेरे साथ बैठेगी",
    ),
    (
        event("गाना", "habitual_past", ME, object=many("song"), time=adverb("always", "habitual_past")),
        "I always used to sing songs",
        "मैं हमेशा गीत गाता था",
    ),
    (
        event("खाना", "habitual_present", the("horse"), object=the("apple", adjectives=(adjective("लाल"),), very=True)),
        "the horse eats the very red apple",
        "घोड़ा बहुत लाल सेब खाता है",
    ),
    (
        event("पहनाना", "perfective", the("sister"), receiver=HE, object=the("cap", "sg", "यह")),
        "the sister put this cap on him",
        "बहन ने उसे यह टोपी पहनाई",
    ),
    (
        event("लिखना", "perfective", ME, object=many("letter"), manner=adverb("quickly", "perfective", "manner")),
        "I wrote letters quickly",
        "मैंने पत्र जल्दी लिखे",
    ),
    (event("सोना", "perfective", SHE, negative=True), "she did not sleep", "वह नहीं सोई"),
    (
        event("बेचना", "progressive_present", WE, object=the("car"), negative=True),
        "we are not selling the car",
        "हम कार नहीं बेच रहे हैं",
    ),
    (event("रोना", "habitual_past", THEY, negative=True), "they did not use to cry", "वे नहीं रोते थे"),
]


@pytest.mark.parametrize(("told", "english", "hindi"), TOLD, ids=[english for _, english, _ in TOLD])
def test_clauses(told, english, hindi):
    assert joined(told.english(), told.hindi()) == (english, hindi)


ASKED = [
    (event("रोना", "perfective", the("boy")), "did the boy cry", "लड़का रोया"),
    (event("जाना", "habitual_present", SHE, asked="कहाँ"), "where does she go", "वह कहाँ जाती है"),
    (event("पीना", "perfective", YOU, asked="क्या"), "what did you drink", "आपने क्या पिया"),
    (event("बुलाना", "future", the("king"), asked="किसे"), "whom will the king call", "राजा किसे बुलाएगा"),
    (event("पढ़ना", "perfective", WHO, object=the("story")), "who read the story", "किसने कहानी पढ़ी"),
    (event("हँसना", "progressive_past", THEY, asked="क्यों"), "why were they laughing", "वे क्यों हँस रहे थे"),
]


@pytest.mark.parametrize(("asked", "english", "hindi"), ASKED, ids=[english for _, english, _ in ASKED])
def test_questions(asked, english, hindi):
    assert joined(asked.english_question(), asked.hindi()) == (english, hindi)


@pytest.mark.parametrize(
    ("polite", "negative", "english", "hindi"),
    [
        (False, False, "read my letter", "मेरा पत्र पढ़ो"),
        (True, False, "please read my letter", "मेरा पत्र पढ़िए"),
        (False, True, "do not read my letter", "मेरा पत्र मत पढ़ो"),
        (True, True, "please do not read my letter", "मेरा पत्र न पढ़िए"),
    ],
)
def test_orders(polite, negative, english, hindi):
    order = event("पढ़ना", "future", YOU, object=the("letter", possessor=ME), negative=negative)
    assert joined(order.english_order(polite), order.hindi_order(polite)) == (english, hindi)
    own = replace(order, object=the("letter", possessor=YOU), negative=False)
    assert joined(own.english_order(False), own.hindi_order(False)) == ("read your letter", "अपना पत्र पढ़ो")


def state(subject, time, said, negative=False):
    hindi, english = said
    return State(subject, time, hindi, english, negative)


def is_at(subject, time, where):
    return State(subject, time, where.hindi(), where.english())


STATES = [
    (state(the("watch"), "present", quality(adjective("महँगा"), the("watch"))), "the watch is expensive", "घड़ी महँगी है"),
    (state(SHE, "past", quality(adjective("लंबा"), SHE)), "she was tall", "वह लंबी थी"),
    (
        state(the("dog", "pl"), "present", quality(adjective("बड़ा"), the("dog", "pl"), than=the("cat"))),
        "the dogs are bigger than the cat",
        "कुत्ते बिल्ली से बड़े हैं",
    ),
    (
        state(the("pen"), "future", quality(adjective("उपयोगी"), the("pen"), than=the("mirror"))),
        "the pen will be more useful than the mirror",
        "क़लम शीशे से ज़्यादा उपयोगी होगी",
    ),
    (
        state(the("Mother"), "present", quality(adjective("बीमार"), the("Mother")), negative=True),
        "Mother is not sick",
        "माता जी बीमार नहीं हैं",
    ),
    (is_at(the("sari", "pl"), "past", at("bed", "पर")), "the saris were on the bed", "साड़ियाँ बिस्तर पर थीं"),
    (is_at(ME, "present", at("temple", "के", "सामने")), "I am in front of the temple", "मैं मंदिर के सामने हूँ"),
]


@pytest.mark.parametrize(("told", "english", "hindi"), STATES, ids=[english for _, english, _ in STATES])
def test_states(told, english, hindi):
    assert joined(told.english(), told.hindi()) == (english, hindi)


@pytest.mark.parametrize(
    ("pair", "english", "hindi"),
    [
        (
            existence(the("watch", "sg", "एक"), at("table", "पर"), "present"),
            "there is a watch on the table",
            "मेज़ पर एक घड़ी है",
        ),
        (
            existence(the("boy", "sg", "कोई"), at("garden", "में"), "past"),
            "there was no boy in the garden",
            "बग़ीचे में कोई लड़का नहीं था",
        ),
        (
            existence(many("glass", "तीन"), at("house", "में"), "future"),
            "there will be three glasses in the house",
            "घर में तीन गिलास होंगे",
        ),
        (possession(the("Ram"), the("car", "sg", "एक"), "present"), "Ram has a car", "राम के पास एक कार है"),
        (possession(ME, many("sister", "दो"), "present"), "I have two sisters", "मेरी दो बहनें हैं"),
        (possession(the("king"), the("son", "sg", "एक"), "past"), "the king had a son", "राजा का एक बेटा था"),
        (identity(True, the("doll", possessor=the("Mira"))), "this is Mira's doll", "यह मीरा की गुड़िया है"),
        (identity(False, many("shoe", possessor=SHE)), "those are her shoes", "वे उसके जूते हैं"),
        (whose(True, many("book")), "whose books are these", "ये किसकी किताबें हैं"),
        (
            relative(
                the("boy"),
                event("पीना", "perfective", the("boy"), object=the("milk")),
                event("पढ़ना", "habitual_present", the("boy"), object=the("book", possessor=HE)),
            ),
            "the boy who drank the milk reads his book",
            "जिस लड़के ने दूध पिया वह अपनी किताब पढ़ता है",
        ),
        (
            relative(
                the("woman", "pl"),
                event("नाचना", "habitual_present", the("woman", "pl")),
                event("गाना", "perfective", the("woman", "pl"), object=the("song")),
            ),
            "the women who dance sang the song",
            "जो औरतें नाचती हैं उन्होंने गीत गाया",
        ),
    ],
)
def test_sentences_of_other_kinds(pair, english, hindi):
    assert joined(*pair) == (english, hindi)
