"""Speech from text: phonemes to mel spectrograms to audio."""
