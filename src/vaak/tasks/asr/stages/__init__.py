"""The pipeline ``moe-asr``: from recordings to a mixture of experts, in stages (pipeline.py)."""
