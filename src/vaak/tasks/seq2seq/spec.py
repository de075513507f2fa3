"""The sequence-to-sequence task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.tasks import (
    OF_STACKS,
    CheckFinding,
    StarterData,
    TaskSpec,
    impossible,
    impossible_if_given,
    load_name,
    no_effect,
)
from vaak.nn.config import DecoderConfig, EncoderDecoderConfig, stack_parameters
from vaak.nn.stack_checks import check_own_networks, check_stack
from vaak.tasks.adapter_checks import lora_findings, target_findings
from vaak.tasks.fetching import count_base_parameters, read_local_config
from vaak.tasks.formats import DCP, ONNX, PEFT, ct2_format, transformers_format
from vaak.tasks.rates import UsualRates, rate_findings
from vaak.tasks.seq2seq import METRICS
from vaak.tasks.seq2seq.config import (
    ALIASES,
    DEFAULTS,
    FILE_TYPES,
    METHODS_OF,
    SHARED,
    SIDES,
    Seq2SeqConfig,
    Seq2SeqDataConfig,
)
from vaak.text.config import (
    NO_CLASSES,
    corpus_findings,
    list_token_losses,
    tokenizer_findings,
    unread_tokenizer_findings,
)

STACKS = ("encoder", "decoder")
RATES = UsualRates(1e-4, 3e-4)
"""The learning rates that a pretrained base is usually trained at; config check compares with them."""
OWN_LAYERS = ("query", "key", "value", "output", "gate", "up", "down", "head")
"""The linear layers of Vaak's translator, which reads every base."""
READ_BY = {
    **dict.fromkeys(("source_column", "target_column"), ("json", "tsv", "huggingface")),
    **dict.fromkeys(("valid_examples", "test_examples"), (*FILE_TYPES, "huggingface")),
}
"""The types of corpora that read an option which not all read."""


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    model: Seq2SeqConfig = experiment.model
    data: Seq2SeqDataConfig = experiment.data
    yield from lora_findings(experiment, model.lora, model.pretrained is not None)
    yield from corpus_findings(data.corpus, FILE_TYPES, READ_BY)
    if model.pretrained is None:
        yield from check_stack("model.encoder", model.encoder, is_encoder=True, longest=data.max_source_length)
        yield from check_stack("model.decoder", model.decoder, is_encoder=False, longest=data.max_target_length)
        yield from _separate_tokenizers(model, data)
        yield from tokenizer_findings("data.tokenizer", data.tokenizer)
        yield from tokenizer_findings("data.target_tokenizer", data.target_tokenizer)
    else:
        for side in STACKS:
            yield from check_own_networks(f"model.{side}", getattr(model, side), "model.pretrained has its own")
        yield from _pretrained(data)
        yield from target_findings("model.lora", model.pretrained, model.lora, OWN_LAYERS)
        yield from rate_findings(experiment, RATES, "model.pretrained", model.lora is not None)
    method = data.decoding.method
    for name, methods in METHODS_OF.items():
        if method not in methods:
            yield no_effect(f"data.decoding.{name}", f"method is {method}, and only {' and '.join(methods)} reads it")


def _pretrained(data: Seq2SeqDataConfig) -> Iterator[CheckFinding]:
    if data.target_tokenizer is not None:
        yield impossible("data.target_tokenizer", "model.pretrained has its own tokenizer, one for both sides")
    for side in STACKS:
        for name in sorted(DecoderConfig.model_fields.keys() - {"type", "options", "dropout", "attention_dropout"}):
            yield no_effect(f"model.{side}.{name}", "pretrained has its own")
    for name in sorted(EncoderDecoderConfig.model_fields.keys() - {"model_type", "name", *STACKS}):
        yield no_effect(f"model.{name}", "pretrained has its own")
    yield from unread_tokenizer_findings(data.tokenizer, "model.pretrained")


def _separate_tokenizers(model: Seq2SeqConfig, data: Seq2SeqDataConfig) -> Iterator[CheckFinding]:
    """Yield the findings on what source and target can't share if they have different tokens or widths."""
    separate = data.target_tokenizer is not None
    if model.copy_source and separate:
        yield impossible(
            "model.copy_source",
            "the target has a separate tokenizer (data.target_tokenizer), so source tokens can't be copied",
        )
    if not model.share_embeddings:
        return
    if separate:
        yield impossible_if_given(
            "model.share_embeddings", "the target has a separate tokenizer (data.target_tokenizer); leave one out"
        )
    elif model.encoder.d_model != model.decoder.d_model:
        widths = f"{model.encoder.d_model} and {model.decoder.d_model}"
        yield impossible_if_given(
            "model.share_embeddings", f"the widths differ (d_model {widths}); make them equal, or leave it out"
        )


