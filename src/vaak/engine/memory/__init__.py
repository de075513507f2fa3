"""How much memory is in use, and microbatches computed in pieces where it doesn't suffice."""
