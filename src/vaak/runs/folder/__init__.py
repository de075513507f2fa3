"""The run directory and what lies in it: configuration by session, owner, logs, environment."""
