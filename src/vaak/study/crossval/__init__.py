"""Cross-validation: a run for each fold of the data, and what their figures say together."""
