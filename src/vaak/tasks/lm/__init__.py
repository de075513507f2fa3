"""Language models: a text corpus in, a model that continues text out."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=("model.preset", "model.model_type=decoder", "model.model_type=encoder", "data.minimal_pairs"),
    shared=("data.corpus", "data.tokenizer"),
)
