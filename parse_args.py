"""``from parse_args import unified_parser``, as in the first pipeline; it lives in vaak.config.parser."""

from vaak.config.parser import unified_parser

__all__ = ["unified_parser"]
