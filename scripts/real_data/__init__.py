"""Assembles the folder of data that docs/results.md uses; see README.md."""
