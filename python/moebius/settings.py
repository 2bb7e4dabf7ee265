# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Settings, logs and memory of the whole process.

Every environment variable MOEBIUS_... of the library is a setting, which can also be changed here.
All functions may be called by any thread."""
from __future__ import annotations

import atexit
import logging
from ctypes import byref, c_size_t, cast, create_string_buffer
from dataclasses import dataclass
from typing import Any, Optional

from . import _structs as s
from ._library import lib
from .errors import Unsupported, check
from .tensors import device_struct

__all__ = [
    "MemoryStatistics",
    "Setting",
    "get_setting",
    "is_usable",
    "log_to_logging",
    "memory_statistics",
    "num_cuda_devices",
    "reset_peak_memory",
    "set_setting",
    "settings",
    "trim_memory",
]


@dataclass(frozen=True)
class Setting:
    """A setting, as the table in docs/command.md has it."""

    name: str
    default: str
    meaning: str
    read: str
    """When it is read; a change counts from then on."""


def settings() -> list[Setting]:
    """All settings of the library."""
    found = []
    for index in range(lib.num_settings()):
        info = s.SettingInfo()
        check(lib.setting_at(index, byref(info)))
        texts = (info.name, info.default_value, info.meaning, info.read)
        found.append(Setting(*((text or b"").decode() for text in texts)))
    return found


def set_setting(name: str, value: Optional[object]) -> None:
    """Gives a setting a value for this process, whatever the environment says.  None lets the
    environment decide again."""
    check(lib.set_setting(name, None if value is None else str(value)))


def get_setting(name: str) -> str:
    """The value of a setting; empty where it has none."""
    size = c_size_t()
    check(lib.get_setting(name, None, 0, byref(size)))
    text = create_string_buffer(size.value)
    check(lib.get_setting(name, text, len(text), None))
    return text.value.decode()


_LEVELS = {
    s.LOG_DEBUG: logging.DEBUG,
    s.LOG_INFO: logging.INFO,
    s.LOG_WARN: logging.WARNING,
    s.LOG_ERROR: logging.ERROR,
}
# Functions that were given to the library, which other threads may still be calling.
_log_functions: list[Any] = []


def log_to_logging(logger: Optional[logging.Logger] = None) -> None:
    """Sends messages of the library to a logger, by default "moebius", instead of to stderr.

    The setting MOEBIUS_LOG says which messages there are.  A message with a topic goes to the child
    of that name, such as "moebius.dispatch"."""
    target = logger or logging.getLogger("moebius")

    def log(user: Any, level: int, topic: bytes, message: bytes) -> None:
        name = topic.decode(errors="replace")
        to = target.getChild(name) if name else target
        to.log(_LEVELS.get(level, logging.INFO), "%s", message.decode(errors="replace"))

    function = s.LogFunction(log)
    if not _log_functions:
        # Threads of the library must not enter an interpreter that ends.
        atexit.register(log_to_stderr)
    _log_functions.append(function)
    check(lib.set_log_function(function, None))


def log_to_stderr() -> None:
    """Sends messages of the library to stderr again."""
    check(lib.set_log_function(cast(0, s.LogFunction), None))


@dataclass(frozen=True)
class MemoryStatistics:
    """What the library has allocated on a device."""

    bytes: int
    """Now."""
    peak_bytes: int
    """The most since the process began, or since reset_peak_memory()."""
    num_blocks: int
    """Now."""
    num_allocations: int
    """Ever."""


def memory_statistics(device: Any = "cpu") -> MemoryStatistics:
    """What the library has allocated on a device."""
    found = s.MemoryStatistics()
    check(lib.get_memory_statistics(device_struct(device), byref(found)))
    return MemoryStatistics(
        found.bytes, found.peak_bytes, found.num_blocks, found.num_allocations
    )


def reset_peak_memory(device: Any = "cpu") -> None:
    """Begins a new peak."""
    check(lib.reset_peak_memory(device_struct(device)))


def trim_memory(device: Any = "cpu") -> None:
    """Gives back memory that is kept for later calls and that nobody uses."""
    check(lib.trim_memory(device_struct(device)))


def num_cuda_devices() -> int:
    """How many GPUs there are; 0 without a driver, or in a build without CUDA."""
    count: int = lib.cuda_device_count()
    return count


def is_usable(device: Any) -> bool:
    """Whether this build can work on a device."""
    try:
        check(lib.expect_usable(device_struct(device)))
        return True
    except Unsupported:
        return False
