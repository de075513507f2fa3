"""Evaluation of a language model by the task files of the LM Evaluation Harness (lm-eval)."""
