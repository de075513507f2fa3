"""A run's files held against each other, without computing anything: what ``vaak verify`` does first."""
