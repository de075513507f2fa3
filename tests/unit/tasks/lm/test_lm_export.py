"""An exported folder is a model and a tokenizer that transformers loads without Vaak."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from networks import draw_weights
from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.feed_forward import list_mixtures
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import export_hf
from vaak.tasks.lm.export_tokenizer import RunTokenizer
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.predict import generate

TEXTS = ["राम घर जाता है।", "सीता ने किताब पढ़ी।", "बच्चे खेल रहे हैं।", "लड़की  दूध पीती है"]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def small_model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"preset": "tiny", "num_key_value_heads": 2}
    model = LanguageModel(LanguageModelConfig(**(sizes | options)), 304)
    draw_weights(model, 0.1)
    for mixture in list_mixtures(model):
        if mixture.bias is not None:  # as uneven as training makes it
            mixture.bias.copy_(0.1 * torch.randn(mixture.bias.shape))
    return model.eval()


EXPERTS = {"num_experts": 4, "d_ff": 32, "scores": "softmax", "normalise": False, "balancing_bias": 0.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qk_norm": True},
        {"tie_embeddings": False, "rope_theta": 777.0},
        {"qk_norm": True, "moe": EXPERTS},
        {"moe": {"num_experts": 4, "d_ff": 32}},
        {"qk_norm": True, "qkv_bias": True, "moe": {"num_experts": 5, "num_shared": 2, "first_layer": 1, "scale": 2.5}},
        {"moe": {"num_experts": 4, "top_k": 3, "num_shared": 1, "normalise": False, "balancing_bias": 0.0}},
    ],
)
def test_transformers_loads_the_folder_and_agrees(options: dict[str, Any], tokenizer_file: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    model = small_model(**options)
    folder = tmp_path / "new" / "exported"
    export_hf(model, RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 128, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["exported"]

    peer, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert peer.config.max_position_embeddings == 128
    assert peer.dtype is torch.float32
    ids = torch.randint(0, 304, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(peer(ids).logits, model(ids), rtol=0, atol=1e-4)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_file(str(tokenizer_file))
    for text in [*TEXTS, "unseen १२३ क्ष\u200dत्र <mask> 🙂"]:
        assert tokenizer(text)["input_ids"] == ours.encode(text).ids
        assert tokenizer.decode(ours.encode(text).ids, skip_special_tokens=True) == ours.decode(ours.encode(text).ids)
    assert tokenizer.model_max_length == 128
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.pad_token_id == ours.token_to_id("<pad>")

    prompt = tokenizer("राम", return_tensors="pt")
    generated = peer.generate(**prompt, max_new_tokens=15, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    end = ours.token_to_id("</s>")
    assert end is not None
    settings = SamplingSettings(max_new_tokens=15, temperature=0, stop_ids=(end,))
    expected = list(generate(model, prompt["input_ids"][0].tolist(), settings))
    assert [token for token in generated if token != end] == expected


def test_an_empty_folder_is_filled_and_another_is_refused(tokenizer_file: Path, tmp_path: Path):
    model, folder = small_model(), tmp_path / "out"
    folder.mkdir()
    export_hf(model, RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 128, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=r"out exists and is not an empty folder"):
        export_hf(model, RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 64, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert set(before) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("bytes_that_fit", [300, 100_000])
def test_a_write_that_fails_leaves_nothing(tokenizer_file: Path, tmp_path: Path, bytes_that_fit: int):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_that_fit, limits[1]))
    try:
        with pytest.raises(UserError, match=r"Can't write .*out: .*File too large"):
            export_hf(small_model(), RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 128, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tokenizer_file: Path, tmp_path: Path):
    folder = tmp_path / "out"
    with pytest.raises(UserError, match="Only a decoder"):
        export_hf(small_model(model_type="encoder"), RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 128, folder)
    with pytest.raises(
        UserError, match=r"moe\.balancing_bias 0\.001 can't be exported: transformers' Qwen3Moe has 0\.0"
    ):
        export_hf(
            small_model(qk_norm=True, moe={"scores": "softmax"}),
            RunTokenizer(tokenizer_file, SPECIAL_TOKENS),
            128,
            folder,
        )
    with pytest.raises(UserError, match=r"no token '<cls>' .*cls_token"):
        export_hf(small_model(), RunTokenizer(tokenizer_file, {"cls_token": "<cls>"}), 128, folder)
    with pytest.raises(UserError, match="begin_token is not a special token"):
        export_hf(small_model(), RunTokenizer(tokenizer_file, {"begin_token": "<s>"}), 128, folder)
    with pytest.raises(UserError, match=r"The tokenizer .* does not exist"):
        export_hf(small_model(), RunTokenizer(tmp_path / "none.json", SPECIAL_TOKENS), 128, folder)
    smaller = LanguageModel(LanguageModelConfig(preset="tiny"), 200)
    with pytest.raises(UserError, match="the model only 200"):
        export_hf(smaller, RunTokenizer(tokenizer_file, SPECIAL_TOKENS), 128, folder)
    assert not list(tmp_path.iterdir())
