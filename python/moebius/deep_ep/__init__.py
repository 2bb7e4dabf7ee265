# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A drop-in for the Python package deep_ep: the same classes and calls, over Moebius.

    import moebius.deep_ep
    moebius.deep_ep.install()      # `import deep_ep` finds this package from now on

    buffer = deep_ep.Buffer(group)
    layout = buffer.get_dispatch_layout(topk_idx, num_experts)
    ...

Tensors may be on the CPU (processes under gloo) or on GPUs.  Every wait has a deadline, after which
moebius.CommError names the rank that is missing.  docs/deep_ep.md says what has no effect here and
what is refused.  torch is imported with the first name that needs it."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._install import install, is_installed, uninstall

if TYPE_CHECKING:
    from .autograd import CombineFunction as CombineFunction
    from .autograd import DispatchFunction as DispatchFunction
    from .autograd import combine as combine
    from .autograd import dispatch as dispatch
    from .buffer import Buffer as Buffer
    from .config import Config as Config
    from .elastic import ElasticBuffer as ElasticBuffer
    from .ep_handle import EPHandle as EPHandle
    from .events import EventHandle as EventHandle
    from .events import EventOverlap as EventOverlap
    from .ranks import get_logical_domain_size as get_logical_domain_size
    from .ranks import get_physical_domain_size as get_physical_domain_size

    topk_idx_t: Any

# The module of each name.
_MODULES = {
    "Buffer": "buffer",
    "CombineFunction": "autograd",
    "Config": "config",
    "DispatchFunction": "autograd",
    "EPHandle": "ep_handle",
    "ElasticBuffer": "elastic",
    "EventHandle": "events",
    "EventOverlap": "events",
    "combine": "autograd",
    "dispatch": "autograd",
    "get_logical_domain_size": "ranks",
    "get_physical_domain_size": "ranks",
    "topk_idx_t": "tensors",
}

# DeepEP's, whose calls these are, for programs that ask.
__version__ = "2.1.0"

__all__ = [*_MODULES, "install", "is_installed", "uninstall"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
