"""The classification task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.tasks import (
    CheckFinding,
    NetworkKind,
    StarterData,
    TaskSpec,
    impossible,
    impossible_if_given,
    load_name,
    no_effect,
    only_length,
    remark,
    unread_input,
)
from vaak.nn.config import ConvolutionalStackConfig, stack_parameters
from vaak.nn.stack_checks import check_own_networks, check_stack
from vaak.tasks.adapter_checks import lora_findings, target_findings
from vaak.tasks.classification import METRICS
from vaak.tasks.classification.config import ALIASES, DEFAULTS, FILE_TYPES, ClassificationDataConfig, ClassifierConfig
from vaak.tasks.fetching import count_base_parameters, read_local_config
from vaak.tasks.formats import DCP, ONNX, PEFT, transformers_format
from vaak.tasks.rates import UsualRates, rate_findings
from vaak.text.config import corpus_findings, tokenizer_findings, unread_tokenizer_findings

RATES = UsualRates(2e-5, 3e-4, small=UsualRates(2e-4, 6e-3))
"""The learning rates that a pretrained base is usually trained at; config check compares with them."""
READ_BY = {"text_column": ("files", "huggingface")}
OF_CNN = ("embed_size", "num_filters", "filter_sizes", "word_vectors")
OF_ALL = frozenset(
    {
        "type",
        "options",
        "dropout",
        "classifier_dropout",
        "num_labels",
        "max_norm",
        "label_weights",
        "name",
        "architecture",
    }
)
OF_PRETRAINED = frozenset({"attention_dropout", "pooling", "pretrained_model"})
FIGURES = ("loss", "accuracy", "macro_f1", "micro_f1", "weighted_f1", "ece")


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    model: ClassifierConfig = experiment.model
    data: ClassificationDataConfig = experiment.data
    yield from corpus_findings(data.corpus, FILE_TYPES, READ_BY)
    if data.corpus.type in FILE_TYPES and data.corpus.valid and data.corpus.test and data.corpus.fold is None:
        yield remark(
            "data.corpus.stratify", "is read by vaak crossval only: valid and test are given, so train isn't split"
        )
    yield from lora_findings(experiment, model.lora, model.pretrained_model is not None)
    yield from _model(model, data)
    yield from _labels(model, data)
    yield from _augmentation(model, data)
    yield from _class_weights(experiment)
    if model.pretrained_model is not None:
        yield from target_findings("model.lora", model.pretrained_model, model.lora)
        yield from rate_findings(experiment, RATES, "model.pretrained_model", model.lora is not None)


def _model(model: ClassifierConfig, data: ClassificationDataConfig) -> Iterator[CheckFinding]:
    """Yield the findings on options that the kind of model doesn't read."""
    if model.architecture == "transformer":
        for name in OF_CNN:
            named = getattr(model, name) if name == "word_vectors" else None
            yield unread_input(f"model.{name}", named, "architecture is transformer, and only cnn reads it")
    if model.architecture == "cnn":
        yield from check_own_networks("model", model, "architecture is cnn, which has its own network")
        yield from _cnn(model)
    elif model.pretrained_model is not None:
        yield from check_own_networks("model", model, "pretrained_model has its own network")
        for name in sorted(ConvolutionalStackConfig.model_fields.keys() - OF_ALL - OF_PRETRAINED):
            yield no_effect(f"model.{name}", "pretrained_model has its own")
        yield from unread_tokenizer_findings(data.tokenizer, "model.pretrained_model")
        return
    else:
        yield from check_stack("model", model, is_encoder=True, longest=data.max_length)
    yield from tokenizer_findings("data.tokenizer", data.tokenizer)


def _cnn(model: ClassifierConfig) -> Iterator[CheckFinding]:
    """Yield the findings on options that a TextCNN can't have, or doesn't read."""
    if model.pretrained_model is not None:
        yield impossible("model.pretrained_model", "architecture is cnn; word vectors are given by word_vectors")
    if model.lora is not None:
        yield impossible("model.lora", "architecture is cnn, whose only linear layer, the head, is trained anyway")
    if model.word_vectors is not None:
        yield no_effect("model.embed_size", "the width is that of word_vectors")
    for name in sorted((ConvolutionalStackConfig.model_fields.keys() | {"pooling"}) - OF_ALL):
        yield no_effect(f"model.{name}", "architecture is cnn, and only transformer reads it")


def _labels(model: ClassifierConfig, data: ClassificationDataConfig) -> Iterator[CheckFinding]:
    columns = data.corpus.label_columns
    if model.label_weights and len(model.label_weights) != len(columns):
        yield impossible("model.label_weights", f"has {len(model.label_weights)} numbers for {len(columns)} columns")
    if model.label_weights and (min(model.label_weights) < 0 or not any(model.label_weights)):
        yield impossible("model.label_weights", "none may be negative, and one at least must be above 0")
    if model.num_labels is not None and len(columns) > 1:
        yield impossible_if_given("model.num_labels", "there are several label columns; leave it out")
    if data.corpus.out_of_scope and data.corpus.multi_label:
        yield impossible("data.corpus.out_of_scope", "with multi_label a text may have no label at all; leave it out")


