"""Which pairs are used."""
