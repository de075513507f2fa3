"""Options of a sequence-to-sequence model that don't go together, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.task_spec import CheckFinding, impossible, impossible_if_given
from vaak.nn.checks import stack_findings
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    model: Seq2SeqConfig = experiment.model
    data: Seq2SeqDataConfig = experiment.data
    yield from stack_findings("model.encoder", model.encoder, is_encoder=True)
    yield from stack_findings("model.decoder", model.decoder, is_encoder=False)
    if experiment.training.batching.type == "packed":
        yield impossible(
            "training.batching.type", "a row is one source and its target, so packing is impossible; expected bucketed"
        )
    yield from _separate_tokenizers(model, data)


def _separate_tokenizers(model: Seq2SeqConfig, data: Seq2SeqDataConfig) -> Iterator[CheckFinding]:
    """What source and target can't share if they have different tokens or widths."""
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
