"""Text from text: translation, and any other task that turns one sequence into another."""
