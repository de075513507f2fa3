"""Python names of the systems that Vaak replaces, kept for code written for them."""
