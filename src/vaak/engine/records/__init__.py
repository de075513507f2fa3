"""What a run writes of itself: metrics.jsonl, pictures, the journal."""
