"""``vaak serve``: runs as a server with the endpoints that OpenAI's clients know; the results are the commands'.

gate (who may, how much) ──▶ routes ──▶ a model's worker, which computes what waits together ──▶ routes ──▶ client
"""
