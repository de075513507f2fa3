"""Speech recognition by pretrained encoder-decoders other than Whisper (``model.architecture: decoder``)."""
