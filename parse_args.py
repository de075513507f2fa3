"""``from parse_args import unified_parser``, as in the first pipeline; it lives in vaak.compat.unified_parser."""

from vaak.compat.unified_parser import unified_parser

__all__ = ["unified_parser"]
