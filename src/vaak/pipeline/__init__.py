"""Stages that feed each other: done is what verifies, and a stage that was cut resumes from its last whole progress."""
