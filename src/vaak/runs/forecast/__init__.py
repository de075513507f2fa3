"""What a model and its training will take, before any data are read."""
