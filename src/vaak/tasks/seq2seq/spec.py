"""The specification of the sequence-to-sequence task. Imports no torch."""

from vaak.config.tasks import TaskSpec
from vaak.tasks.seq2seq.checks import checks, metrics, num_parameters
from vaak.tasks.seq2seq.config import ALIASES, DEFAULTS, SHARED, SIDES, Seq2SeqConfig, Seq2SeqDataConfig
from vaak.text.config import NO_CLASSES, losses_of_tokens

SPEC = TaskSpec(
    task="vaak.tasks.seq2seq.task:Seq2SeqTask",
    model=Seq2SeqConfig,
    data=Seq2SeqDataConfig,
    used_by_models=("data.tokenizer", "data.target_tokenizer"),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    metrics=metrics,
    losses=losses_of_tokens,
    auxiliary_losses=("norm_reg",),
    refused_batching={
        **NO_CLASSES,
        "packed": "a row is one source and its target, so packing is impossible; expected bucketed",
    },
    num_parameters=num_parameters,
    checks=checks,
)
