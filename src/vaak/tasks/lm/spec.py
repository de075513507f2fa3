"""The language-model task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.tasks import (
    CheckFinding,
    ExportFormat,
    NetworkKind,
    StarterData,
    TaskSpec,
    impossible,
    load_name,
    no_effect,
    unread_input,
)
from vaak.nn.config import MIXTURE_UNCAPTURED, SingleStackConfig, stack_parameters
from vaak.nn.stack_checks import check_own_networks, check_presets, check_stack
from vaak.tasks.adapter_checks import lora_findings, target_findings
from vaak.tasks.fetching import count_base_parameters, read_base_config, read_local_config
from vaak.tasks.formats import DCP, ONNX, PEFT, code_from, ct2_format, transformers_format
from vaak.tasks.lm import METRICS
from vaak.tasks.lm.config import (
    ALIASES,
    DEFAULTS,
    FILE_TYPES,
    PRESETS,
    SHARED,
    STACK_SECTIONS,
    LanguageModelConfig,
    LanguageModelDataConfig,
)
from vaak.tasks.rates import UsualRates, rate_findings
from vaak.text.config import (
    NO_CLASSES,
    corpus_findings,
    list_token_losses,
    tokenizer_findings,
    unread_tokenizer_findings,
)

RATES = UsualRates(2e-5, 2e-4)
"""The learning rates that a pretrained base is usually trained at; config check compares with them."""
READ_BY = {
    "text_column": ("json", "csv", "parquet", "huggingface"),
    "document": ("text",),
    **dict.fromkeys(("valid_examples", "test_examples"), (*FILE_TYPES, "huggingface")),
}
"""The types of corpora that read an option which not all read."""
OF_A_RUN = frozenset({"type", "options", "model_type", "name", "dropout", "attention_dropout"})
"""Options that a pretrained model doesn't bring."""
OWN_LAYERS = ("query", "key", "value", "output", "gate", "up", "down", "router", "head", "lm_head")
"""The linear layers of Vaak's decoder, which reads some bases; and the output layer of others, which may be tied."""


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    model: LanguageModelConfig = experiment.model
    data: LanguageModelDataConfig = experiment.data
    yield from corpus_findings(data.corpus, FILE_TYPES, READ_BY)
    yield from lora_findings(experiment, model.lora, model.pretrained is not None)
    if model.pretrained is None:
        yield from check_stack("model", model, is_encoder=model.model_type == "encoder", longest=data.max_length)
        yield from check_presets(model.preset, PRESETS, model)
        yield from tokenizer_findings("data.tokenizer", data.tokenizer)
        for name in ("new_tokens", "new_tokens_like"):
            yield unread_input(f"data.{name}", getattr(data, name), "only model.pretrained lacks tokens")
    else:
        if model.model_type != "decoder":
            yield impossible("model.pretrained", f"model_type is {model.model_type}; it is a decoder that is loaded")
        yield from check_own_networks("model", model, "pretrained has its own network")
        for name in ("preset", *sorted(SingleStackConfig.model_fields.keys() - OF_A_RUN)):
            yield no_effect(f"model.{name}", "pretrained has its own")
        yield from unread_tokenizer_findings(data.tokenizer, "model.pretrained")
        yield from target_findings("model.lora", model.pretrained, model.lora, OWN_LAYERS)
        if data.corpus.type != PREFERENCES:
            # Those rates are lower still, and differ from loss to loss.
            yield from rate_findings(experiment, RATES, "model.pretrained", model.lora is not None)
    if model.ngram is not None:
        yield from _ngram(model, data)
    yield from _mixture(experiment, data)
    yield from _chats(model, data)
    yield from _preferences(experiment)
    if data.layout == "document":
        yield no_effect("data.shift_windows", "layout is document, and only the windows of a stream are shifted")
    if model.model_type == "decoder":
        yield no_effect("data.masking_probability", "model_type is decoder, and only an encoder predicts masked tokens")
    else:
        yield no_effect("data.token_dropout", "model_type is encoder; masking_probability says what is masked")


