"""English text as it is spoken: numbers, dates, money, units, abbreviations, addresses and symbols in words."""
