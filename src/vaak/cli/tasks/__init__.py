"""Commands that use a trained model: ``predict`` for any task, the others with the options of theirs."""
