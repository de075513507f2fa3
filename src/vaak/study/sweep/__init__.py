"""Many runs of one configuration with different options, as one Optuna study: a grid, at random, or by a model."""
