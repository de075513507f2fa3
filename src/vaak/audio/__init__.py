"""Audio: waveforms, cuts, features, annotations, simulated conversations, synthesised voices."""
