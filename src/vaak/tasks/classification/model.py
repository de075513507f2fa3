"""Text classifiers: a transformer with pooling, or a TextCNN, and a linear layer for the classes.

    transformer   tokens ──▶ embedding ──▶ blocks ──▶ first, mean, max … ──▶ dropout ──▶ head
    cnn           tokens ──▶ word vectors ──▶ filters ──▶ relu ──▶ max over the text ──▶ dropout ──▶ head

The head has the classes of all label columns, one after another. Source: Kim 2014, "Convolutional Neural Networks for
Sentence Classification". Differs: the bound of the classes' weights is part of the network, not a projection after each
step; a text has zeros on both sides, one less than the filter is wide, and never more, so its batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.engine.optim.schedules import freeze_parameters, unfreeze_parameters
from vaak.nn.models import TransformerModel
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.pretrained import Pretrained

RANGE = 0.25
"""Word vectors are drawn from a uniform distribution over this range on both sides of 0, as in Kim 2014."""


class TextClassifier(nn.Module):
    """The base of both kinds of model: the head, and freezing by name."""

    def __init__(self, config: ClassifierConfig, width: int, num_classes: int) -> None:
        super().__init__()
        self.config = config
        before = config.classifier_dropout
        self.dropout = nn.Dropout(config.dropout if before is None else before)
        self.head = nn.Linear(width, num_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def represent(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """A vector for each text ``(row, width)``, of ``inputs`` ``(row, time)``, real where ``mask`` is True."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Scores of all classes, ``(row, class)``."""
        return F.linear(self.dropout(self.represent(inputs, mask)), self.class_weights(), self.head.bias)

    def class_weights(self) -> Tensor:
        """Return the head's weights ``(class, width)``, within their bound."""
        weight: Tensor = self.head.weight
        if self.config.max_norm is None:
            return weight
        # shorter ones count as just within the bound, and so are multiplied by 1
        norms: Tensor = weight.norm(dim=1, keepdim=True).clamp(min=self.config.max_norm)
        return weight * (self.config.max_norm / norms)

    def freeze_parameters(self, names: Iterable[str]) -> None:
        """Stop training these parameters, or those of these modules."""
        freeze_parameters(self, names)

    def unfreeze_parameters(self, names: Iterable[str]) -> None:
        """Train these again."""
        unfreeze_parameters(self, names)


class TransformerClassifier(TextClassifier):
    """An encoder over tokens, made here or pretrained; with ``pooling: last``, a pretrained decoder, too."""

    base_model_prefix = ""
    """Asked by peft of models of families whose weights transformers renames; this one has no base of a base."""

    def __init__(self, config: ClassifierConfig, transformer: TransformerModel | Pretrained, num_classes: int) -> None:
        width = transformer.width if isinstance(transformer, Pretrained) else config.d_model
        super().__init__(config, 2 * width if config.pooling == "max_mean" else width, num_classes)
        self.transformer = transformer

    def represent(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden = self.transformer.hidden(inputs, mask=mask)
        if self.config.pooling == "first":
            return hidden[:, 0]
        if self.config.pooling == "last":
            return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]
        # Neither the maximum nor the mean may see padding.
        real, pooled = mask[..., None], []
        if "max" in self.config.pooling:
            pooled.append(hidden.masked_fill(~real, -torch.inf).amax(1))
        if "mean" in self.config.pooling:
            pooled.append(hidden.masked_fill(~real, 0.0).sum(1) / real.sum(1))
        return torch.cat(pooled, 1)


class TextCNN(TextClassifier):
    """Filters over word vectors, and the maximum of each over the text."""

    def __init__(
        self, config: ClassifierConfig, vocab_size: int, num_classes: int, vectors: Tensor | None = None
    ) -> None:
        """``vectors`` ``(token, width)`` are given ones, NaN where a word has none."""
        super().__init__(config, config.num_filters * len(config.filter_sizes), num_classes)
        width = config.embed_size if vectors is None else vectors.shape[1]
        drawn = torch.empty(vocab_size, width).uniform_(-RANGE, RANGE)
        weight = drawn if vectors is None else torch.where(vectors.isnan(), drawn, vectors)
        use = config.word_vectors.use if config.word_vectors is not None else "tuned"
        self.embedding = nn.Embedding.from_pretrained(weight, freeze=use == "static")
        self.static = nn.Embedding.from_pretrained(weight.clone()) if use == "two_channel" else None
        sizes = config.filter_sizes
        self.filters = nn.ModuleDict(
            {f"size{size}": nn.Conv1d(width, config.num_filters, size, padding=size - 1) for size in sizes}
        )

    def represent(self, inputs: Tensor, mask: Tensor) -> Tensor:
        vectors = self.embedding(inputs)
        # Both channels have the same filters, so the sum of what these give is what they give for the sum.
        if self.static is not None:
            vectors = vectors + self.static(inputs)
        # Zeros, as the convolution has them beyond the ends: a text gives the same alone and in a batch.
        vectors = (vectors * mask[..., None]).transpose(1, 2)
        lengths = mask.sum(1, keepdim=True)
        found = []
        for size, filters in zip(self.config.filter_sizes, self.filters.values(), strict=True):
            # There are windows that begin size - 1 words before the text, and windows that end as far after it.
            activations = F.relu(filters(vectors))
            inside = torch.arange(activations.shape[2], device=inputs.device) < lengths + size - 1
            found.append(activations.masked_fill(~inside[:, None], 0.0).amax(2))
        return torch.cat(found, 1)
