"""Token shards return the tokens written, in little memory, and are complete or absent."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vaak.core.errors import DataError, FormatError
from vaak.text.corpora import stores
from vaak.text.corpora.stores import TokenStore, write_tokens
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

TEXTS = ["लड़का घर गया।", "", "एक\nदो\n\n", "😀 <mask>", " तीन  चार"] * 3


def make_tokenizer(kind: str = "byte_level") -> Tokenizer:
    options = SimpleNamespace(type=kind, vocab_size=300, min_frequency=2, training_characters=None, path=None)
    return TokenizerFactory(options).create_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


def test_documents_come_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = write_tokens(tmp_path / "deep" / "train", iter(TEXTS), tokenizer)
    assert len(store) == len(TEXTS)
    assert store.tokens.dtype == np.uint16
    assert [store.document(index).tolist() for index in range(len(store))] == [tokenizer.encode(text) for text in TEXTS]
    assert store.num_bytes.tolist() == [len(text.encode()) for text in TEXTS]
    assert store.lengths.tolist() == [len(tokenizer.encode(text)) for text in TEXTS]
    assert store.tokenizer_fingerprint == tokenizer.fingerprint
    for index in (-1, len(TEXTS)):
        with pytest.raises(IndexError):
            store.document(index)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["train"]


@pytest.mark.parametrize("kind", ["byte_level", "unigram", "wordpiece"])
def test_cutting_and_batching_change_no_token(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["एक दो\n\n तीन\nचार " * 40, "बिना नई पंक्ति " * 30, "\n" * 50, "पाँच"]
    tokenizer = make_tokenizer(kind)
    whole = write_tokens(tmp_path / "whole", texts, tokenizer)
    monkeypatch.setattr(stores, "BATCH_CHARACTERS", 64)
    monkeypatch.setattr(stores, "PIECE_CHARACTERS", 16)
    cut = write_tokens(tmp_path / "cut", texts, tokenizer)
    assert cut.tokens.tolist() == whole.tokens.tolist() == [id for text in texts for id in tokenizer.encode(text)]
    assert cut.offsets.tolist() == whole.offsets.tolist()
    assert cut.num_bytes.tolist() == whole.num_bytes.tolist() == [len(text.encode()) for text in texts]


@pytest.mark.slow
def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("character")
    tokenizer.backend.add_tokens([f"word{number}" for number in range(1 << 16)])
    large = Tokenizer.from_json(tokenizer.to_json())
    store = write_tokens(tmp_path / "t", ["word65535"], large)
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist() == [large.vocab_size - 1]


def test_no_documents_make_an_empty_store(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = write_tokens(tmp_path / "t", [], tokenizer)
    assert (len(store), len(store.tokens), len(store.num_bytes), store.offsets.tolist()) == (0, 0, 0, [0])


def test_a_failure_leaves_what_was_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "नया" * 10
        raise DataError("line 2 is broken")

    with pytest.raises(DataError, match="line 2"):
        write_tokens(tmp_path / "t", broken(), tokenizer)
    assert list(tmp_path.iterdir()) == []
    before = write_tokens(tmp_path / "t", TEXTS, tokenizer).fingerprint
    with pytest.raises(DataError, match="line 2"):
        write_tokens(tmp_path / "t", broken(), tokenizer)
    assert TokenStore(tmp_path / "t").fingerprint == before
    after = write_tokens(tmp_path / "t", TEXTS[:2], tokenizer)
    assert (after.fingerprint != before, len(after)) == (True, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_it_pickles_as_its_path_and_opens_in_other_processes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = write_tokens(tmp_path / "t", TEXTS * 1000, tokenizer)
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    program = "import pickle, sys; print(int(pickle.load(sys.stdin.buffer).tokens.sum()))"
    other = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)
    assert int(other.stdout) == store.tokens.sum()


def test_it_is_read_only(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = write_tokens(tmp_path / "t", TEXTS, tokenizer)
    with pytest.raises(ValueError, match="read-only"):
        store.document(0)[0] = 1


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "num_bytes.bin", "store.json"])
def test_damaged_files_are_named(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokens(tmp_path / "t", TEXTS, tokenizer)
    path = tmp_path / "t" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=rf"{name}: .*delete "):
        TokenStore(tmp_path / "t")
    path.unlink()
    with pytest.raises(DataError, match=name):
        TokenStore(tmp_path / "t")


def test_tokens_of_an_earlier_version_are_named_with_the_remedy(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokens(tmp_path / "t", TEXTS, tokenizer)
    about = tmp_path / "t" / "store.json"
    about.write_text(about.read_text().replace("vaak tokens 2", "vaak tokens 1"))
    with pytest.raises(FormatError) as caught:
        TokenStore(tmp_path / "t")
    assert str(caught.value) == (
        f"{about}: this version can't read these tokens: they are vaak tokens 1, and it reads vaak tokens 2; "
        f"delete {tmp_path / 't'} and run again"
    )


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "another"}'])
def test_foreign_folders_are_refused(content: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the tokens are missing or incomplete"):
        TokenStore(tmp_path)
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(DataError, match="this version can't read these tokens"):
        TokenStore(tmp_path)


# Prints the growth of peak memory in MB and the tokens a second, for some MB of text in lines or in one document.
# VmHWM, not ru_maxrss: the latter survives exec, so it would be the test runner's.
MEASURE = """
import random, sys, time
from pathlib import Path
from vaak.text.corpora.stores import write_tokens
from vaak.text.tokenizer import Tokenizer
folder, megabytes, layout = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
tokenizer = Tokenizer.load(folder)
words = ["लड़का", "घर", "गया", "हमारी", "दादी", "मंदिर", "सुबह", "है।", "जनसंख्या"]
def lines():
    rng, size = random.Random(0), 0
    while size < megabytes * 1_000_000:
        line = " ".join(rng.choices(words, k=12)) + str(rng.randrange(10**6))
        size += len(line.encode())
        yield line
def kilobytes(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(field))
write_tokens(folder / "warm", [line for _, line in zip(range(20000), lines())], tokenizer)
texts = lines() if layout == "lines" else ["\\n".join(lines())]
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = kilobytes("VmRSS")
start = time.perf_counter()
store = write_tokens(folder / "tokens", texts, tokenizer)
seconds = time.perf_counter() - start
print((kilobytes("VmHWM") - before) / 1000, len(store.tokens) / seconds)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("layout", ["lines", "one document"])
def test_memory_does_not_grow_with_the_text(layout: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    grown = []
    for megabytes in (10, 60):
        command = [sys.executable, "-c", MEASURE, str(tmp_path), str(megabytes), layout]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        grown.append(float(output[0]))
        print(json.dumps({"MB of text": megabytes, "MB grown": grown[-1], "tokens a second": float(output[1])}))
    assert grown[1] - grown[0] < 20
