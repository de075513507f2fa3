"""Whether one system is better than another: paired tests on examples, on scores and on folds."""
