# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Operators for torch.compile and CUDA graphs of torch.  Importing this module registers them:

    moebius::experts(Tensor hidden, Tensor topk_ids, Tensor topk_weights, SymInt handle) -> Tensor
    moebius::layer(Tensor hidden, Tensor? topk_ids, Tensor? topk_weights, SymInt handle) -> Tensor

and experts_out and layer_out, which write `out` and return nothing.  They compute what calling the
object does: hidden and the result are [T, H] of one dtype, topk_ids i32 or i64 [T, K], topk_weights
f32 [T, K].  The result is a new tensor of torch's allocator; nothing else is written.

Operators take tensors and numbers, so an object is named by a number that handle() gives out:

    experts = moebius.Experts(w1, w2, topk=2)
    h = moebius.torch_ops.handle(experts)
    y = torch.ops.moebius.experts(x, ids, weights, h)

Calls run on torch's current stream, and CUDA graphs can record them once a call has run before.
There are no gradients: backward() through a result raises moebius.Unsupported.  Every rank must
call moebius::layer of a group as often and in the same order as the others.

Thread-safety: handle() may be called by any thread; for calls hold the rules of the object."""
from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, Callable, Optional, Sequence, Tuple

import torch

from .errors import InvalidArgument, Unsupported
from .experts import Experts
from .layer import MoeLayer

__all__ = ["NO_GRADIENTS", "handle"]

NO_GRADIENTS = (
    "results of Moebius have no gradients: call the model under torch.no_grad(), or use other "
    "experts to train it"
)

# Why Any: what torch says about the types of these differs from version to version.
_torch: Any = torch

_objects: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_handles: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
# Why 2: torch.compile makes code of its own for the numbers 0 and 1.
_numbers = itertools.count(2)


def handle(target: Any) -> int:
    """Gives the number by which operators know an object: a moebius.Experts, a moebius.MoeLayer, or
    anything that is called as one of them.  An operator refuses an object of the other class.

    The same object has the same number, and no number is given out twice.  The object is not kept
    alive: an operator that is called after its end raises InvalidArgument."""
    with _lock:
        number = _handles.get(target)
        if number is None:
            number = next(_numbers)
            _handles[target] = number
            _objects[number] = target
        return number


_OTHERS: "dict[type, type]" = {Experts: MoeLayer, MoeLayer: Experts}


def _object(number: int, kind: type) -> Any:
    """The object of a number: of the kind, or called as one, but not of the other kind."""
    target = _objects.get(number)
    if target is None:
        raise InvalidArgument(
            f"handle is {number}, expected that of an object that is alive (torch_ops.handle)"
        )
    if isinstance(target, _OTHERS[kind]):
        raise InvalidArgument(
            f"handle is {number}, that of a {type(target).__name__}, expected that of a "
            f"moebius.{kind.__name__}"
        )
    return target


def _make_run(kind: type, writes_out: bool) -> Any:
    """What an operator runs.  Layers are called as experts are, and their ids may be None."""

    def run_out(*inputs: Any) -> None:
        *tensors, handle, out = inputs
        _object(handle, kind)(*tensors, out=out)

    def run(*inputs: Any) -> torch.Tensor:
        hidden: torch.Tensor = inputs[0]
        # Why not empty_like: the result is contiguous, as the fake implementation promises.
        out = hidden.new_empty(hidden.shape)
        run_out(*inputs, out)
        return out

    return run_out if writes_out else run


def _fake(
    hidden: torch.Tensor,
    topk_ids: Optional[torch.Tensor],
    topk_weights: Optional[torch.Tensor],
    handle: int,
) -> torch.Tensor:
    return hidden.new_empty(hidden.shape)


def _fake_out(
    hidden: torch.Tensor,
    topk_ids: Optional[torch.Tensor],
    topk_weights: Optional[torch.Tensor],
    handle: int,
    out: torch.Tensor,
) -> None:
    return None


def _refuse_backward(ctx: Any, *gradients: Any) -> Tuple[Any, ...]:
    raise Unsupported(NO_GRADIENTS)


class _NoGradients(torch.autograd.Function):
    """What autograd sees of a call that is not an operator, and of operators where torch has no
    register_autograd()."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        run, *given = args
        return run(*given)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _refuse_backward(ctx, *grad_outputs)


def without_gradients(
    run: Callable[..., torch.Tensor], arguments: Sequence[Any], others: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Calls run(*arguments).  The result depends on `others`, too, in the eyes of autograd, and
    backward() through it raises Unsupported."""
    count = len(arguments)
    result: torch.Tensor = _NoGradients.apply(
        lambda *given: run(*given[:count]), *arguments, *others
    )
    return result


_SCHEMAS = {
    "experts": "(Tensor hidden, Tensor topk_ids, Tensor topk_weights, SymInt handle) -> Tensor",
    "layer": "(Tensor hidden, Tensor? topk_ids, Tensor? topk_weights, SymInt handle) -> Tensor",
    "experts_out": "(Tensor hidden, Tensor topk_ids, Tensor topk_weights, SymInt handle,"
    " Tensor(a!) out) -> ()",
    "layer_out": "(Tensor hidden, Tensor? topk_ids, Tensor? topk_weights, SymInt handle,"
    " Tensor(a!) out) -> ()",
}


def _register() -> Any:
    # Its operators go when the object goes, so that this module keeps it.
    library: Any = _torch.library.Library("moebius", "DEF")
    # Says that fake tensors, functionalization and compiled autograd may be used with an operator.
    tag = getattr(getattr(torch, "Tag", None), "pt2_compliant_tag", None)
    for name, schema in _SCHEMAS.items():
        writes_out = name.endswith("_out")
        run = _make_run(MoeLayer if name.startswith("layer") else Experts, writes_out)
        fake: Any = _fake_out if writes_out else _fake
        if tag is None:
            library.define(name + schema)
        else:
            library.define(name + schema, tags=(tag,))
        library.impl(name, run, "CPU")
        library.impl(name, run, "CUDA")
        if hasattr(_torch.library, "register_fake"):
            _torch.library.register_fake(f"moebius::{name}", fake, lib=library)
        else:
            library.impl(name, fake, "Meta")
        if writes_out:
            continue
        if hasattr(_torch.library, "register_autograd"):
            _torch.library.register_autograd(f"moebius::{name}", _refuse_backward, lib=library)
        else:

            def differentiable(*arguments: Any, run: Any = run, fake: Any = fake) -> Any:
                chosen = fake if arguments[0].is_meta else run
                return _NoGradients.apply(chosen, *arguments)

            library.impl(name, differentiable, "Autograd")
    return library


_library = _register()
