"""The largest batch that fits in memory, found by trying."""
