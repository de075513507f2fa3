"""Checkpoints: when a run is saved and with what (saving.py), the files (files.py), and how one resumes (resume.py)."""
