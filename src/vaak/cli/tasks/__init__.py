"""Commands of single tasks: generate, translate, diarize, tune."""