def _class_weights(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    main, corpus = experiment.training.loss.main, experiment.data.corpus
    given, key = main.options.get("weight"), "training.loss.main.weight"
    if given is None or main.type != "cross_entropy":
        return
    numbers = isinstance(given, list) and all(type(one) in (int, float) and 0 <= one < 1e6 for one in given)
    classes = experiment.model.num_labels
    if given != "balanced" and not (numbers and any(given)):
        yield impossible(key, f"is {given}; expected balanced, or a list with a number of 0 or more for each class")
    elif corpus.multi_label:
        yield impossible(key, "with multi_label a text has no single class to weigh; leave it out")
    elif numbers and len(corpus.label_columns) > 1:
        yield impossible(key, "a list is of the classes of one label column, and there are several; expected balanced")
    elif numbers and classes is not None and len(given) != classes:
        yield impossible(key, f"has {len(given)} numbers for {classes} classes (model.num_labels)")


def _augmentation(model: ClassifierConfig, data: ClassificationDataConfig) -> Iterator[CheckFinding]:
    options = data.augmentation
    if not options.enabled:
        for name in ("techniques", "probability", "synonyms", "keep_negation"):
            yield no_effect(f"data.augmentation.{name}", "enabled is false")
    elif not {"synonym_replacement", "random_insertion"} & set(options.techniques):
        file = options.synonyms if options.synonyms not in ("wordnet", "vectors") else None
        yield unread_input("data.augmentation.synonyms", file, "no technique needs synonyms")
    elif options.synonyms == "vectors" and model.word_vectors is None and model.pretrained_model is None:
        yield impossible(
            "data.augmentation.synonyms", "is vectors, which requires model.word_vectors or model.pretrained_model"
        )


def metrics(experiment: Experiment[Any, Any]) -> list[str]:
    """Return the metrics that evaluations give."""
    several = len(experiment.data.corpus.label_columns) > 1
    return [f"val_{name}{end}" for end in (("", "/") if several else ("",)) for name in FIGURES]


def losses(experiment: Experiment[Any, Any]) -> Iterable[str]:
    """Return the supported main losses; with several labels a text, cross-entropy is binary."""
    return ("cross_entropy", "bce") if experiment.data.corpus.multi_label else ("cross_entropy", "focal")


def list_networks(experiment: Experiment[Any, Any]) -> tuple[NetworkKind, ...]:
    """Return the kind of the network."""
    model: ClassifierConfig = experiment.model
    if model.architecture == "cnn":
        return ("layerless",)
    return ("stacks",) if model.pretrained_model is None else ("transformers",)


def num_parameters(experiment: Experiment[Any, Any]) -> int:
    """About how many parameters the model has; 0 for a pretrained one that isn't on this machine."""
    model: ClassifierConfig = experiment.model
    data: ClassificationDataConfig = experiment.data
    vocab_size = data.tokenizer.vocab_size
    if model.pretrained_model is not None:
        return count_base_parameters(model.pretrained_model)
    if model.architecture == "cnn":
        return model.embed_size * (vocab_size + model.num_filters * sum(model.filter_sizes))
    return vocab_size * model.d_model + stack_parameters(model)


HUB_TAG = "text-classification"
KEY = "model.pretrained_model"
ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")
"""How transformers' names of encoders end."""


def opens(about: Mapping[str, Any], source: str) -> str | None:
    """Return why a model of text has no classes before it is trained."""
    names = [str(name) for name in about.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in names):
        return (
            "is a classifier of transformers, whose output layer and classes aren't read "
            "(one with one label, a cross-encoder, scores pairs of texts: vaak predict --pairs)"
        )
    return "is an encoder, which has no classes before it is trained" if _is_encoder(about, names) else None


def is_sentence_encoder(about: Mapping[str, Any]) -> bool:
    """Return whether a model of transformers gives embeddings of texts without training."""
    return _is_encoder(about, [str(name) for name in about.get("architectures") or ()]) and "conv_dim" not in about


def _is_encoder(about: Mapping[str, Any], names: list[str]) -> bool:
    reads_text = isinstance(about.get("vocab_size"), int) and not about.get("is_encoder_decoder")
    return reads_text and any(name.endswith(ENCODERS) for name in names)


def require_base(experiment: Experiment[Any, Any], folder: Path) -> None:
    """Raise UserError for a base that can't represent a text by ``model.pooling``."""
    model = experiment.model
    found = None if model.pretrained_model is None else read_local_config(KEY, model.pretrained_model, folder)
    if found is None:
        return
    source, about = found
    if not _is_encoder(about, [str(name) for name in about.get("architectures") or ()]):
        config = load_name("vaak.tasks.pretrained:load_config")(KEY, source)
        load_name("vaak.tasks.classification.pretrained:require_encoder")(config, source, model.pooling)


SPEC = TaskSpec(
    task="vaak.tasks.classification.task:ClassificationTask",
    model=ClassifierConfig,
    data=ClassificationDataConfig,
    used_by_models=("data.tokenizer", "model"),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    own_metrics=METRICS,
    losses=losses,
    auxiliary_losses=(),
    has_class_weights=True,
    refused_batching={"packed": "a row is one text; expected fixed, bucketed or stratified"},
    refused_difficulties=only_length,
    networks=list_networks,
    num_parameters=num_parameters,
    checks=checks,
    starter="vaak.tasks.classification.starter:fill_options",
    starter_data=StarterData(
        "labelled texts", "a table with a column text and a column label", usual_for="labelled texts"
    ),
    example="vaak.tasks.classification.starter:write_example",
    commands=lambda get: ("eval {run}", 'classify {run} "…"'),
    uses={"classify": (), "predict --embeddings": ()},
    endpoints=lambda get: ("classify", "embeddings"),
    exports={"hf": transformers_format(HUB_TAG), "onnx": ONNX, "peft": PEFT, "dcp": DCP},
    hub_tag=HUB_TAG,
    opens=opens,
    require_base=require_base,
)
