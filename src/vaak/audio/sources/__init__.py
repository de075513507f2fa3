"""Where examples come from: stored cuts, windows of them, stored features, several sources together."""
