# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Types of elements: their names here, in numpy and in torch."""
from __future__ import annotations

from typing import Any

from . import _structs as s
from ._library import lib
from .errors import InvalidArgument

NAMES: list[str] = [
    "f32",
    "f16",
    "bf16",
    "f8e4m3",
    "f8e5m2",
    "i8",
    "u8",
    "i32",
    "i64",
    "bool",
    "f4e2m1",
    "u4",
    "f6e3m2",
    "f6e2m3",
    "e8m0",
]
BITS: list[int] = [lib.dtype_bits(code) for code in range(len(NAMES))]

# What numpy (with ml_dtypes) and torch call them.
FOREIGN_NAMES: dict[str, int] = {
    "float32": s.F32,
    "float16": s.F16,
    "bfloat16": s.BF16,
    "float8_e4m3fn": s.F8E4M3,
    "float8_e5m2": s.F8E5M2,
    "int8": s.I8,
    "uint8": s.U8,
    "int32": s.I32,
    "int64": s.I64,
    "bool": s.BOOL,
    "float8_e8m0fnu": s.E8M0,
}
_CODES: dict[str, int] = {**FOREIGN_NAMES, **{name: code for code, name in enumerate(NAMES)}}
_CODES["float4_e2m1fn_x2"] = s.F4E2M1


def dtype_code(dtype: Any) -> int:
    """The code of a type given as a name ("bf16", "bfloat16"), or as a type of numpy or torch."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        name = getattr(dtype, "name", None) or str(dtype)
    code = _CODES.get(name.rpartition(".")[2])
    if code is None:
        raise InvalidArgument(f"dtype is {name}, expected one of {', '.join(NAMES)}")
    return code
