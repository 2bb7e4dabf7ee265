#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheels of the Python package: make_wheel.py PREFIX FOLDER.

PREFIX is where the library was installed (cmake --install BUILD --strip --prefix PREFIX); the wheels
are written to FOLDER, and their paths are printed.  The first one, moebius, holds python/moebius, and
beside it in moebius/lib what PREFIX has of libmoebius, with the shared fmt that this links.  The C
and C++ libraries are the machine's; the tag of the wheel says how new they must be.  The second one,
moebius-deep-ep, gives moebius.deep_ep the name deep_ep.  Equal inputs give equal bytes."""
from __future__ import annotations

import argparse
import base64
import hashlib
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The libraries of the system that may be left out of a wheel, as manylinux lists them.
SYSTEM_LIBRARIES = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
}
# The C library of the oldest distribution with a libstdc++ of each version.
GLIBC_OF_GLIBCXX = {(3, 4, 30): (2, 35), (3, 4, 31): (2, 38), (3, 4, 32): (2, 38), (3, 4, 33): (2, 39)}


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library: Path) -> list[str]:
    """The names of the shared libraries that a library links."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", library))


def find_linked(library: Path, name: str) -> Path:
    """Where the dynamic linker finds a library."""
    match = re.search(rf"^\s*{re.escape(name)} => (\S+)", run("ldd", library), flags=re.M)
    if not match:
        sys.exit(f"make_wheel: {library} links {name}, which is not found")
    return Path(match[1]).resolve()


def libraries_of(prefix: Path) -> dict[str, Path]:
    """The libraries of the wheel by the names that they get there."""
    found = next(iter(sorted(prefix.rglob("libmoebius.so"))), None)
    if found is None:
        sys.exit(f"make_wheel: no libmoebius.so in {prefix}: was it built shared?")
    libraries = {"libmoebius.so": found.resolve()}
    module = found.parent / "libmoebius_mpi.so"
    if module.exists():
        libraries[module.name] = module
    for name in needed(libraries["libmoebius.so"]):
        if name not in SYSTEM_LIBRARIES and not name.startswith("ld-linux"):
            libraries[name] = find_linked(libraries["libmoebius.so"], name)
    return libraries


def versions(libraries: list[Path], name: str) -> list[tuple[int, ...]]:
    """The symbol versions that libraries need of GLIBC or GLIBCXX."""
    text = "".join(run("readelf", "--version-info", "--wide", library) for library in libraries)
    return [tuple(map(int, v.split("."))) for v in re.findall(rf"Name: {name}_([\d.]+)", text)]


def platform_tag(libraries: list[Path]) -> str:
    glibc = max(version[:2] for version in versions(libraries, "GLIBC"))
    newest = max(versions(libraries, "GLIBCXX"), default=(0,))
    for version, of in GLIBC_OF_GLIBCXX.items():
        if newest >= version:
            glibc = max(glibc, of)
    return f"manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"


def read_version() -> str:
    header = (ROOT / "include" / "moebius" / "version.h").read_text()
    parts = re.findall(r"#define MOEBIUS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    return ".".join(parts)


METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.9
{requires}\
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: tools/make_wheel.py
Root-Is-Purelib: {is_pure}
Tag: {tag}
"""


class Wheel:
    """A zip file with a record of its files.  It replaces those of other versions in its folder."""

    def __init__(self, folder: Path, name: str, version: str, tag: str) -> None:
        stem = name.replace("-", "_")
        for old in folder.glob(f"{stem}-*.whl"):
            old.unlink()
        self.path = folder / f"{stem}-{version}-{tag}.whl"
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record: list[str] = []
        self.name, self.version, self.tag = name, version, tag
        self.info = f"{stem}-{version}.dist-info"

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        info = zipfile.ZipInfo(name)  # dated 1980
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100000 | mode) << 16
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def add_package(self, package: Path) -> None:
        for file in sorted(package.rglob("*")):
            if file.suffix == ".py" or file.name == "py.typed":
                self.add(f"{package.name}/{file.relative_to(package)}", file.read_bytes())

    def close(self, summary: str, description: str, requires: str = "") -> None:
        """Adds what says what the wheel is."""
        metadata = METADATA.format(
            name=self.name,
            version=self.version,
            summary=summary,
            requires=f"Requires-Dist: {requires}\n" if requires else "",
            description=(ROOT / "docs" / description).read_text(),
        )
        is_pure = str(self.tag.endswith("-any")).lower()
        self.add(f"{self.info}/METADATA", metadata.encode())
        self.add(f"{self.info}/WHEEL", WHEEL.format(tag=self.tag, is_pure=is_pure).encode())
        self.add(f"{self.info}/LICENSE", (ROOT / "LICENSE").read_bytes())
        record = f"{self.info}/RECORD"
        self.record.append(f"{record},,")
        self.zip.writestr(zipfile.ZipInfo(record), "\n".join(self.record) + "\n")
        self.zip.close()


def make_library_wheel(prefix: Path, folder: Path, version: str) -> Path:
    libraries = libraries_of(prefix)
    tag = f"py3-none-{platform_tag(list(libraries.values()))}"
    wheel = Wheel(folder, "moebius", version, tag)
    wheel.add_package(ROOT / "python" / "moebius")
    for name, library in sorted(libraries.items()):
        wheel.add(f"moebius/lib/{name}", library.read_bytes(), 0o755)
    wheel.close("Mixture-of-Experts layers spread over many workers", "python.md")
    return wheel.path


def make_name_wheel(folder: Path, version: str) -> Path:
    wheel = Wheel(folder, "moebius-deep-ep", version, "py3-none-any")
    wheel.add_package(ROOT / "python" / "deep_ep_name" / "deep_ep")
    wheel.close("The name deep_ep for moebius.deep_ep", "deep_ep.md", f"moebius (=={version})")
    return wheel.path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefix", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()

    version = read_version()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(make_library_wheel(arguments.prefix, arguments.folder, version))
    print(make_name_wheel(arguments.folder, version))


if __name__ == "__main__":
    main()
