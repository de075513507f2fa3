"""Keys of the original systems that belong to one task, in another."""

from __future__ import annotations

OF_ONE_TASK = {
    "text to speech (task: tts)": ("data_dir", "n_encoder_layers", "n_decoder_layers"),
    "training on several tasks (task: multitask)": ("tasks", "loss_weights", "shared", "sampling"),
    "text classification (task: classification)": (
        *("model.architecture", "model.pretrained_model", "model.num_labels"),
        *("model.embed_size", "model.num_filters", "model.filter_sizes"),
        *("data.augmentation", *(f"data.augmentation.{name}" for name in ("enabled", "techniques", "probability"))),
    ),
}


def why_unknown(key: str) -> str | None:
    """What to say of a dotted key that no section has, if an original system had it.

    >>> why_unknown("model.num_labels")
    'belongs to text classification (task: classification); leave it out'
    """
    for task, keys in OF_ONE_TASK.items():
        if key in keys:
            return f"belongs to {task}; leave it out"
    return None
