"""English text as phonemes: normalisation, pronunciation, and the processor that is kept with every checkpoint."""
