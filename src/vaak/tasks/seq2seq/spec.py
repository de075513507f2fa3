"""The specification of the sequence-to-sequence task. Imports no torch."""

from vaak.config.task_spec import TaskSpec
from vaak.tasks.seq2seq.checks import checks
from vaak.tasks.seq2seq.config import ALIASES, DEFAULTS, SHARED, SIDES, Seq2SeqConfig, Seq2SeqDataConfig

SPEC = TaskSpec(
    task="vaak.tasks.seq2seq.task:Seq2SeqTask",
    model=Seq2SeqConfig,
    data=Seq2SeqDataConfig,
    recognised_by=(
        "model.model_type=encoder_decoder",
        "model.encoder",
        "data.target_tokenizer",
        "data.max_source_length",
        "data.max_target_length",
        "data.decoding",
        "data.corpus.source_column",
        "data.corpus.target_column",
    ),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    checks=checks,
)
