"""Random keys: every draw in Vaak is seeded by a hash of what it is for, never by what was drawn before.

    data        draw_key("data", seed, epoch, index, occurrence)
    model       draw_key("model", seed, step, microbatch, piece)
    evaluation  draw_key("evaluation", seed, split, index)
    plan        draw_key("plan", seed, epoch)
    curriculum  draw_key("curriculum", seed, epoch, scheduler)

Keys have 32 bits because torch's CPU generator keeps no more of a seed.
"""

import hashlib


def draw_key(purpose: str, *parts: int | str) -> int:
    """A seed in [0, 2**32) that depends on every part and on their order.

    >>> draw_key("data", 1, 0, 7, 0) == draw_key("data", 1, 0, 7, 0)
    True
    >>> draw_key("data", 1, 0, 7, 0) == draw_key("data", 1, 7, 0, 0)
    False
    """
    text = "\x1f".join((purpose, *map(str, parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")
