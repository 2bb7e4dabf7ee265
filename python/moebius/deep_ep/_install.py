# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Lets `import deep_ep` find this package."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Optional

from ..errors import InvalidArgument

_NAME = "deep_ep"
_PACKAGE = __name__.rpartition(".")[0]


def _own_name(name: str) -> str:
    """The name in this package of a module of deep_ep."""
    return _PACKAGE + name[len(_NAME) :]


class _Alias(Loader):
    """Gives the module of this package, so that each exists once under both names."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_own_name(spec.name))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it


class _Finder(MetaPathFinder):
    def find_spec(
        self,
        name: str,
        path: Optional[Sequence[str]] = None,
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if name.partition(".")[0] != _NAME:
            return None
        own = importlib.util.find_spec(_own_name(name))
        if own is None:
            return None
        return ModuleSpec(name, _Alias(), is_package=own.submodule_search_locations is not None)


_finder = _Finder()


def is_installed() -> bool:
    """Whether `import deep_ep` finds this package."""
    return _finder in sys.meta_path


def install() -> None:
    """Lets `import deep_ep` and `from deep_ep.utils import ...` find this package, in this process,
    also where DeepEP itself is installed.  Doing it twice is valid.  Raises InvalidArgument where
    another deep_ep has been imported before."""
    loaded = sys.modules.get(_NAME)
    if loaded is not None and loaded.__name__ != _PACKAGE:
        raise InvalidArgument(
            f"deep_ep was imported from {getattr(loaded, '__file__', None)}, expected a call of "
            "install() before its import"
        )
    if not is_installed():
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Takes install() back for imports from now on."""
    if is_installed():
        sys.meta_path.remove(_finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == _NAME]:
        if sys.modules[name].__name__.startswith(_PACKAGE):
            del sys.modules[name]
