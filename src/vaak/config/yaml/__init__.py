"""From YAML files and the command line to one tree that knows every line, in Vaak's own names; and back to text."""
