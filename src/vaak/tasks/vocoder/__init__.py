"""Audio from mel spectrograms, by a network that is trained with discriminators."""
