"""What a resume may change: the table (table.py) and its page in the documentation (page.py)."""
