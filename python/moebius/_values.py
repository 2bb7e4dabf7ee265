# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Values of Python as C takes them."""
from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from ctypes import c_char_p, c_int32, c_int64, c_uint32, c_uint64
from typing import Any, NamedTuple, Optional, TypeVar

from ._exceptions import InvalidArgument

V = TypeVar("V")

RANGES: dict[Any, tuple[int, int]] = {
    c_int32: (-(1 << 31), (1 << 31) - 1),
    c_int64: (-(1 << 63), (1 << 63) - 1),
    c_uint32: (0, (1 << 32) - 1),
    c_uint64: (0, (1 << 64) - 1),
}


CHECKED = {*RANGES, c_char_p}
"""The types whose values checked() looks at."""


class Argument(NamedTuple):
    """An argument of a C function that has such a type, with its name in the header."""

    kind: Any
    name: str


def checked(value: Any, kind: Any, name: str) -> Any:
    """The value as an argument or a field of the type takes it."""
    return text(value, name) if kind is c_char_p else integer(value, kind, name)


def text(value: Any, name: str) -> Optional[bytes]:
    """The value, if it is a text or a path; None for None.  A NUL would end it early in C."""
    if value is None:
        return None
    try:
        data = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgument(f"{name} is {value!r}, expected a text") from None
    if b"\0" in data:
        raise InvalidArgument(f"{name} is {value!r}, expected a text without NUL")
    return data


def integer(value: Any, kind: Any, name: str) -> int:
    """The value, if it is an integer that fits in the type of C.  Why this is needed: ctypes drops
    the bits that do not fit."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, expected an integer") from None
    least, most = RANGES[kind]
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is {number}, expected {least} to {most}")
    return number


def instance(value: Any, kind: type[V], name: str) -> V:
    """The value, if it is an object of a public class."""
    if not isinstance(value, kind):
        given = type(value).__name__
        raise InvalidArgument(f"{name} is a {given}, expected a moebius.{kind.__name__}")
    return value


def integers(values: Iterable[Any], kind: Any, name: str) -> Any:
    """An array of C that has the values."""
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} is {values!r}, expected integers")
    numbers = [integer(value, kind, f"{name}[{i}]") for i, value in enumerate(values)]
    return (kind * max(len(numbers), 1))(*numbers)
