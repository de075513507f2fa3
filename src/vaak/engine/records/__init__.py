"""What a run records: metrics.jsonl, pictures, the journal."""
