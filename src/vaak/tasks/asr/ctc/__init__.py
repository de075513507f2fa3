"""Speech recognition by connectionist temporal classification (``model.architecture: ctc``)."""
