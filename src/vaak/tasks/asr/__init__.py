"""Speech recognition: Whisper, trained from nothing or fine-tuned, whole or by LoRA."""
