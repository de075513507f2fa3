"""Conversations train: answers alone are learned and scored, packed or not, and the run answers."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from networks import draw_weights
from tiny_decoder import write_folder
from vaak.config.load import load
from vaak.core.errors import DataError, UserError
from vaak.engine.metrics_file import read_records
from vaak.nn.cross_entropy import IGNORED
from vaak.runs.evaluate import evaluate_run
from vaak.tasks.lm.task import LanguageModelTask

SIZES = {"train": 40, "valid": 6}
NAMES = ("राम", "सीता", "मोहन", "गीता")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.jsonl`` and ``valid.jsonl``, and ``tiny.yml`` that names them."""
    folder = tmp_path_factory.mktemp("chats")
    corpus = "{type: chat"
    for split, size in SIZES.items():
        rows = []
        for number in range(size):
            name = NAMES[number % len(NAMES)]
            turns = [("user", f"{split} {number}: कौन?"), ("assistant", name)] * (1 + number % 3)
            rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        corpus += f", {split}: ['{folder / split}.jsonl']"
    text = tiny_runs.CONFIG.replace(
        "{type: text, train: [train.txt], valid: [valid.txt], test: [test.txt]}", corpus + "}"
    )
    (folder / "tiny.yml").write_text(text.replace("max_length: 48", "max_length: 128"))
    return folder


