"""The C library of espeak-ng, from the wheel espeakng-loader, fresh for each use.

The library is one synthesiser for the whole process, and remembers what it has spoken: its echo, its flutter and its
noise continue from the last sentence. So each use loads it, under a lock, and unloads it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vaak.core.errors import UserError

# Constants of espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
PHONEME_EVENTS, IPA = 1, 2
"""Options of ``fresh_library``."""

_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def fresh_library(voice: str, options: int = 0) -> Iterator[tuple[Any, int]]:
    """A fresh instance of the library with a voice, and its sampling rate; it is unloaded afterwards.

    Raises UserError if the voice or the wheel is missing, or something else in this process uses the library.
    """
    with _ONE_AT_A_TIME, _loaded() as (library, data):
        sampling_rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, options | _DONT_EXIT)
        if sampling_rate <= 0:
            raise UserError(
                f"espeak-ng finds no data in {os.fsdecode(data)}; pip install --force-reinstall vaak[audio]"
            )
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise UserError(f"espeak-ng has no voice {voice}")
        yield library, sampling_rate


@contextmanager
def _loaded() -> Iterator[tuple[Any, bytes]]:
    """The library, just loaded, and the folder of its data."""
    try:
        import _ctypes

        import espeakng_loader

        path = espeakng_loader.get_library_path()
        if _is_loaded(path):
            raise UserError(
                f"something else in this process uses {path}, so speech would not be reproducible; use two processes"
            )
        library = ctypes.CDLL(path)
    except (ImportError, OSError) as error:
        raise UserError(f"espeak-ng can't be loaded ({error}); pip install 'vaak[audio]'") from error
    try:
        yield library, os.fsencode(espeakng_loader.get_data_path())
        library.espeak_Terminate()
    finally:
        _ctypes.dlclose(library._handle)


def _is_loaded(path: str) -> bool:
    """Whether the library is in this process already."""
    import _ctypes

    try:
        handle = _ctypes.dlopen(path, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    _ctypes.dlclose(handle)
    return True