def list_networks(experiment: Experiment[Any, Any]) -> tuple[NetworkKind, ...]:
    """Return the kind of the network: that of a base, unless Vaak's decoder computes it; none if it isn't known."""
    name, performance = experiment.model.pretrained, experiment.training.performance
    if name is None:
        return ("stacks",)
    # To tell them apart takes transformers, so it is done where an option depends on it.
    is_asked = performance.gradient_checkpointing == "all" or performance.attention != "auto"
    if not is_asked or not read_base_config(name):
        return ()
    return ("transformers",) if _read_own_options(name) is None else ("stacks",)


def explain_uncaptured(experiment: Experiment[Any, Any]) -> str | None:
    """Return what a CUDA graph of a step can't have, if anything."""
    name = experiment.model.pretrained
    if name is None or read_base_config(name).get("model_type") not in MIXTURES:
        return None
    return MIXTURE_UNCAPTURED if "moe" in (_read_own_options(name) or {}) else None


MIXTURES = ("qwen3_moe", "glm4_moe")
"""Kinds of bases that Vaak's own mixture of experts can be."""


def _read_own_options(name: str) -> Mapping[str, Any] | None:
    """Return the options of Vaak's decoder that a base on this machine is; None where transformers computes it."""
    from vaak.tasks.lm.families import convert_options
    from vaak.tasks.pretrained import PRETRAINED_KEY, load_config

    found = convert_options(load_config(PRETRAINED_KEY, name, local_files_only=True).to_dict())
    return None if isinstance(found, str) else found


def _ngram(model: LanguageModelConfig, data: LanguageModelDataConfig) -> Iterator[CheckFinding]:
    """Yield the findings on n-grams that a model can't be mixed with."""
    if model.model_type != "decoder":
        yield impossible("model.ngram", "model_type is encoder; n-grams predict each token from those before it")
    if data.corpus.has_answers:
        yield impossible("model.ngram", f"data.corpus.type is {data.corpus.type}; n-grams are those of texts")


def refused_difficulties(experiment: Experiment[LanguageModelConfig, LanguageModelDataConfig]) -> dict[str, str]:
    """Return the measures that don't tell easy examples from hard ones, each with the reason."""
    if experiment.data.corpus.type == PREFERENCES:
        return dict.fromkeys(("length", "lexical", "morphology"), "pairs of answers have no difficulty")
    if experiment.data.layout == "document":
        return {}
    return {"length": "windows of a stream are all equally long, those of data.layout document aren't"}


PREFERENCES = "preferences"


def losses(experiment: Experiment[LanguageModelConfig, LanguageModelDataConfig]) -> tuple[str, ...]:
    """Return the main losses that fit the data: of pairs of answers, or of tokens."""
    return ("dpo", "orpo") if experiment.data.corpus.type == PREFERENCES else list_token_losses(experiment)


def _mixture(experiment: Experiment[Any, Any], data: LanguageModelDataConfig) -> Iterator[CheckFinding]:
    """Yield the findings on sources that are mixed by step."""
    if not data.mixture:
        return
    if data.corpus.type not in ("text", "json", "csv", "parquet"):
        yield impossible("data.mixture", f"data.corpus.type is {data.corpus.type}; sources are files of text")
    for number, knot in enumerate(data.mixture):
        if len(knot.weights) != len(data.corpus.train):
            yield impossible(
                f"data.mixture.{number}.weights",
                f"{len(knot.weights)} weights, but data.corpus.train has {len(data.corpus.train)} patterns",
            )
        if number and knot.step <= data.mixture[number - 1].step:
            yield impossible(f"data.mixture.{number}.step", "steps must ascend")
    training = experiment.training
    if training.batching.type == "packed":
        yield impossible("training.batching.type", "a row has one source; with data.mixture, use data.layout: stream")
    if training.curriculum is not None:
        yield impossible("training.curriculum", "data.mixture already says which data each step reads; leave one out")


