# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Python functions that the library calls: what they raise is kept until the call returns."""
from __future__ import annotations

import atexit
import functools
import operator
import threading
from collections.abc import Callable, Generator
from ctypes import CFUNCTYPE, c_int32, cast
from typing import Any

from . import _structs as s
from ._library import lib

# This keeps what a callback has raised, by thread.  errors.check() raises it in place of the
# library's error.
raised: dict[int, BaseException] = {}


def guarded(function: Callable[..., None]) -> Callable[..., int]:
    """A function that returns 0, or 1 where `function` raises."""

    def call(*arguments: Any) -> int:
        try:
            function(*arguments)
            return 0
        except BaseException as error:
            raised[threading.get_ident()] = error
            return 1

    return call


# Interruption.  While a thread waits for other ranks, the library asks 20 times a second whether it
# should go on.  In the main thread Python then runs the handlers of signals that have come, and
# what one of them raises, such as KeyboardInterrupt, ends the wait.
#
# Why a generator: the interpreter runs handlers as soon as it enters a function, before any `try`
# in it.  A generator is entered where it has stopped, inside its `try`.  All that is between it and
# the library is written in C and cannot be interrupted.


def _handle_signals() -> Generator[int, None, None]:
    answer = 0
    while True:
        try:
            while True:
                yield answer
                answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            raised[threading.get_ident()] = error
            answer = 1


class _Waits(threading.local):
    # Threads other than the main one run no handlers, and go on: int() is 0.
    ask: Callable[[], int] = int


_waits = _Waits()


def watch_signals() -> None:
    """Lets signals end waits of the main thread from now on.  Other threads are not affected."""
    if threading.current_thread() is threading.main_thread():
        handler = _handle_signals()
        next(handler)
        _waits.ask = handler.__next__


# The argument of the C function is left out, since it would be passed on.
_ask = CFUNCTYPE(c_int32)(functools.partial(operator.methodcaller("ask"), _waits))
watch_signals()
lib.set_interrupt_function(cast(_ask, s.InterruptFunction), None)
# Threads that still wait when the interpreter ends must not enter it.
atexit.register(lib.set_interrupt_function, cast(0, s.InterruptFunction), None)
