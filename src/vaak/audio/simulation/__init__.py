"""Conversations simulated from utterances of single speakers. Start with conversations.py."""
