"""Language models: a text corpus in, a model that continues text out."""
