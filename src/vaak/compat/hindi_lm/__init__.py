"""The language model as a library: corpus, tokenizer, batches, model and trainer in the caller's hands.

    config = ExperimentConfig.load_config("configs/base_config.yaml")
    builder = CorpusBuilder(config)                  splits = builder.load_splits()
    tokenizer = TokenizerFactory(config).create_tokenizer(splits["train"])
    train = builder.create_dataloader(splits["train"], tokenizer, "train")      likewise "val"
    model = ModelFactory(config).create_model(tokenizer.vocab_size)
    HindiLanguageModelTrainer(model, tokenizer, config.__dict__).train(train, val, config.num_epochs)

Each uses the same code as ``vaak train``, so the numbers and the run directory are those of the same YAML.
"""

from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.compat.hindi_lm.models import ModelFactory
from vaak.compat.hindi_lm.texts import CorpusBuilder, TextLoader, TokenizerFactory
from vaak.compat.hindi_lm.trainer import HindiLanguageModelTrainer

__all__ = [
    "CorpusBuilder",
    "ExperimentConfig",
    "HindiLanguageModelTrainer",
    "ModelFactory",
    "TextLoader",
    "TokenizerFactory",
]
