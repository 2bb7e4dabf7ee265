# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The declarations of the package are those of include/moebius_c.h."""
from __future__ import annotations

import ctypes
import re
from typing import Any

from helpers import ROOT

from moebius import _functions, _structs
from moebius._library import lib
from moebius._values import RANGES, Argument

TEXT = re.sub(r"/\*.*?\*/", "", (ROOT / "include" / "moebius_c.h").read_text(), flags=re.S)
HANDLES = set(re.findall(r"typedef struct \w+_handle\* (\w+);", TEXT))
STRUCTS = dict(re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", TEXT, flags=re.S))
FUNCTION_TYPES = re.findall(r"typedef\s+(\w+) \(\*(\w+)\)\((.*?)\);", TEXT, flags=re.S)
PLAIN = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "moebius_status": ctypes.c_int32,
}


def python_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("moebius_", "").split("_"))


def ctypes_of(c_type: str) -> Any:
    """The ctypes type that stands for a type of the header."""
    words = re.sub(r"\bconst\b", "", c_type).replace(" ", "")
    base, stars = words.rstrip("*"), words.count("*")
    result: Any
    if base == "char" and stars > 0:
        result = ctypes.c_char_p
        stars -= 1
    elif base == "void":
        if stars == 0:
            return None
        result = ctypes.c_void_p
        stars -= 1
    elif base in HANDLES:
        result = ctypes.c_void_p
    elif base in PLAIN:
        result = PLAIN[base]
    else:
        result = getattr(_structs, python_name(base))
    for _ in range(stars):
        result = ctypes.POINTER(result)
    return result


def split_arguments(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r",(?![^(]*\))", text)]


def type_and_name(declaration: str) -> tuple[str, str, str]:
    match = re.match(r"(.*?)(\w+)(\[\d+\])?$", " ".join(declaration.split()))
    assert match, declaration
    return match[1].strip(), match[2], match[3] or ""


def fields_of(body: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for line in filter(None, (" ".join(part.split()) for part in body.split(";"))):
        function = re.match(r".*?\(\*(\w+)\)\(", line)
        if function:
            fields.append((function[1], getattr(_structs, f"{python_name(function[1])}Function")))
            continue
        first, *others = line.split(",")
        c_type, name, count = type_and_name(first)
        found = ctypes_of(c_type)
        if count:
            found = found * int(count[1:-1])
        fields += [(each.strip(), found) for each in (name, *others)]
    return fields


def test_structs_have_the_fields_of_the_header() -> None:
    assert STRUCTS
    for name, body in STRUCTS.items():
        struct = getattr(_structs, python_name(name))
        assert [tuple(field) for field in struct._fields_] == fields_of(body), name


def test_no_struct_is_missing_in_the_header() -> None:
    declared = {
        name
        for name, value in vars(_structs).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    }
    expected = {python_name(name) for name in STRUCTS}
    assert declared - {"Struct", "Structure"} == expected


def test_function_types_are_those_of_the_header() -> None:
    for result, name, arguments in FUNCTION_TYPES:
        function = getattr(_structs, python_name(name))
        assert function._restype_ == ctypes_of(result), name
        expected = [
            _structs.JobFunction if "(*job)" in argument else ctypes_of(type_and_name(argument)[0])
            for argument in split_arguments(arguments)
        ]
        assert list(function._argtypes_) == expected, name


def argument_of(declaration: str) -> Any:
    c_type, name, _ = type_and_name(declaration)
    kind = ctypes_of(c_type)
    is_checked = kind in RANGES or c_type.split() == ["const", "char*"]
    return Argument(kind, name) if is_checked else kind


def test_functions_are_those_of_the_header() -> None:
    pattern = r"MOEBIUS_C_API\s+(const char\*|\w+)\s+(\w+)\(\s*(.*?)\);"
    found = {}
    for result, name, arguments in re.findall(pattern, TEXT, flags=re.S):
        declared = [] if arguments == "void" else split_arguments(arguments)
        found[name.replace("moebius_", "", 1)] = (
            ctypes_of(result),
            [argument_of(argument) for argument in declared],
        )
    assert list(found) == list(_functions.FUNCTIONS)
    for name, declaration in found.items():
        assert _functions.FUNCTIONS[name] == declaration, name


def test_functions_that_make_an_object_know_what_ends_it() -> None:
    # These make several objects, or one that takes the place of another.
    others = {"make_thread_groups", "make_cuda_group", "make_nccl_group"}
    pattern = r"moebius_(\w+)\(([^()]|\(\*[^()]*\)\([^()]*\))*\b(moebius_\w+)\* \w+\);"
    makers = {
        match[1]: match[3].replace("moebius_", "", 1)
        for match in re.finditer(pattern, TEXT)
        if match[3] in HANDLES
    }
    assert len(makers) > 30
    for name, kind in makers.items():
        if name not in others:
            assert getattr(lib, name).end is getattr(lib, kind + "_destroy"), name


def test_constants_are_those_of_the_header() -> None:
    found = {}
    for body in re.findall(r"enum \{(.*?)\};", TEXT, flags=re.S):
        found.update(re.findall(r"MOEBIUS_(\w+) = (\d+)", body))
    found.update(re.findall(r"#define MOEBIUS_(ABI_VERSION) (\d+)", TEXT))
    declared = {
        name: value for name, value in vars(_structs).items() if isinstance(value, int)
    }
    assert declared == {name: int(value) for name, value in found.items()}


def test_a_tensor_is_packed_as_its_fields_lie() -> None:
    from moebius._pack import pack

    tensor = _structs.Tensor()
    pack(tensor, 1 << 40, 2, 1, 3, 1, (5, 6, 7), (42, 7, 1))
    assert tensor.struct_size == ctypes.sizeof(tensor)
    assert (tensor.data, tensor.dtype, tensor.device.type, tensor.device.index) == (1 << 40, 2, 1, 3)
    assert (tensor.num_dims, tensor.flags) == (3, 1)
    assert list(tensor.shape) == [5, 6, 7, 0] and list(tensor.strides) == [42, 7, 1, 0]
