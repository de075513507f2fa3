"""YAML files and the command line become one tree that knows every line, in Vaak's own names; and text again."""
