"""Text from text: translation, and whatever else turns one sequence into another."""
