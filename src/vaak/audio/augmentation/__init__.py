"""Augmentation of training audio: speed, rooms, noise, codecs, SpecAugment. Start with pipeline.py."""
