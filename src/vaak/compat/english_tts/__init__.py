"""Names of the English TTS trainer, for programs that were written for it.

    config = EnglishTrainingConfig(data_dir="LJSpeech-1.1", batch_size=32, learning_rate=5e-5, use_wandb=True)
    outcome = config.train()

It is the run of the same options in a YAML. The rest of the trainer (profiler, memory manager, checkpoints) is the
engine's, under the trainer's names.
"""

from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import InterbatchProfiler
from vaak.compat.english_tts.trainer import (
    DeviceType,
    EnglishTrainingConfig,
    MPSGradScaler,
    get_default_config,
    get_small_config,
    load_phoneme_processor,
    save_phoneme_processor,
)
from vaak.engine.checkpoint.files import find_latest_checkpoint, load_checkpoint, save_checkpoint

__all__ = [
    "AdaptiveMemoryManager",
    "DeviceType",
    "EnglishTrainingConfig",
    "InterbatchProfiler",
    "MPSGradScaler",
    "find_latest_checkpoint",
    "get_default_config",
    "get_small_config",
    "load_checkpoint",
    "load_phoneme_processor",
    "save_checkpoint",
    "save_phoneme_processor",
]
