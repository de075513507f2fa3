"""How difficult texts are, and where the measures are kept."""
