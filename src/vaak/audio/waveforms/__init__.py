"""Audio files and Lhotse cuts as samples: read, resampled, cached. Start with audio_file.py."""
