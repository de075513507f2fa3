"""A run that learns from another one: the teacher, its stored predictions, and the task with the losses added."""
