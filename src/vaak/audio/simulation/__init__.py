"""Simulated conversations of single speakers, in memory or as a folder. Start with conversations.py."""
