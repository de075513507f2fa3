"""What audio files hold, counted: their headers are compared with it, and not believed."""
