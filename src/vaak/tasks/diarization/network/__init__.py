"""Parts of the diarizer's network, and its losses."""
