"""Speech comes in: waveforms, cuts, features, annotations, simulated conversations, synthesised voices."""
