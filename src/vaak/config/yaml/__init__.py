"""YAML read into a tree that knows every line, and written back."""
