"""Tables and pictures of what runs, studies and evaluations found.

They are made of plain numbers, as those stand in ``metrics.jsonl`` and in the JSON files of a run or a study, so that
each can be recreated from its folder. Nothing here imports torch; matplotlib, an extra, is imported when one draws.
"""
