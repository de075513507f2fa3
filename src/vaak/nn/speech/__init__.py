"""Parts of text-to-speech networks: alignments, durations, pitch and energy, flow matching, the vocoder."""
