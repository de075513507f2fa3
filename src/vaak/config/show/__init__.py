"""A configuration as text: resolved, with all options, or as JSON Schema."""
