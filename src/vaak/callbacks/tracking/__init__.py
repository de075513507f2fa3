"""Trackers that repeat metrics.jsonl: TensorBoard, Weights & Biases, those of Accelerate."""
