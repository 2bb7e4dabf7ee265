# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out: numpy, torch, DLPack and Array."""
from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import torch

import moebius
from moebius.tensors import view

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


class Producer:
    """A tensor of a library that is neither numpy nor torch."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        if "max_version" in options:
            raise TypeError("an old library")
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_numpy_arrays_are_read_where_they_lie() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = view(x)
    assert tensor.data == x.ctypes.data and list(tensor.shape) == [2, 3, 4, 0]
    assert not any(tensor.strides) and tensor.flags == 0


def test_strides_and_read_only_flags_travel() -> None:
    x = np.zeros((4, 6), np.float32)[:, ::2]
    x.flags.writeable = False
    tensor = view(x)
    assert list(tensor.strides[:2]) == [6, 2] and tensor.flags == 1
    # Strides that are all 0 are a repeated element, not contiguous rows.
    repeated = view(np.broadcast_to(np.float32(3), (2, 5)))
    assert not any(repeated.strides) and repeated.keep.shape == (2, 5)


def test_copies_of_numpy_arrays_are_inputs_only() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    pairs = np.zeros(3, np.dtype([("a", np.float32), ("b", np.uint8)]))
    for given in (x[::-1], x[:, ::-1], pairs["a"], np.lib.stride_tricks.as_strided(x, (2, 3), (0, 0))):
        copied = moebius.Array.empty(given.shape).copy_from(given)
        np.testing.assert_array_equal(copied.numpy(), given)
        assert given.flags.writeable and view(given).flags == 1
    router = moebius.Router(3, 1, gate=np.ones((3, 2), np.float32))
    with pytest.raises(moebius.InvalidArgument, match=r"out \[2, 3\] is read-only"):
        router.logits(np.ones((2, 2), np.float32), out=x[::-1])


def test_unknown_tensors_are_refused_by_name() -> None:
    with pytest.raises(moebius.InvalidArgument, match="float64, expected one of float32, float16"):
        view(np.zeros(3))
    with pytest.raises(moebius.InvalidArgument, match="a list is no tensor"):
        view([1, 2])
    with pytest.raises(moebius.InvalidArgument, match="5 dimensions, expected at most 4"):
        view(np.zeros((1,) * 5, np.float32))


def test_arrays_hold_types_that_numpy_lacks() -> None:
    bits = np.arange(8, dtype=np.uint16).reshape(2, 4)
    array = moebius.Array.from_numpy(bits, dtype="bf16")
    assert (array.shape, array.dtype, array.device) == ((2, 4), "bf16", "cpu")
    assert array.nbytes == 16 and len(array) == 2
    np.testing.assert_array_equal(array.bits(), bits)
    array.bits()[0, 0] = 9
    assert bits[0, 0] == 9, "the memory is shared"
    with pytest.raises(moebius.Unsupported, match="ml_dtypes"):
        if "ml_dtypes" in sys.modules:
            raise moebius.Unsupported("ml_dtypes is there")
        array.numpy()


def test_bytes_are_read_as_packed_types() -> None:
    array = moebius.Array.from_numpy(np.zeros((2, 3), np.uint8), dtype="f4e2m1")
    assert array.shape == (2, 6) and array.nbytes == 6
    assert array.bits().shape == (2, 3)
    assert moebius.Array.from_numpy(np.zeros((2, 3), np.uint8), "f6e2m3").shape == (2, 4)


def test_read_only_arrays_are_copied() -> None:
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    assert moebius.Array.from_numpy(x).numpy().tolist() == [1, 1, 1, 1]


def test_arrays_are_numpy_arrays_of_the_same_memory() -> None:
    array = moebius.Array.empty((2, 3), "i32")
    array.numpy()[:] = 5
    assert array.numpy().tolist() == [[5] * 3] * 2
    assert np.from_dlpack(array).tolist() == [[5] * 3] * 2
    assert moebius.Array.empty((0, 3)).numpy().shape == (0, 3)
    assert moebius.Array.empty(()).numpy().shape == ()


def test_memory_outlives_the_array_that_made_it() -> None:
    array = moebius.Array.empty((1000,), "i64")
    ref = weakref.ref(array)
    x = array.numpy()
    x[:] = 3
    consumer = np.from_dlpack(array)
    del array
    gc.collect()
    assert ref() is not None, "the numpy array holds it"
    assert x.sum() == 3000
    del x
    gc.collect()
    assert ref() is None
    assert consumer.sum() == 3000, "the consumer of DLPack holds the memory"


def test_a_capsule_that_nobody_takes_frees_its_memory() -> None:
    before = moebius.memory_statistics().num_blocks
    for _ in range(3):
        moebius.Array.empty((64,)).__dlpack__()
        moebius.Array.empty((64,)).__dlpack__(max_version=(1, 1))
    gc.collect()
    assert moebius.memory_statistics().num_blocks == before


def test_producers_of_dlpack_are_taken() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = moebius.Array.from_dlpack(Producer(x))
    assert array.numpy().tolist() == x.tolist()
    array.numpy()[0, 0] = 7
    assert x[0, 0] == 7
    router = moebius.Router(3, 1)
    ids, weights = router.select(Producer(x))
    assert isinstance(ids, moebius.Array) and isinstance(weights, moebius.Array)
    assert ids.numpy().tolist() == [[0], [2]]


def test_arrays_copy_and_close() -> None:
    array = moebius.Array.empty((3,), "f32").copy_from(np.float32([1, 2, 3]))
    assert array.numpy().tolist() == [1, 2, 3]
    with pytest.raises(moebius.InvalidArgument):
        array.copy_from(np.float32([1, 2]))
    array.close()
    array.close()
    with pytest.raises(moebius.InvalidArgument, match="this Array has been closed"):
        array.__dlpack__()
    with pytest.raises(moebius.InvalidArgument, match="this Array has been closed"):
        view(array)


def test_dtypes_have_many_names() -> None:
    from moebius._dtypes import dtype_code

    assert dtype_code("bf16") == dtype_code("bfloat16") == 2
    assert dtype_code(np.float16) == dtype_code(np.dtype("float16")) == 1
    with pytest.raises(moebius.InvalidArgument, match="dtype is float64, expected one of f32"):
        dtype_code(np.float64)


@needs_torch
def test_torch_tensors_are_read_where_they_lie() -> None:
    x = torch.zeros(4, 6, dtype=torch.bfloat16)
    tensor = view(x)
    assert tensor.data == x.data_ptr() and tensor.dtype == 2
    assert list(view(x.t()).strides[:2]) == [1, 6]
    assert view(torch.zeros(1).expand(3, 4)).keep.shape == (3, 4)
    with pytest.raises(moebius.InvalidArgument, match="torch.float64"):
        view(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(moebius.Unsupported, match="meta"):
        view(torch.zeros(2, device="meta"))


@needs_torch
def test_arrays_are_torch_tensors_of_the_same_memory() -> None:
    array = moebius.Array.empty((2, 3), "bf16")
    x = array.torch()
    x.fill_(1.5)
    assert x.dtype == torch.bfloat16
    y = torch.from_dlpack(array)
    del array, x
    gc.collect()
    assert y.tolist() == [[1.5] * 3] * 2
    assert moebius.Array.empty((), "i64").torch().shape == ()
    assert moebius.Array.empty((0, 2), "i64").torch().shape == (0, 2)
    with pytest.raises(moebius.Unsupported, match="torch .* has no u4"):
        moebius.Array.empty((2,), "u4").torch()


@needs_torch
def test_types_of_torch_are_known() -> None:
    from moebius._dtypes import dtype_code

    assert dtype_code(torch.bfloat16) == 2 and dtype_code(torch.int64) == 8


def negated(x: Any) -> tuple[Any, Any]:
    """Tensors equal to -x whose memory has x: one with strides, and a contiguous one."""
    strided = torch.view_as_complex(torch.stack([x, x], dim=-1)).conj().imag
    return strided, torch._neg_view(x)


@needs_torch
def test_negations_of_torch_are_done_before_a_tensor_is_read() -> None:
    x = torch.arange(6.0).view(2, 3)
    router = moebius.Router(3, 1, gate=torch.ones(3, 3))
    for given in negated(x):
        assert given.is_neg()
        assert moebius.Array.empty((2, 3)).copy_from(given).torch().equal(-x)
        with pytest.raises(moebius.InvalidArgument, match="read-only"):
            router.logits(torch.ones(2, 3), out=given)
    # Those of complex numbers have types that no call takes.
    with pytest.raises(moebius.InvalidArgument, match="complex64, which no call takes"):
        view(torch.view_as_complex(torch.zeros(2, 3, 2)).conj())


@needs_torch
def test_copies_of_torch_tensors_are_no_outputs() -> None:
    router = moebius.Router(3, 1, gate=torch.ones(3, 2))
    repeated = torch.zeros(1).expand(2, 3)
    with pytest.raises(moebius.InvalidArgument, match="read-only"):
        router.logits(torch.ones(2, 2), out=repeated)


@needs_torch
def test_sparse_tensors_are_refused() -> None:
    message = "layout torch.sparse_coo, expected torch.strided"
    with pytest.raises(moebius.InvalidArgument, match=message):
        view(torch.eye(3).to_sparse())


def test_the_kind_of_the_caller_comes_back() -> None:
    logits = np.zeros((2, 4), np.float32)
    router = moebius.Router(4, 2)
    assert all(isinstance(x, np.ndarray) for x in router.select(logits))
    if torch is not None:
        ids, weights = router.select(torch.zeros(2, 4), ids_dtype=torch.int64)
        assert ids.dtype == torch.int64 and isinstance(weights, torch.Tensor)
    given = moebius.Array.from_numpy(logits)
    assert all(isinstance(x, moebius.Array) for x in router.select(given))


def test_types_of_ml_dtypes_are_known_once_it_is_loaded() -> None:
    # A stand-in whose bfloat16 is two bytes without a meaning of their own.
    program = """
import sys, types
import numpy as np
import moebius
random = np.random.default_rng(0)
w1, w2 = random.random((4, 32, 64), "f4"), random.random((4, 64, 16), "f4")
experts = moebius.Experts(w1, w2, topk=1, dtype="bf16")
bits = np.full((3, 64), 0x3F80, np.uint16)
given = (np.zeros((3, 1), np.int32), np.ones((3, 1), np.float32))
out = experts(moebius.Array.from_numpy(bits, "bf16"), *given)
assert isinstance(out, moebius.Array)
sys.modules["ml_dtypes"] = types.SimpleNamespace(bfloat16=np.dtype("V2"))
again = experts(bits.view("V2"), *given)
print(again.dtype, (again.view(np.uint16) == out.bits()).all(), out.numpy().dtype)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("|V2 True |V2\n", "")


def test_neither_numpy_nor_torch_is_needed() -> None:
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import moebius
logits = moebius.Array.empty((2, 4))
ids, weights = moebius.Router(4, 2).select(logits)
print(ids.shape, ids.dtype, weights.dtype)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("(2, 2) i32 f32\n", "")
