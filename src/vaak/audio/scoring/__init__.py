"""How wrong diarizations are; how good synthetic speech is, as a recogniser hears it and next to a recording."""
