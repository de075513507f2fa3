"""Which tokens make up an example, and how difficult it is."""
