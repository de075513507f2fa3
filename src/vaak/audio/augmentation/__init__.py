"""Augmentation of training audio: speed, reverberation, noise, codecs, SpecAugment. Start with pipeline.py."""
