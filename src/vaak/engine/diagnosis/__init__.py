"""Where a number first isn't finite, and what every module gives."""
