"""Text from text: translation, and any other task that turns one sequence into another."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=(
        "model.model_type=encoder_decoder",
        "data.target_tokenizer",
        "data.max_source_length",
        "data.max_target_length",
        "data.decoding",
        "data.corpus.source_column",
        "data.corpus.target_column",
    ),
    shared=("model.encoder",),
)
