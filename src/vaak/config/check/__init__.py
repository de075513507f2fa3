"""Whether a configuration is valid: types (validate.py), options that exclude each other (limits.py)."""