@pytest.fixture(scope="module")
def run(chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tiny"
    tiny_runs.train(chats, folder, "training.batching=packed")
    return folder


def make_task(chats: Path, run: Path, *overrides: str) -> LanguageModelTask:
    return tiny_runs.prepared_task(chats, run, "data.token_dropout=0", "model.dropout=0", *overrides)


def test_packed_conversations_have_the_loss_of_single_ones_and_count_answers(chats: Path, tmp_path: Path):
    task = make_task(chats, tmp_path / "run")
    model = task.model().double()
    draw_weights(model, 0.2)
    dataset: Any = task.dataset("train")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(3)]
    for example in examples:
        scored = example.targets[example.targets != IGNORED].tolist()
        answers = task.tokenizer.decode(scored, skip_special_tokens=False).split("</s>")
        assert answers[-1] == ""
        assert set(answers[:-1]) <= set(NAMES)
        assert example.num_bytes == sum(len(answer.encode()) + 1 for answer in answers[:-1])
    packed, padded = dataset.collate([examples]), dataset.collate([[example] for example in examples])
    assert packed.totals()["token"] == padded.totals()["token"] == sum((e.targets != IGNORED).sum() for e in examples)
    losses = [term.total.item() for batch in (packed, padded) for term in task.losses(model, batch).values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    everything = make_task(chats, tmp_path / "all", "data.loss_on=all")
    train: Any = everything.dataset("train")
    valid: Any = everything.dataset("valid")
    first = train.example(0, np.random.default_rng(0))
    assert (first.targets != IGNORED).all()
    assert first.num_bytes == 0
    assert (valid.example(0, np.random.default_rng(0)).targets == IGNORED).any()


@pytest.mark.parametrize(
    ("option", "learned", "scored"),
    [
        ("data.loss_on=last", ["सीता"], "answers and what ends them, the last one alone"),
        ("data.learned_roles=[user]", ["train 1: कौन?"] * 2, "answers and what ends them, of user"),
    ],
)
def test_options_say_whose_turns_are_learned(chats: Path, tmp_path: Path, option: str, learned: list[str], scored: str):
    task = make_task(chats, tmp_path / "run", option)
    for split in ("train", "valid"):
        dataset: Any = task.dataset(split)
        example = dataset.example(1, np.random.default_rng(0))
        found = task.tokenizer.decode(example.targets[example.targets != IGNORED].tolist(), skip_special_tokens=False)
        expected = [one.replace("train", split) for one in learned]
        assert found == "".join(f"{one}</s>" for one in expected)
        assert example.num_bytes == sum(len(one.encode()) + 1 for one in expected)
    assert task.meters("valid").protocol["scored"] == scored


def test_a_run_scores_answers_and_says_so(run: Path, chats: Path):
    records = [record for record in read_records(run / "metrics.jsonl") if "val_loss" in record]
    assert math.isfinite(records[-1]["val_bits_per_byte"])
    loaded = tiny_runs.loaded(chats, run)
    task = LanguageModelTask(loaded.experiment, run, loaded.folder)
    protocol = task.meters("valid").protocol
    assert (protocol["scored"], protocol["longer"]) == ("answers and what ends them", "cut")
    dataset: Any = task.dataset("valid")
    meters, model = task.meters("valid"), task.model().eval()
    batch = dataset.collate([[dataset.example(index, np.random.default_rng(0))] for index in range(3)])
    with torch.no_grad():
        meters.update(model, batch)
    scored = batch["targets"] != IGNORED
    with torch.no_grad():
        nats = -model(batch["inputs"]).log_softmax(-1)[scored].gather(1, batch["targets"][scored][:, None]).sum()
    answers = sum(len(NAMES[number].encode()) + 1 for number in range(3) for _ in range(1 + number % 3))
    results = meters.results(meters.sums())
    assert results["loss"] == pytest.approx(float(nats) / int(scored.sum()), rel=1e-5)
    assert results["bits_per_byte"] == pytest.approx(float(nats) / math.log(2) / answers, rel=1e-5)


def test_long_conversations_are_cut_or_dropped_and_counted(
    chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    lengths = make_task(chats, tmp_path / "whole").prepared.store("train").lengths - 1
    longest = int(np.median(lengths))
    num_longer = int((lengths > longest).sum())
    for way, kept in (("cut", SIZES["train"]), ("drop", SIZES["train"] - num_longer)):
        task = make_task(chats, tmp_path / way, f"data.max_length={longest}", f"data.long_chats={way}")
        dataset = task.dataset("train")
        assert (len(dataset.lengths), dataset.lengths.max()) == (kept, longest)
        counts = (num_longer, 0) if way == "cut" else (0, num_longer)
        assert f"train: {counts[0]} conversations are cut, {counts[1]} dropped" in caplog.text
        reason = task.meters("valid").protocol.get("bits_per_byte", "")
        assert ("conversations are cut" in reason) == (way == "cut")
    with pytest.raises(DataError, match=r"train is empty: no conversation has an answer within data\.max_length"):
        make_task(chats, tmp_path / "none", "data.max_length=3")


def test_generate_answers_a_question_or_a_file_of_messages(vaak, run: Path, tiny_run: Path, tmp_path: Path):
    asked = ("--chat", "--temperature", 0, "--max-new-tokens", 8)
    code, answer, err = vaak("generate", run, "कौन?", *asked)
    assert (code, err) == (0, "")
    assert "कौन" not in answer
    (tmp_path / "talk.json").write_text(json.dumps([{"role": "user", "content": "कौन?"}]))
    assert vaak("generate", run, tmp_path / "talk.json", *asked)[1] == answer
    for text, said in (
        ("", "the question is empty"),
        (tmp_path / "no.json", "can't be read"),
    ):
        assert said in vaak("generate", run, text, *asked)[2]
    code, _, err = vaak("generate", tiny_run, "कौन?", "--chat")
    assert (code, err.count("\n")) == (2, 1)
    assert "no chat template" in err


def test_a_pretrained_model_with_lora_learns_answers_by_its_template(chats: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path / "theirs", "llama")
    template = "{% for m in messages %}{{ m.role + ' ' + m.content + eos_token }}{% endfor %}"
    (tmp_path / "theirs" / "chat_template.jinja").write_text(template)
    changed = (f"model={{pretrained: {tmp_path / 'theirs'}, lora: {{rank: 2}}}}", "data.tokenizer={}")
    prompt = "{% if add_generation_prompt %}assistant {% endif %}"
    (tmp_path / "own.jinja").write_text(template + prompt)
    given = f"data.chat_template={tmp_path / 'own.jinja'}"
    outcome = tiny_runs.train(chats, tmp_path / "run", *changed, given, "training.max_steps=2", "data.max_length=250")
    assert math.isfinite(outcome.metrics["val_loss"])
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "prepared" / "tokenizer")
    assert kept.chat_template == template + prompt
    others = f"data.corpus={{type: chat, train: [], valid: [], test: ['{chats / 'valid.jsonl'}']}}"
    shutil.rmtree(tmp_path / "theirs")  # a run needs no more of its base
    found = evaluate_run(tmp_path / "run", [], [others], ["test"], "cpu")
    assert found["metrics"]["test_loss"] == pytest.approx(outcome.metrics["val_loss"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.model_type=encoder", "model.model_type: an encoder writes no answers"),
        ("data.layout=stream", "data.layout: a conversation is a document"),
        ("data.tokenizer={type: './own.py:Own'}", "data.tokenizer.type: a tokenizer of your own"),
    ],
)
def test_what_conversations_cannot_have(chats: Path, tmp_path: Path, override: str, said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        load([chats / "tiny.yml"], [f"run_dir={tmp_path}", override])


def test_options_without_effect_are_named(chats: Path, tiny_text: Path, tmp_path: Path):
    warnings = load([chats / "tiny.yml"], [f"run_dir={tmp_path}", "data.stride=8"]).warnings
    assert any("data.stride: a conversation is one window" in one for one in warnings)
    warnings = tiny_runs.loaded(tiny_text, tmp_path, "data.loss_on=all").warnings
    assert any("data.loss_on: data.corpus.type is text" in one for one in warnings)


def test_weight_0_is_not_learned_and_bad_conversations_are_left_out(
    chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    talk = [{"role": role, "content": said} for role, said in zip(("user", "assistant") * 2, "abcd", strict=True)]
    rows: list[Any] = [{"messages": [talk[0], {**talk[1], "weight": 0}, *talk[2:]]}, {"messages": talk[:1]}]
    refused = [{**talk[0], "content": "not so"}, talk[1]]
    rows += [{"messages": refused}, {"messages": [talk[0], {**talk[1], "tool_calls": ["call"]}]}]
    shutil.copytree(chats, tmp_path / "chats")
    (tmp_path / "chats" / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "{\n")
    text = (chats / "tiny.yml").read_text().replace(f"{chats}", f"{tmp_path / 'chats'}")
    (tmp_path / "chats" / "tiny.yml").write_text(text)
    template = (
        "{% if messages[0].content == 'not so' %}{{ raise_exception('not so') }}{% endif %}"
        "{% for message in messages %}"
        "{{ bos_token }}{{ message.content }}{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
    )
    (tmp_path / "template.jinja").write_text(template)
    options = [f"data.chat_template={tmp_path / 'template.jinja'}", "data.tokenizer.vocab_size=300"]
    with pytest.raises(
        DataError, match=r"train.jsonl:2: no turn of the assistant.*; to leave such rows out, set data.on_bad"
    ):
        make_task(tmp_path / "chats", tmp_path / "strict", *options)
    task = make_task(tmp_path / "chats", tmp_path / "run", *options, "data.on_bad_example=skip")
    assert len(task.prepared.store("train")) == 1
    dataset: Any = task.dataset("train")
    targets = dataset.example(0, np.random.default_rng(0)).targets
    assert task.tokenizer.decode(targets[targets != IGNORED].tolist()) == "d", "b has weight 0"
    skipped = [line for line in caplog.messages if line.startswith("skipped: ")]
    assert [re.sub(r".*train.jsonl:(\d+).*", r"\1", line) for line in skipped] == ["2", "4", "5", "3"]
    assert any(line.startswith("train: 1 conversations skipped") for line in caplog.messages)
    assert task.prepared.about["statistics"]["train"]["unusable"] == 3


def write_train(chats: Path, folder: Path, *rows: dict[str, Any]) -> None:
    """A copy of ``chats`` in ``folder``, with other rows to train on."""
    shutil.copytree(chats, folder)
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "tiny.yml").write_text((chats / "tiny.yml").read_text().replace(f"{chats}", f"{folder}"))


def test_turns_that_ask_to_be_learned_are_where_their_role_is(
    chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    talk = [{"role": role, "content": said} for role, said in zip(("user", "assistant") * 2, "abcd", strict=True)]
    asking = [{**talk[0], "weight": 1}, {**talk[1], "weight": 0}, {**talk[2], "weight": 0}, {**talk[3], "weight": 0}]
    options = {"enable_thinking": False}
    write_train(chats, tmp_path / "chats", {"messages": asking, "chat_template_kwargs": options})
    small = "data.tokenizer.vocab_size=300"
    refused = r"train.jsonl:1: message 1 asks to be learned, but its role is user; only assistant is learned"
    with pytest.raises(DataError, match=refused):
        make_task(tmp_path / "chats", tmp_path / "strict", small)
    task = make_task(tmp_path / "chats", tmp_path / "run", small, "data.learned_roles=[user, assistant]")
    dataset: Any = task.dataset("train")
    targets = dataset.example(0, np.random.default_rng(0)).targets
    assert task.tokenizer.decode(targets[targets != IGNORED].tolist()) == "a"
    assert "train: 1 conversations give enable_thinking, which data.chat_template doesn't use" in caplog.messages
    given = "data.chat_template_kwargs={enable_thinking: false}"
    with pytest.raises(UserError, match=r"^data.chat_template_kwargs: data.chat_template doesn't name enable_thinking"):
        make_task(chats, tmp_path / "unknown", given)


def test_what_the_template_is_given_is_part_of_data_and_protocol(chats: Path, tmp_path: Path):
    (tmp_path / "template.jinja").write_text("{% if brief %}{{ bos_token }}!{% endif %}" + TURNS_OF_TEXTS)
    own = f"data.chat_template={tmp_path / 'template.jinja'}"
    plain = make_task(chats, tmp_path / "plain", own)
    brief = make_task(chats, tmp_path / "brief", own, "data.chat_template_kwargs={brief: true}")
    first, second = (task.prepared.store("valid").document(0).tolist() for task in (plain, brief))
    assert brief.tokenizer.decode(second) == "!" + plain.tokenizer.decode(first)
    found, other = (task.meters("valid").protocol["template"] for task in (plain, brief))
    assert other == f'{found}, {{"brief": true}}'
    question = [{"role": "user", "content": "?"}]
    assert brief.chat_template.prompt(question, "")[2:] == plain.chat_template.prompt(question, "")


@pytest.mark.parametrize("loss_on", ["answers", "all"])
def test_a_template_whose_answers_have_no_end_is_named_before_training_and_gives_no_accuracy(
    chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, loss_on: str
):
    content = (
        "{% for m in messages %}{{ bos_token }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
    )
    (tmp_path / "template.jinja").write_text(content)
    options = [f"data.chat_template={tmp_path / 'template.jinja'}", f"data.loss_on={loss_on}"]
    task = make_task(chats, tmp_path / "run", *options)
    [said] = [line for line in caplog.messages if "endgeneration" in line]
    assert said.startswith(
        "data.chat_template has </s> after {% endgeneration %}; put it before, so that it is learned"
    )
    assert said.endswith("no accuracy of answers is reported")
    assert ("doesn't stop" in said) == (loss_on == "answers")
    meters: Any = task.meters("valid")
    assert meters.protocol["scored"] == "answers without an end"
    results = meters.results({"nats": 0.0, "token": 3.0, "byte": 3.0, "right": 3.0})
    assert results["loss"] == 0
    assert "accuracy" not in results, "all tokens are right, and it doesn't stop"


TURNS_OF_TEXTS = (
    "{% for message in messages %}"
    "{{ bos_token }}{{ message.content }}{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
)
# llama.cpp knows <|im_end|> by its name, so the end of a turn has another one here.
TURNS = """\
{%- for m in messages %}{{ '<|says|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|done|>' }}{% endgeneration %}
{%- else %}{{ m.content + '<|done|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|says|>assistant\\n' }}{% endif %}"""


@pytest.fixture(scope="module", params=["llama", pytest.param("gemma3_text", marks=pytest.mark.slow)])
def stopping(request: pytest.FixtureRequest, chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose base ends documents by <|endoftext|> and was taught turns that end by <|done|>."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("stopping")
    # Our own decoder is trained beyond its base's length.
    shorter = {"max_position_embeddings": 128} if request.param == "llama" else {}
    write_folder(folder / "base", request.param, bos_token_id=0, eos_token_id=0, **shorter)
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(folder / "base")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|says|>", "<|done|>"]})
    tokenizer.chat_template = TURNS
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder / "base")
    content = json.loads((folder / "base" / "tokenizer.json").read_text())
    taken = {one["id"] for one in content["added_tokens"]}
    free = next(number for number in range(len(content["model"]["vocab"]) + len(taken), 400) if number not in taken)
    content["model"]["vocab"]["th"], content["model"]["merges"] = free, [["t", "h"]]
    (folder / "base" / "tokenizer.json").write_text(json.dumps(content))
    options = (f"model={{pretrained: {folder / 'base'}}}", "data.tokenizer={}", "data.token_dropout=0")
    tiny_runs.train(
        chats,
        folder / "run",
        *options,
        "training.max_steps=60",
        "data.max_length=250",
        "training.validation.interval=60",
        "training.checkpoint.interval=60",
    )
    return folder / "run"


def test_a_model_that_was_taught_turns_stops_after_its_own_in_transformers(stopping: Path, vaak: Any, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    assert vaak("export", stopping, "--format", "hf", "--output", tmp_path / "out")[0] == 0
    auto: Any = transformers
    tokenizer = auto.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = auto.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    end = tokenizer.convert_tokens_to_ids("<|done|>")
    document = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    # vLLM stops at the ids of generation_config.json and at the tokenizer's end.
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / file).read_text())["eos_token_id"] == [end, document]
    assert tokenizer.eos_token_id == end
    messages = [{"role": "user", "content": "train 0: कौन?"}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**asked, max_new_tokens=60, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert written.tolist()[-1] == end
    assert len(written) < 60
    code, answer, _ = vaak("generate", stopping, messages[0]["content"], "--chat", "--temperature", 0)
    assert (code, answer.strip()) == (0, tokenizer.decode(written[:-1]).strip())


def test_a_gguf_file_names_what_ends_a_turn_and_a_document(stopping: Path, vaak: Any, tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    code, _, err = vaak("export", stopping, "--format", "gguf", "--output", tmp_path / "out")
    assert code == 0, err
    fields = gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields
    ends = [fields[f"tokenizer.ggml.{kind}_token_id"].contents() for kind in ("eos", "eot")]
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert [tokens[number] for number in ends] == ["<|endoftext|>", "<|done|>"]


def test_llama_cpp_stops_after_the_turn(stopping: Path, vaak: Any, tmp_path: Path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    code, _, err = vaak("export", stopping, "--format", "gguf", "--quantization", "f32", "--output", tmp_path / "out")
    assert code == 0, err
    model = llama_cpp.Llama(str(tmp_path / "out" / "model.gguf"), n_ctx=250, verbose=False)
    asked = "<|says|>user\ntrain 0: कौन?<|done|>\n<|says|>assistant\n"
    found = model(asked, max_tokens=60, temperature=0.0)["choices"][0]
    assert found["finish_reason"] == "stop"
    answer = vaak("generate", stopping, "train 0: कौन?", "--chat", "--temperature", 0)[1]
    assert found["text"].strip() == answer.strip()


@pytest.mark.slow
def test_ctranslate2_stops_after_the_turn(stopping: Path, vaak: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It stops at the single token of its config.json, unless it is given others.

    A prompt longer than a window, which it reads otherwise, is warned of.
    """
    ctranslate2, transformers = pytest.importorskip("ctranslate2"), pytest.importorskip("transformers")
    code, _, err = vaak("export", stopping, "--format", "ct2", "--output", tmp_path / "out")
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token"] == "<|done|>"
    if "continues a prompt of more than 4 tokens, the sliding window" in caplog.text + err:
        assert json.loads((stopping.parent / "base" / "config.json").read_text())["sliding_window"] == 4
        return
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(tmp_path / "out")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "train 0: कौन?"}], add_generation_prompt=True, tokenize=False
    )
    generator = ctranslate2.Generator(str(tmp_path / "out"), device="cpu")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(asked, add_special_tokens=False))
    options = {"max_length": 60, "include_prompt_in_result": False, "sampling_topk": 1}
    (found,) = generator.generate_batch([tokens], **options)
    written = tokenizer.convert_tokens_to_ids(found.sequences[0])
    assert len(written) < 60
    answer = vaak("generate", stopping, "train 0: कौन?", "--chat", "--temperature", 0)[1]
    assert tokenizer.decode(written, skip_special_tokens=True).strip() == answer.strip()
    assert "have it stop at <|endoftext|>, too" in caplog.text + err
    (again,) = generator.generate_batch([tokens], **options, end_token=["<|done|>", "<|endoftext|>"])
    assert again.sequences == found.sequences


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
def test_an_adapter_has_what_ends_a_turn_and_stops_after_it_in_peft(
    stopping: Path, chats: Path, vaak: Any, tmp_path: Path
):
    """The adapter's folder had neither tokenizer nor generation_config.json."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    base = stopping.parent / "base"
    adapters = "{rank: 8, alpha: 32, targets: [q_proj, v_proj, down_proj]}"
    if not (gemma := "gemma" in json.loads((base / "config.json").read_text())["model_type"]):
        adapters = adapters.replace("q_proj, v_proj, down_proj", "query, value, feed_forward.down")
    tiny_runs.train(
        chats, tmp_path / "run", f"model={{pretrained: {base}, lora: {adapters}}}", "data.tokenizer={}",
        "data.token_dropout=0", "training.max_steps=2", "data.max_length=250", "training.validation.interval=2",
        "training.checkpoint.interval=2",
    )  # fmt: skip
    code, _, err = vaak("export", tmp_path / "run", "--format", "peft", "--output", tmp_path / "out")
    assert code == 0, (err, gemma)
    auto: Any = transformers
    tokenizer = auto.AutoTokenizer.from_pretrained(tmp_path / "out")
    end, document = map(tokenizer.convert_tokens_to_ids, ("<|done|>", "<|endoftext|>"))
    generation = auto.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (tokenizer.eos_token_id, generation.eos_token_id) == (end, [end, document])
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "कौन?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    # It was trained for two steps: the end of a turn is made likely, and stopping at it is what is tried.
    model.get_output_embeddings().register_forward_hook(lambda _, __, found: _with_likely(found, end))
    written = model.generate(**asked, generation_config=generation, max_new_tokens=60, do_sample=False)
    assert written[0].tolist()[asked["input_ids"].shape[1] :] == [end]


def test_an_export_of_a_run_beyond_its_bases_length_says_the_new_one(stopping: Path, vaak: Any, tmp_path: Path):
    """Other tools cut texts at the length of the configuration, and of the tokenizer."""
    assert vaak("export", stopping, "--format", "hf", "--output", tmp_path / "out")[0] == 0
    base, ours = (json.loads((one / "config.json").read_text()) for one in (stopping.parent / "base", tmp_path / "out"))
    if ours["model_type"] == "gemma3_text":
        return  # transformers' own module, of which nothing beyond its length is known
    assert (base["max_position_embeddings"], ours["max_position_embeddings"]) == (128, 250)
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 250


def _with_likely(logits: torch.Tensor, token: int) -> torch.Tensor:
    logits[..., token] = 1e4
    return logits


@pytest.mark.slow
def test_an_onnx_file_says_where_a_loop_stops(stopping: Path, vaak: Any, tmp_path: Path):
    runtime, tokenizers = pytest.importorskip("onnxruntime"), pytest.importorskip("tokenizers")
    code, _, err = vaak("export", stopping, "--format", "onnx", "--output", tmp_path / "out")
    if code == 2:
        assert "transformers' own module" in err
        return
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    stops = [int(one) for one in session.get_modelmeta().custom_metadata_map["stop_ids"].split(",")]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == stops
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (about["eos_token"], about["chat_template"]) == ("<|done|>", TURNS)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    asked = tokenizer.encode("<|says|>user\ntrain 0: कौन?<|done|>\n<|says|>assistant\n", add_special_tokens=False).ids
    written: list[int] = []
    while len(written) < 60 and (not written or written[-1] not in stops):
        logits = session.run(["logits"], {"inputs": np.array([[*asked, *written]])})[0]
        written.append(int(logits[0, -1].argmax()))
    assert written[-1] == tokenizer.token_to_id("<|done|>")
    answer = vaak("generate", stopping, "train 0: कौन?", "--chat", "--temperature", 0)[1]
    assert tokenizer.decode(written[:-1]).strip() == answer.strip()
