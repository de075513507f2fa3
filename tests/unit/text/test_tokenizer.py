"""Tokenizers trained on a page of Hindi: exact on any text, the same every time, safe from injected special tokens."""

import json
import os
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quick_cases import mostly_slow
from vaak.core.errors import DataError, UserError
from vaak.text.tokenizer import BYTES, Tokenizer, round_trip_report
from vaak.text.tokenizer_training import PIECES, TokenizerFactory

TEXTS = [
    f"{who} {when} {where} {what} {number}।"
    for number in range(12)
    for who, when, where, what in [
        ("लड़का", "सुबह", "स्कूल", "गया"),
        ("लड़कियाँ", "शाम को", "बाज़ार", "जाती हैं"),
        ("हमारी दादी", "हर रोज़", "मंदिर में", "पूजा करती हैं"),
        ("क्\u200dष", "Monday", "in Delhi,", "(ठीक है?)"),
    ]
]
EXACT = ("byte_level", "bpe", "unigram", "character")
TYPES = (*EXACT, "wordpiece")
AWKWARD = [
    "",
    " ",
    "\n",
    "\n\n \n\t\n",
    "  दो  खाली   ",
    "a\tb\r\nc\u2028d\u00a0e",
    "👨‍👩‍👧‍👦 ❤️ 🇮🇳",
    "क्\u200dष क्\u200cष",
    "▁ Ġ ## ###a <0x41> <0xE0>",
    "<mask></s><pad> <s> <unk>",
    "\x00\x7f\ufeff\ufffd\U0010ffff",
    "漢字とかな",
]


