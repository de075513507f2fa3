"""How translations are written: settings, and minimum Bayes risk."""
