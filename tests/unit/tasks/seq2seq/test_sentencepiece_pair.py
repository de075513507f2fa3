"""A Marian as OPUS-MT publishes them, a SentencePiece model for each side: the tokens are those of transformers."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import train as train_run
from vaak.tasks.seq2seq import sentencepiece_pair
from vaak.tasks.seq2seq.data import PreparedPairs
from vaak.tasks.seq2seq.pretrained import save_base

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

WORDS = {
    "en": "the a boy girl book reads sees house goes to and didn't 1,984 café — old new river water",
    "hi": "लड़का लड़की किताब पढ़ता है देखती घर जाता को और नहीं १९८४ नदी पानी पुराना नया ।",
}
YAML = """\
task: seq2seq
model: {{pretrained: {source}, encoder: {{dropout: 0}}, decoder: {{dropout: 0}}}}
data: {{max_unknown: 50, corpus: {{num_sentences: 40}}, decoding: {{valid_examples: 1, max_new_tokens: 9}}}}
training:
  max_steps: 2
  batch_size: 4
  device: cpu
  logging: {{interval: 1, tensorboard: false, progress_bar: false}}
"""


def sentences(language: str, number: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[language].split(), k=draw.randint(1, 12))) for _ in range(number)]


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: ``vocab.json`` has the pieces of both sides, and their ids are of neither."""
    folder = tmp_path_factory.mktemp("opus")
    pieces = set()
    for side, language in (("source", "en"), ("target", "hi")):
        text = folder / f"{language}.txt"
        text.write_text("\n".join(sentences(language, 400, 1)), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(folder / side), vocab_size=90, hard_vocab_limit=False,
            character_coverage=1.0, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces |= {model.id_to_piece(at) for at in range(len(model))}
    ordered = sorted(pieces - {"<unk>", "<s>", "</s>"}, key=lambda piece: piece[::-1])
    ids = {piece: at for at, piece in enumerate(["</s>", "<unk>", *ordered, ">>hin<<", "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    size = len(ids)
    about = {"source_lang": "en", "target_lang": "hi", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    torch.manual_seed(0)
    roles = {"pad_token_id": size - 1, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": size - 1}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = transformers.MarianConfig(
        vocab_size=size, d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, scale_embedding=True,
        activation_function="swish", **sizes, **roles,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def peer(opus: Path) -> Any:
    with warnings.catch_warnings():  # it recommends sacremoses, which it doesn't use here
        warnings.simplefilter("ignore", UserWarning)
        return transformers.MarianTokenizer.from_pretrained(opus)


@pytest.fixture(scope="module")
def prepared(opus: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedPairs:
    folder = tmp_path_factory.mktemp("prepared")
    save_base(str(opus), folder)
    return PreparedPairs(folder)


ODD = {
    "en": ["", "  two  spaces\tand a tab ", "zzz the boy", "the ﬁ ｈouse", "boygirl", "new\nriver", ">>hin<< the boy"],
    "hi": ["", "  नदी  और\tपानी ", "लड़का §§ को", "लड़कानदी", "नया\nपानी"],
}


@pytest.mark.parametrize(("side", "language"), [("source", "en"), ("target", "hi")])
def test_tokens_are_those_of_transformers(side: str, language: str, prepared: PreparedPairs, peer: Any):
    ours = prepared.source_tokenizer if side == "source" else prepared.target_tokenizer
    for text in [*sentences(language, 300, 2), *ODD[language]]:
        given = {"text": text} if side == "source" else {"text_target": text}
        assert ours.encode(text) == peer(**given, add_special_tokens=False)["input_ids"], text


def test_letters_that_a_side_does_not_know_are_unknown(prepared: PreparedPairs):
    """Whatever the other side's pieces; transformers looks them up among those."""
    ids = prepared.target_tokenizer.encode("boy")
    assert ids[1:] == [prepared.target_tokenizer.unk_id]


def test_texts_come_back(prepared: PreparedPairs):
    for text in sentences("hi", 50, 3):
        assert prepared.target_tokenizer.decode(prepared.target_tokenizer.encode(text)) == text
    ids = prepared.source_tokenizer.encode("the boy reads")
    assert prepared.target_tokenizer.decode([*ids, prepared.target_tokenizer.eos_id]) == "the boy reads"


def test_a_run_begins_with_it_and_is_exported(opus: Path, peer: Any, tmp_path: Path):
    (tmp_path / "run.yml").write_text(YAML.format(source=opus))
    train_run(load([tmp_path / "run.yml"], [f"run_dir={tmp_path / 'run'}"]))
    opened = open_run(tmp_path / "run", device="cpu")
    opened.task.export_hf(opened.model, tmp_path / "out")
    for name in sentencepiece_pair.PAIR_FILES:
        assert (tmp_path / "out" / name).read_bytes() == (opus / name).read_bytes()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    ids = peer("the old boy")["input_ids"]
    translator = opened.task.translator(opened.model)
    assert translator.source_ids("the old boy") == ids
    ((ours, *_),) = translator.written([ids], opened.task.decoding(max_new_tokens=12))
    padding = len(peer) - 1
    options = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1, "suppress_tokens": [padding]}
    theirs = model.generate(torch.tensor([ids]), **options)[0, 1:].tolist()
    assert [token for token in theirs if token != 0][:11] == list(ours.tokens)[:11]
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    opened.task.export_ct2(opened.model, tmp_path / "ct2", quantization="float32")
    for name in (*sentencepiece_pair.PAIR_FILES, "tokenizer_config.json"):
        assert (tmp_path / "ct2" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    fast = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu")
    source = peer.convert_ids_to_tokens(ids)
    (found,) = fast.translate_batch([source], beam_size=1, max_decoding_length=11)
    assert peer.convert_tokens_to_ids(found.hypotheses[0]) == list(ours.tokens)[:11]


def test_another_corpus_is_evaluated_with_both(opus: Path, tmp_path: Path):
    (tmp_path / "run.yml").write_text(YAML.format(source=opus))
    train_run(load([tmp_path / "run.yml"], [f"run_dir={tmp_path / 'run'}"]))
    others: Any = {"temporary_folder": tmp_path / "others", "splits": ("test",)}
    opened: Any = open_run(tmp_path / "run", [], ["data.corpus.seed=7"], "cpu", **others)
    pairs, source, target = opened.task.prepared.stores("test")
    own, pair = PreparedPairs(tmp_path / "run" / "prepared"), next(iter(pairs))
    assert source.document(0).tolist() == own.source_tokenizer.encode(pair.source)
    assert target.document(0).tolist() == own.target_tokenizer.encode(pair.targets[0])
    assert own.target_tokenizer.to_json() != own.source_tokenizer.to_json()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("source.spm", b"no model", r"source\.spm is not a SentencePiece model"),
        ("vocab.json", b'{"a": 0, "b": 2}', r"vocab\.json can't be read: its ids are not 0 to 1"),
        ("vocab.json", b"[", r"vocab\.json can't be read"),
        ("vocab.json", b'{"a": 0, "<unk>": 1}', r"vocab\.json: its ids are 0 to 1, without that of bos \(\d+\), pad"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, said: str, opus: Path, tmp_path: Path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    for file in (*sentencepiece_pair.PAIR_FILES, "config.json", "model.safetensors"):
        (folder / file).write_bytes(content if file == name else (opus / file).read_bytes())
    with pytest.raises(UserError, match=rf"^model\.pretrained: .*{said}"):
        save_base(str(folder), tmp_path / "prepared")