def _chats(model: LanguageModelConfig, data: LanguageModelDataConfig) -> Iterator[CheckFinding]:
    """Yield the findings on options that conversations can't have, or that only they have."""
    kind = data.corpus.type
    if kind != "chat":
        for name in ("loss_on", "learned_roles"):
            yield no_effect(f"data.{name}", f"data.corpus.type is {kind}; only chat has conversations")
    if not data.corpus.has_answers:
        reason = f"data.corpus.type is {kind}; only chat and preferences have conversations"
        yield unread_input("data.chat_template", data.chat_template, reason)
        yield no_effect("data.long_chats", reason)
        yield no_effect("data.reasoning", reason)
        return
    if model.model_type != "decoder":
        yield impossible(
            "model.model_type", f"an encoder writes no answers; conversations (corpus.type: {kind}) need a decoder"
        )
    if data.layout == "stream":
        to_pack = "; to put several into a row, use training.batching: packed" if kind == "chat" else ""
        yield impossible("data.layout", f"a conversation is a document{to_pack}")
    if model.pretrained is None and data.tokenizer.is_users(data.tokenizer.type):
        yield impossible(
            "data.tokenizer.type", "a tokenizer of your own has no special tokens that a template can write"
        )
    yield no_effect("data.stride", "a conversation is one window")


