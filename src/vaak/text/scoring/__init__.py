"""Error rates of texts against references."""
