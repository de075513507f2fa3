"""Speech recognition by pretrained networks with a decoder that are no Whispers (``model.architecture: decoder``)."""
