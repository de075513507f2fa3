"""Speech by espeak-ng: the built-in voices and what they say."""
