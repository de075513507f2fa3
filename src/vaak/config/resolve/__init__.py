"""From several files and overrides to one tree: layers, aliases, ``model.global_config``, merging."""
