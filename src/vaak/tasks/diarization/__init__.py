"""Who spoke when."""
