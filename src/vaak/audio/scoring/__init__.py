"""Error rates of diarizations."""
