"""Clusters of embeddings, one for each expert: how they are found, how good they are, how they look."""
