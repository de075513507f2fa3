"""transformers' private names that training uses, in this file only; where one is missing, a step waits for the device.

Its networks look at numbers to leave out masks: whether all of a mask is True, whether a row has several documents. On
a GPU the program waits for each of these, and a CUDA graph can't have them. transformers itself doesn't look while a
graph is captured, and makes the masks. ``without_reading`` has it do the same at any time, so that a step computes the
same with a graph and without, and says whether rows have several documents, which the program knows.

Tried with transformers 5.23.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor


class _Setting(threading.local):
    """What a thread asks of transformers' functions."""

    reads_nothing = False
    is_packed: bool | None = None


_setting = _Setting()


def without_reading(x: Tensor, *, is_packed: bool | None = None) -> contextlib.AbstractContextManager[None]:
    """Within this context, transformers reads no numbers of masks from the GPU of ``x``.

    ``is_packed`` says whether rows, whose positions are given, have several documents; None: it isn't known. On a CPU,
    and where a model is compiled, nothing changes.
    """
    if not x.is_cuda or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    _wrap()
    return _set(is_packed)


@contextlib.contextmanager
def _set(is_packed: bool | None) -> Iterator[None]:
    before = _setting.reads_nothing, _setting.is_packed
    _setting.reads_nothing, _setting.is_packed = True, is_packed
    try:
        yield
    finally:
        _setting.reads_nothing, _setting.is_packed = before


@cache
def _wrap() -> None:
    """Replace transformers' functions, once in a process, by ones that read the setting of ``without_reading``."""
    from transformers import masking_utils
    from transformers.utils import import_utils

    is_capturing: Callable[[], bool] | None = getattr(import_utils, "is_cuda_stream_capturing", None)
    if is_capturing is not None:

        @wraps(is_capturing)
        def is_cuda_stream_capturing() -> bool:
            return _setting.reads_nothing or is_capturing()

        import_utils.is_cuda_stream_capturing = is_cuda_stream_capturing
    find: Callable[[Tensor], Tensor | None] | None = getattr(masking_utils, "find_packed_sequence_indices", None)
    if find is not None:

        @wraps(find)
        def find_packed_sequence_indices(position_ids: Tensor, *more: Any) -> Tensor | None:
            return None if _setting.is_packed is False else find(position_ids, *more)

        masking_utils.find_packed_sequence_indices = find_packed_sequence_indices
