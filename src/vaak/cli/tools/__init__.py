"""Commands for before and after training: learning rates, batch sizes, gradients, replay, doctor, scores."""
