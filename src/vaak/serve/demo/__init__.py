"""``vaak demo``: a page to try runs on, by gradio, over the same jobs as the endpoints of ``vaak serve``."""
