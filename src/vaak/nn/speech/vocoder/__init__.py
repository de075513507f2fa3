"""From mel spectrograms to waveforms: the generator, its discriminators, and losses of spectra."""
