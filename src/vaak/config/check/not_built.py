"""Keys of the original systems for what Vaak doesn't have yet, each with what it was for."""

from __future__ import annotations

CLASSIFICATION, AUGMENTATION = "text classification", "the augmentation of text"
SPEECH = "text to speech"

NOT_BUILT: dict[str, str] = {
    "data_dir": SPEECH,
    "n_encoder_layers": SPEECH,
    "n_decoder_layers": SPEECH,
    "model.architecture": CLASSIFICATION,
    "model.pretrained_model": CLASSIFICATION,
    "model.num_labels": CLASSIFICATION,
    "model.embed_size": CLASSIFICATION,
    "model.num_filters": CLASSIFICATION,
    "model.filter_sizes": CLASSIFICATION,
    "data.augmentation": AUGMENTATION,
    "data.augmentation.enabled": AUGMENTATION,
    "data.augmentation.techniques": AUGMENTATION,
    "data.augmentation.probability": AUGMENTATION,
}


def why_unknown(key: str) -> str | None:
    """What to say of a dotted key that no section has, if an original system had it.

    >>> why_unknown("model.num_labels")
    'belongs to text classification, which Vaak does not have yet; leave it out'
    """
    what = NOT_BUILT.get(key)
    return None if what is None else f"belongs to {what}, which Vaak does not have yet; leave it out"