def options(kind: str, vocab_size: int = 400, path: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(type=kind, vocab_size=vocab_size, min_frequency=2, training_characters=None, path=path)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: TokenizerFactory(options(kind)).create_tokenizer(TEXTS) for kind in TYPES}


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_comes_back(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    assert trained[kind].decode(trained[kind].encode(text)) == text


@pytest.mark.slow
@given(text=st.text(max_size=40) | st.text(" \n\t#<>0xAE▁Ġकि़्\u200d\u200c₹é", max_size=20))
def test_any_text_comes_back(trained: dict[str, Tokenizer], text: str) -> None:
    for kind in EXACT:
        assert trained[kind].decode(trained[kind].encode(text)) == text, kind


@given(text=st.text("".join(sorted(set("".join(TEXTS)))) + " \n\t", max_size=40))
def test_wordpiece_returns_text_of_characters_it_knows(trained: dict[str, Tokenizer], text: str) -> None:
    ids = trained["wordpiece"].encode(text)
    assert trained["wordpiece"].decode(ids) == text or trained["wordpiece"].unk_id in ids
    if max(map(len, text.split()), default=0) < 100:
        assert trained["wordpiece"].unk_id not in ids


@pytest.fixture(scope="module")
def foreign() -> Tokenizer:
    """A byte-level tokenizer like ours, but without some bytes, with a space before every text, and other words."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    letters = sorted(BYTES)[40:]
    backend = Backend(models.BPE({letter: number for number, letter in enumerate(letters)}, [], unk_token=letters[0]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["कि ₹", AddedToken("é", single_word=True), "Ġ ž"])
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


@given(text=st.text(max_size=40) | st.text(" \n\t#<>0xAE▁Ġकि़्\u200d\u200c₹éž", max_size=20), data=st.data())
def test_whether_ids_give_a_text_back_is_what_decoding_says(
    trained: dict[str, Tokenizer], foreign: Tokenizer, text: str, data: st.DataObject
) -> None:
    for tokenizer in (*trained.values(), foreign):
        drawn = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=5))
        rows = [tokenizer.encode(text), drawn, drawn]
        texts = [text, tokenizer.decode(drawn), text]
        if "\ufffd" not in "".join(texts):  # it may also stand for bytes that are half a character
            expected = [tokenizer.decode(ids) == one for ids, one in zip(rows, texts, strict=True)]
            assert tokenizer.are_reproduced(rows, texts) == expected


@given(texts=st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5))
@example(texts=["00000000"])
@example(texts=["abab" * 4])
def test_training_on_any_text_gives_exact_tokenizers(texts: list[str]) -> None:
    for kind in EXACT:
        tokenizer = TokenizerFactory(options(kind, 1000)).create_tokenizer(texts)
        assert round_trip_report(tokenizer, texts).exact == len(texts), kind


@pytest.mark.parametrize("kind", TYPES)
def test_special_ids_are_fixed_and_never_come_from_text(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    injected = tokenizer.encode("<mask> </s> <s><pad>")
    assert not set(injected) & {0, 1, 2, 4}
    assert not set(pickle.loads(pickle.dumps(tokenizer)).encode("<mask>")) & {0, 1, 2, 4}


@pytest.mark.parametrize("kind", TYPES)
def test_every_newline_is_one_token_of_its_own(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    (newline,) = tokenizer.encode("\n")
    assert newline != tokenizer.unk_id
    assert tokenizer.isolates_newlines
    for text in ["लड़का\nगया", "\n\nलड़का \n गया\n", "। \n।\n"]:
        assert tokenizer.encode(text).count(newline) == text.count("\n")
        parts = re.findall(r"[^\n]*\n|[^\n]+", text)
        assert [id for part in parts for id in tokenizer.encode(part)] == tokenizer.encode(text)


def test_a_hindi_word_is_one_piece() -> None:
    from tokenizers import Regex, pre_tokenizers

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizers.Split(Regex(PIECES), "isolated").pre_tokenize_str(text)]

    assert pieces("लड़कियाँ बाज़ार में।\n") == ["लड़कियाँ", " बाज़ार", " में", "।", "\n"]
    assert pieces("क्\u200dष १२३ (है?)  अब") == ["क्\u200dष", " १२३", " (", "है", "?)", " ", " अब"]


@pytest.mark.parametrize("kind", mostly_slow(TYPES, "byte_level"))
def test_training_is_the_same_in_every_process_and_thread_count(trained: dict[str, Tokenizer], kind: str) -> None:
    program = (
        "import sys, ast\nfrom types import SimpleNamespace as N\n"
        "from vaak.text.tokenizer_training import TokenizerFactory\n"
        f"options = N(type={kind!r}, vocab_size=400, min_frequency=2, training_characters=None, path=None)\n"
        "print(TokenizerFactory(options).create_tokenizer(ast.literal_eval(sys.stdin.read())).fingerprint)"
    )
    environment = os.environ | {"RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "7"}
    run = subprocess.run(
        [sys.executable, "-c", program], input=repr(TEXTS), capture_output=True, text=True, env=environment, check=True
    )
    assert run.stdout.strip() == trained[kind].fingerprint


@pytest.mark.parametrize("kind", TYPES)
def test_saved_and_loaded_is_the_same(trained: dict[str, Tokenizer], kind: str, tmp_path) -> None:
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "t")
    for path in (tmp_path / "t", tmp_path / "t" / "tokenizer.json"):
        loaded = TokenizerFactory(options("bpe", path=str(path))).create_tokenizer([])
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.encode_batch(TEXTS + AWKWARD) == [tokenizer.encode(text) for text in TEXTS + AWKWARD]
        assert loaded.vocab_size == len(tokenizer) <= 400


def test_transformers_reads_what_is_saved(trained: dict[str, Tokenizer], tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    trained["byte_level"].save(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id, loaded.mask_token_id) == (0, 1, 2, 4)
    assert loaded(TEXTS[0])["input_ids"] == trained["byte_level"].encode(TEXTS[0])
    assert loaded.decode(loaded("  क  ,ख .")["input_ids"]) == "  क  ,ख ."


def test_a_foreign_tokenizer_keeps_its_special_tokens_and_gets_those_it_lacks(tmp_path, caplog) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    foreign = Backend(models.BPE({"क": 0, "ख": 1, "[PAD]": 2}, []))
    foreign.add_special_tokens(["[PAD]", "<|endoftext|>"])
    foreign.enable_padding(length=50)
    foreign.enable_truncation(max_length=1)
    foreign.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_id, loaded.unk_id, loaded.mask_id) == (2, 3, 3, 4, 5)
    assert loaded.vocab_size == 6
    assert loaded.encode_batch(["कख", "ख"]) == [[0, 1], [1]]
    assert "no mask token" in caplog.text


def test_what_wordpiece_loses_is_reported(trained: dict[str, Tokenizer]) -> None:
    report = round_trip_report(trained["wordpiece"], ["लड़का गया", "लड़का 漢字 गया"])
    assert (report.documents, report.exact, report.unknown_tokens) == (2, 1, 1)
    assert "document 1, character 6" in str(report)
    assert round_trip_report(trained["bpe"], TEXTS).first_difference is None


@pytest.mark.parametrize("kind", TYPES)
def test_sizes_that_do_not_fit_the_text(kind: str, caplog) -> None:
    with pytest.raises(UserError, match=r"vocab_size: 20 is too small; .* at least \d+"):
        TokenizerFactory(options(kind, 20)).create_tokenizer(TEXTS)
    tokenizer = TokenizerFactory(options(kind, 50_000)).create_tokenizer(TEXTS)
    assert tokenizer.vocab_size < 50_000
    assert f"the text gives {tokenizer.vocab_size} tokens" in caplog.text
    if kind in ("bpe", "unigram", "wordpiece"):
        with pytest.raises(UserError, match="is too small"):
            TokenizerFactory(options(kind, 80 if kind == "wordpiece" else 265)).create_tokenizer(TEXTS)


@pytest.mark.parametrize("kind", TYPES)
def test_no_text_is_an_error(kind: str) -> None:
    with pytest.raises(DataError, match="no text to train"):
        TokenizerFactory(options(kind)).create_tokenizer(iter([]))


@pytest.mark.parametrize("kind", TYPES)
def test_texts_may_be_an_iterator(trained: dict[str, Tokenizer], kind: str) -> None:
    assert TokenizerFactory(options(kind)).create_tokenizer(iter(TEXTS)).fingerprint == trained[kind].fingerprint


def test_missing_and_damaged_files(tmp_path) -> None:
    with pytest.raises(DataError, match="this tokenizer file does not exist"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(DataError, match=r"tokenizer\.json: this is not a tokenizer"):
        Tokenizer.load(tmp_path)


BAD_PARTS = {
    "panics while it is read": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "panics while it is used": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "bad regular expression": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(["}, "behavior": "Isolated", "invert": False}
    },
}


@pytest.mark.parametrize("part", BAD_PARTS)
def test_what_the_library_panics_at_is_a_damaged_file(part: str, trained, tmp_path, capfd) -> None:
    """A panic of Rust is a BaseException, and writes its own lines past Python."""
    content = json.loads(trained["byte_level"].to_json()) | BAD_PARTS[part]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"tokenizer\.json: this is not a tokenizer"):
        Tokenizer.load(tmp_path)
    assert capfd.readouterr().err == ""


def test_real_hindi_comes_back(vaak_data) -> None:
    with open(vaak_data("hindi") / "wiki.train.txt", encoding="utf-8") as file:
        train = file.read().splitlines()
    with open(vaak_data("hindi") / "wiki.test.txt", encoding="utf-8", newline="") as file:
        test = [file.read()]
    for kind in EXACT:
        tokenizer = TokenizerFactory(options(kind, 1000)).create_tokenizer(train)
        assert str(round_trip_report(tokenizer, test)) == "1 of 1 documents are reproduced exactly; 0 unknown tokens"
