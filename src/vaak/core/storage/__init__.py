"""Files on disk: written atomically, locked between processes, mapped by line, checked by size."""
