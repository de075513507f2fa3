"""A Whisper: its network, the features it reads, and the times of its tokens."""
