"""What evaluations show besides figures: pictures and audio."""