def metrics(experiment: Experiment[Any, Any]) -> list[str]:
    """Return the metrics that evaluations give."""
    names = ["val_loss", "val_perplexity", "val_accuracy"]
    translated = experiment.data.decoding.valid_examples != 0
    model = experiment.model
    if model.pretrained is None and (model.encoder.moe or model.decoder.moe):
        names += ["val_max_violation", "val_dead_experts", "val_expert_load/"]
    return [*names, "val_bleu", "val_chrf", "val_chrf_plus_plus"] if translated else names


def num_parameters(experiment: Experiment[Any, Any]) -> int:
    """About how many parameters the model has; 0 for a pretrained one that isn't on this machine."""
    model: Seq2SeqConfig = experiment.model
    if model.pretrained is not None:
        return count_base_parameters(model.pretrained)
    data: Seq2SeqDataConfig = experiment.data
    encoder, decoder = model.encoder, model.decoder
    shared = model.share_embeddings and data.target_tokenizer is None and encoder.d_model == decoder.d_model
    of_target = (1 if model.tie_embeddings else 2) * (data.target_tokenizer or data.tokenizer).vocab_size
    of_source = 0 if shared else data.tokenizer.vocab_size
    embeddings = of_target * decoder.d_model + of_source * encoder.d_model
    return embeddings + stack_parameters(encoder) + stack_parameters(decoder, memory_width=encoder.d_model)


CT2_CODE = """\
import ctranslate2
import transformers

model = ctranslate2.Translator("{folder}")
tokenizer = transformers.AutoTokenizer.from_pretrained("{folder}")
tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("Translate this"))
(result,) = model.translate_batch([tokens])
print(tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0])))"""
HUB_TAG = "translation"


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | None:
    """Return the options with which a T5 or a Marian is used untrained."""
    return {"model": {"pretrained": source}} if about.get("model_type") in ("t5", "marian") else None


def require_base(experiment: Experiment[Any, Any], folder: Path) -> None:
    """Raise UserError for a base that isn't one of the families that are read."""
    key, name = "model.pretrained", experiment.model.pretrained
    found = None if name is None else read_local_config(key, name, folder)
    if found is not None:
        config = load_name("vaak.tasks.pretrained:load_config")(key, found[0])
        load_name("vaak.tasks.seq2seq.pretrained:detect_family")(config.to_dict(), found[0])


SPEC = TaskSpec(
    task="vaak.tasks.seq2seq.task:Seq2SeqTask",
    model=Seq2SeqConfig,
    data=Seq2SeqDataConfig,
    used_by_models=("data.tokenizer", "data.target_tokenizer", "model.encoder", "model.decoder"),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    metrics=metrics,
    own_metrics=METRICS,
    losses=list_token_losses,
    loss_reads_head=True,
    auxiliary_losses=("norm_reg",),
    refused_batching={
        **NO_CLASSES,
        "packed": "a row is one source and its target, so packing is impossible; expected bucketed",
    },
    networks=lambda experiment: OF_STACKS,
    num_parameters=num_parameters,
    # A target that an evaluation had was enough, before there was the option.
    newer=lambda get: {"data.corpus.evaluation_overlap": "target"},
    checks=checks,
    starter="vaak.tasks.seq2seq.starter:fill_options",
    starter_data=StarterData(
        "pairs", "a table or .jsonl with columns source and target, or parallel files", usual_for="pairs"
    ),
    example="vaak.tasks.seq2seq.starter:write_example",
    commands=lambda get: ("eval {run}", 'translate {run} "…"'),
    uses={"translate": ()},
    endpoints=lambda get: ("translate",),
    exports={"hf": transformers_format(HUB_TAG), "onnx": ONNX, "peft": PEFT, "dcp": DCP, "ct2": ct2_format(CT2_CODE)},
    hub_tag=HUB_TAG,
    opens=opens,
    require_base=require_base,
)
