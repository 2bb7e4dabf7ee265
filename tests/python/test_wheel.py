# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel of this build (MOEBIUS_BUILD): made, installed into a fresh environment, and imported by
every Python of the machine."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

BUILD = os.environ.get("MOEBIUS_BUILD")
pytestmark = pytest.mark.skipif(not BUILD, reason="MOEBIUS_BUILD names no build")
# Nothing of the source tree or of this build may be found by accident.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "MOEBIUS_LIBRARY", "LD_LIBRARY_PATH")
}


def run(*command: Any, **more: str) -> str:
    result = subprocess.run(
        [str(word) for word in command], env={**CLEAN, **more}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: Any) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheel")
    prefix = folder / "prefix"
    run(os.environ.get("CMAKE_COMMAND", "cmake"), "--install", BUILD, "--strip", "--prefix", prefix)
    paths = run(sys.executable, ROOT / "tools" / "make_wheel.py", prefix, folder).split()
    shutil.rmtree(prefix)
    return [Path(path) for path in paths]


@pytest.fixture(scope="session")
def wheel(wheels: list[Path]) -> Path:
    return wheels[0]


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_the_record_has_every_file(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
    lines = [line.split(",") for line in archive.read(record).decode().splitlines()]
    assert [line[0] for line in lines] == archive.namelist()
    for name, digest, size in lines[:-1]:
        data = archive.read(name)
        assert len(data) == int(size)
        assert digest.startswith("sha256=") and len(digest) == 7 + 43
    names = set(archive.namelist())
    assert {"moebius/__init__.py", "moebius/py.typed", "moebius/lib/libmoebius.so"} <= names


def test_the_library_brings_what_it_needs(unpacked: Path) -> None:
    lib = unpacked / "moebius" / "lib"
    linked = run("ldd", lib / "libmoebius.so")
    assert "not found" not in linked
    for line in linked.splitlines():
        name = line.split()[0]
        if "fmt" in name:
            assert str(lib) in line, line
        assert not any(other in name for other in ("libmpi", "libcuda", "libnccl", "python")), line


PROGRAM = """
import sys
import tempfile
import moebius
with tempfile.TemporaryDirectory() as folder:
    moebius.make_model("tiny", folder)
    layer = moebius.MoeLayer.from_checkpoint(folder)
hidden = moebius.Array.empty((2, layer.info.hidden), "bf16")
assert layer(hidden).shape == hidden.shape
with moebius.Group.threads(1)[0] as group:
    group.barrier()
assert "numpy" not in sys.modules and "torch" not in sys.modules
print(moebius.__version__, moebius.__file__)
"""


def pythons() -> list[Path]:
    """Every Python from 3.9 on that is on the PATH or that pyenv has."""
    names = [shutil.which(f"python3.{minor}") for minor in range(9, 16)]
    found = [Path(name) for name in names if name]
    found += Path.home().glob(".pyenv/versions/3.*/bin/python")
    usable: dict[str, Path] = {}
    for path in [Path(sys.executable), *found]:
        version = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        if version and tuple(map(int, version.split("."))) >= (3, 9):
            usable.setdefault(version, path)
    return list(usable.values())


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_every_python_imports_it(python: Path, unpacked: Path, tmp_path: Path) -> None:
    out = run(python, "-W", "error", "-c", PROGRAM, PYTHONPATH=str(unpacked))
    assert str(unpacked) in out


def make_environment(folder: Path, *options: str) -> Path:
    """The Python of a fresh environment."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", *options, folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"no venv here: {made.stdout.strip()[:200]}")
    return folder / "bin" / "python"


NAME = """
import importlib.util, sys
from importlib.metadata import version
assert importlib.util.find_spec("deep_ep")
import deep_ep
import moebius.deep_ep
assert deep_ep is moebius.deep_ep is sys.modules["deep_ep"] and "torch" not in sys.modules
assert version("moebius-deep-ep") == version("moebius")
if importlib.util.find_spec("torch"):
    from deep_ep import Buffer
    from deep_ep.utils import EventOverlap
    assert (Buffer.__module__, EventOverlap.__module__) == (
        "moebius.deep_ep.buffer", "moebius.deep_ep.events"
    )
print(deep_ep.__file__)
"""


def test_a_second_wheel_installs_the_name_deep_ep(wheels: list[Path], tmp_path: Path) -> None:
    assert [path.name.partition("-")[0] for path in wheels] == ["moebius", "moebius_deep_ep"]
    assert wheels[1].stat().st_size < 50_000
    for name, options in (("empty", []), ("with_torch", ["--system-site-packages"])):
        python = make_environment(tmp_path / name, *options)
        run(python, "-m", "pip", "install", "--no-index", "--quiet", *wheels, PATH="/nowhere")
        assert str(tmp_path / name) in run(python, "-c", NAME)
        run(python, "-m", "pip", "uninstall", "--yes", "--quiet", "moebius-deep-ep")
        run(python, "-c", "import importlib.util; assert not importlib.util.find_spec('deep_ep')")


def test_pip_installs_it_into_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", "--system-site-packages")
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", wheel, PATH="/nowhere")
    where = run(python, "-c", "import moebius; print(moebius.__file__)")
    assert str(tmp_path) in where
    for example in ("01_layer.py", "02_four_processes.py"):
        run(python, ROOT / "examples" / "python" / example)
    run(python, "-m", "pip", "uninstall", "--yes", "--quiet", "moebius")
    assert not Path(where.strip()).exists()
