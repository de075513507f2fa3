"""Token by token: rows that end on their own, beam search, sampling, the cache."""
