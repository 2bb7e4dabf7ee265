# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libmoebius.so."""
from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ._functions import FUNCTIONS
from ._structs import ABI_VERSION
from ._values import Argument, checked


def find_library() -> str:
    """Gives the path of the library: MOEBIUS_LIBRARY says it, or it lies inside this package."""
    path = os.environ.get("MOEBIUS_LIBRARY")
    if path:
        return path
    inside = Path(__file__).parent / "lib" / "libmoebius.so"
    if not inside.exists():
        raise ImportError(
            f"no library at {inside}: install the wheel, or let MOEBIUS_LIBRARY name a libmoebius.so"
        )
    return str(inside)


def load_library(path: str) -> Any:
    """Loads the library and gives an object whose attributes are its functions, without the prefix
    moebius_.  Calls of them release the GIL."""
    try:
        library = ctypes.CDLL(path)
        abi = library.moebius_abi_version()
    except (OSError, AttributeError) as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from None
    if abi != ABI_VERSION:
        raise ImportError(f"{path} has ABI {abi}, expected {ABI_VERSION}")
    functions = SimpleNamespace()
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, "moebius_" + name)
        except AttributeError:
            raise ImportError(f"{path} has no function moebius_{name}: it is too old") from None
        function.restype = result
        function.argtypes = [x.kind if isinstance(x, Argument) else x for x in arguments]
        setattr(functions, name, _checked(function, arguments))
    return functions


def _checked(function: Any, arguments: list[Any]) -> Any:
    """The function, which refuses integers and texts that its arguments cannot hold.  Why not
    from_param() of an argument's type: ctypes turns what that raises into an ArgumentError."""
    looked_at = [(i, *x) for i, x in enumerate(arguments) if isinstance(x, Argument)]
    if not looked_at:
        return function

    def call(*given: Any) -> Any:
        values = list(given)
        for index, kind, name in looked_at:
            values[index] = checked(values[index], kind, name)
        return function(*values)

    return call


lib = load_library(find_library())
