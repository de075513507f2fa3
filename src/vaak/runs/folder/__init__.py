"""The run directory and its content: configuration by session, owner, logs, environment."""
