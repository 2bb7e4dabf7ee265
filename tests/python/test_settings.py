# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Settings, logs, memory, streams, errors, and what the package shows."""
from __future__ import annotations

import importlib
import inspect
import logging
import pickle
import pkgutil
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, Weights, torch
from test_groups import run_program

import moebius

NEED_TORCH = ("torch_ops", "transformers")


def test_the_version_is_that_of_the_library() -> None:
    header = (ROOT / "include" / "moebius" / "version.h").read_text()
    parts = [
        line.split()[-1] for line in header.splitlines() if line.startswith("#define MOEBIUS_VERSION_")
    ]
    assert moebius.__version__ == ".".join(parts[:3])


def test_settings_are_listed_and_changed() -> None:
    names = {setting.name: setting for setting in moebius.settings()}
    assert "MOEBIUS_THREADS" in names and names["MOEBIUS_THREADS"].meaning
    before = moebius.get_setting("MOEBIUS_THREADS")
    moebius.set_setting("MOEBIUS_THREADS", 3)
    assert moebius.get_setting("MOEBIUS_THREADS") == "3"
    moebius.set_setting("MOEBIUS_THREADS", None)
    assert moebius.get_setting("MOEBIUS_THREADS") == before
    with pytest.raises(moebius.InvalidArgument, match="MOEBIUS_NOTHING"):
        moebius.set_setting("MOEBIUS_NOTHING", "1")


def test_messages_go_to_logging(caplog: Any) -> None:
    model = Weights()
    moebius.set_setting("MOEBIUS_LOG", "dispatch")
    moebius.log_to_logging()
    try:
        with caplog.at_level(logging.DEBUG, "moebius"):
            moebius.Experts(model.w1, model.w2, topk=2)
    finally:
        moebius.log_to_stderr()
        moebius.set_setting("MOEBIUS_LOG", None)
    assert any(record.name.startswith("moebius") for record in caplog.records), caplog.text


def test_memory_is_counted() -> None:
    moebius.reset_peak_memory()
    before = moebius.memory_statistics()
    array = moebius.Array.empty((1 << 20,), "u8")
    with_array = moebius.memory_statistics()
    assert with_array.bytes - before.bytes >= 1 << 20
    assert with_array.num_allocations > before.num_allocations
    array.close()
    after = moebius.memory_statistics("cpu")
    assert after.bytes == before.bytes and after.peak_bytes >= before.bytes + (1 << 20)
    moebius.trim_memory()


def test_devices_are_named() -> None:
    assert moebius.is_usable("cpu") and not moebius.is_usable("cuda:63")
    assert moebius.num_cuda_devices() >= 0
    for device in ("tpu", "cuda:x"):
        with pytest.raises(moebius.InvalidArgument, match=f"device is {device}, expected cpu"):
            moebius.is_usable(device)


def test_streams_of_the_cpu_bound_threads() -> None:
    model = Weights()
    hidden, ids, weights = model.tokens(5)
    experts = moebius.Experts(model.w1, model.w2, topk=2)
    stream = moebius.Stream.cpu(1)
    np.testing.assert_array_equal(
        experts(hidden, ids, weights, stream=stream), experts(hidden, ids, weights)
    )
    stream.synchronize()
    assert stream.cuda_stream == 0
    with pytest.raises(moebius.InvalidArgument, match="stream is a int"):
        experts(hidden, ids, weights, stream=5)


def test_errors_keep_their_place_in_the_hierarchy() -> None:
    assert issubclass(moebius.InvalidArgument, (moebius.Error, ValueError))
    assert issubclass(moebius.Unsupported, NotImplementedError)
    assert issubclass(moebius.OutOfMemory, MemoryError)
    assert issubclass(moebius.CommError, moebius.Error)
    error = moebius.CommError("rank 1 has left", 0, 1, True)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.peer, copy.peer_is_silent) == ("rank 1 has left", 0, 1, True)


def test_lack_of_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        moebius.Array.empty((1 << 58,), "u8")


def test_every_public_name_has_a_docstring() -> None:
    for name in moebius.__all__:
        thing = getattr(moebius, name)
        if inspect.isclass(thing):
            assert thing.__doc__, name
            for method, function in vars(thing).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    assert function.__doc__, f"{name}.{method}"
        elif callable(thing):
            assert thing.__doc__, name


def test_every_name_of_a_module_that_is_listed_exists() -> None:
    for module in pkgutil.iter_modules(moebius.__path__):
        if module.name.startswith("_") or (torch is None and module.name in NEED_TORCH):
            continue
        found = importlib.import_module(f"moebius.{module.name}")
        for name in getattr(found, "__all__", []):
            assert hasattr(found, name), f"{module.name}.{name}"


def test_modules_that_import_torch_are_found_by_name() -> None:
    program = "import moebius, sys; assert 'torch' not in sys.modules; print(moebius.deep_ep.install)"
    assert "function install" in run_program(program)[0]
    if torch is not None:
        assert moebius.transformers.register and moebius.torch_ops
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        moebius.nothing


def test_help_reads_from_the_top() -> None:
    import pydoc

    text = pydoc.render_doc(moebius, renderer=pydoc.plaintext)
    assert "Mixture-of-Experts layers spread over many workers" in text
    assert "class MoeLayer" in text and "class Group" in text