def _preferences(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield the findings on options that pairs of answers can't have."""
    training, model = experiment.training, experiment.model
    if experiment.data.corpus.type != PREFERENCES:
        return
    if training.loss.main.type == "dpo" and model.pretrained is None and training.checkpoint.init_from is None:
        yield impossible(
            "training.loss.main",
            "dpo compares with the model that training begins with; give model.pretrained, "
            "training.checkpoint.init_from (a run), or use orpo",
        )
    if training.loss.main.type == "cross_entropy":
        yield impossible("training.loss.main", "pairs of answers (corpus.type: preferences) are learned by dpo or orpo")
    for name in training.loss.auxiliary:
        yield impossible(f"training.loss.auxiliary.{name}", "dpo and orpo have no auxiliary losses; leave it out")
    if training.batching.type == "packed":
        yield impossible("training.batching.type", "a pair of answers is one row; use bucketed")
    if experiment.distillation is not None:
        yield impossible("distillation", "dpo and orpo have a reference instead of a teacher; leave it out")
    yield no_effect("training.performance.logits", "dpo and orpo read those of answers alone, whole")
    yield no_effect("data.token_dropout", "pairs of answers are read unchanged")


def metrics(experiment: Experiment[Any, Any]) -> list[str]:
    """Return the metrics that evaluations give."""
    names = ["val_loss", "val_perplexity", "val_accuracy"]
    if experiment.data.corpus.type == PREFERENCES:
        names = ["val_loss", "val_accuracy", "val_margin", "val_chosen_reward", "val_rejected_reward"]
        names += ["val_orpo", "val_cross_entropy"] if experiment.training.loss.main.type == "orpo" else []
    elif experiment.model.model_type == "decoder":
        names.append("val_bits_per_byte")
    if experiment.model.moe is not None and experiment.data.corpus.type != PREFERENCES:
        names += ["val_max_violation", "val_dead_experts", "val_expert_load/"]
    return [*names, "pairs_accuracy", "pairs_accuracy/"] if experiment.data.minimal_pairs else names


def num_parameters(experiment: Experiment[Any, Any]) -> int:
    """About how many parameters the model has; 0 for a pretrained one that isn't on this machine."""
    model: LanguageModelConfig = experiment.model
    data: LanguageModelDataConfig = experiment.data
    if model.pretrained is not None:
        return count_base_parameters(model.pretrained)
    embeddings = 1 if model.tie_embeddings else 2
    return embeddings * data.tokenizer.vocab_size * model.d_model + stack_parameters(model)


def commands(get: Callable[[str], Any]) -> Iterator[str]:
    """Yield what may be done with a run; an encoder, trained on masked tokens, writes no text."""
    yield "eval {run}"
    if get("model.model_type") != "encoder":
        yield 'generate {run} "…"'


CT2_CODE = """\
import ctranslate2
import transformers

model = ctranslate2.Generator("{folder}")
tokenizer = transformers.AutoTokenizer.from_pretrained("{folder}")
tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("Begin with this"))
(result,) = model.generate_batch([tokens], max_length=20, include_prompt_in_result=False)
print(tokenizer.decode(result.sequences_ids[0]))"""
GGUF_CODE = """\
from llama_cpp import Llama

model = Llama("{folder}/model.gguf")
print(model("Begin with this", max_tokens=20)["choices"][0]["text"])"""
HUB_TAG = "text-generation"
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How transformers' names of decoders end."""


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | str | None:
    """Return the options with which a decoder is used untrained; a window is no longer than it reads."""
    names = [str(name) for name in about.get("architectures") or ()]
    if any(name.endswith("ForMaskedLM") for name in names):
        return "predicts masked tokens, and writes no text; it is a base of task classification"
    if not any(name.endswith(CAUSAL) for name in names):
        return None
    usual = LanguageModelDataConfig.model_fields["max_length"].default
    read = [about[name] for name in ("max_position_embeddings", "n_positions") if isinstance(about.get(name), int)]
    return {"model": {"pretrained": source}, "data": {"max_length": min([usual, *read])}}


def require_base(experiment: Experiment[Any, Any], folder: Path) -> None:
    """Raise UserError for a base that isn't a decoder of text that can be trained here."""
    key, name = "model.pretrained", experiment.model.pretrained
    found = None if name is None else read_local_config(key, name, folder)
    if found is None:
        return
    source, about = found
    is_usual = any(str(one).endswith(CAUSAL) for one in about.get("architectures") or ())
    # transformers, which takes seconds to import, is asked about all others.
    if not is_usual or any(about.get(one) for one in ("quantization_config", "rope_scaling", "rope_parameters")):
        config = load_name("vaak.tasks.pretrained:load_config")(key, source)
        load_name("vaak.tasks.lm.pretrained:require_decoder")(config, source)


SPEC = TaskSpec(
    task="vaak.tasks.lm.task:LanguageModelTask",
    model=LanguageModelConfig,
    data=LanguageModelDataConfig,
    used_by_models=("data.tokenizer", "model"),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=STACK_SECTIONS,
    metrics=metrics,
    own_metrics=METRICS,
    losses=losses,
    loss_reads_head=True,
    auxiliary_losses=("norm_reg",),
    refused_batching=NO_CLASSES,
    refused_difficulties=refused_difficulties,
    networks=list_networks,
    explain_uncaptured=explain_uncaptured,
    num_parameters=num_parameters,
    checks=checks,
    starter="vaak.tasks.lm.starter:fill_options",
    starter_data=StarterData("texts", "texts", usual_for="texts"),
    example="vaak.tasks.lm.starter:write_example",
    commands=commands,
    uses={
        "generate": ("model.model_type=decoder",),
        "lm-eval": ("model.model_type=decoder",),
        "data.decoding.lm": ("model.model_type=decoder",),
    },
    endpoints=lambda get: ("embeddings",) if get("model.model_type") == "encoder" else ("completions", "chat"),
    exports={
        "hf": transformers_format(HUB_TAG),
        "onnx": ONNX,
        "peft": PEFT,
        "dcp": DCP,
        "ct2": ct2_format(CT2_CODE),
        "gguf": ExportFormat("gguf", code_from(GGUF_CODE), quantizations=("f32", "f16", "bf16", "q8_0")),
    },
    hub_tag=HUB_TAG,
    opens=opens,
    require_base=require_base,
)
