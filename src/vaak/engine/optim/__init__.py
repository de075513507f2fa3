"""Optimizers, schedules, parameter groups, freezing, averages of the weights."""
