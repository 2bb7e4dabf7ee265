# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models on Moebius: the experts of transformers 5, on CPUs and GPUs.

    import moebius.transformers
    moebius.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="moebius")

Every family whose experts go through the interface of transformers works this way: with biases,
transposed or interleaved weights, without a gate, and with each activation that the library has.
Others are refused at the first call, naming family and activation.  docs/transformers.md lists the
families and says what else to know.

Weights are packed at the first call of each module, and read again when they have changed or
moved.  Results have no gradients: backward() raises moebius.Unsupported.

Thread-safety: one thread at a time may call a model."""
from __future__ import annotations

import importlib
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from . import torch_ops
from ._expert_modules import ExpertModule, label
from ._expert_parallel import ParallelExperts
from ._local_experts import LocalExperts
from ._weight_schemes import find_scheme
from .errors import InvalidArgument, Unsupported
from .groups import Group
from .layer_options import Workspaces
from .transports import Transports

__all__ = ["prepare", "refresh", "register"]

# The attribute of an experts module that holds what belongs to it here.
_ATTRIBUTE = "_moebius"


def _never() -> bool:
    return False


# Why Any: torch says little about the types of these.
_operators: Any = getattr(torch, "ops")
_cuda: Any = torch.cuda

# Whether torch.compile is tracing; it knows this function by name.
_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", _never
)


@dataclass(frozen=True, eq=False)
class _Options:
    """What register() was given."""

    name: str
    quant: Optional[str]
    releases_parameters: bool
    implementation: Optional[str]
    group: Optional[Group]
    layer_options: dict[str, Any]


_registered: dict[str, _Options] = {}


def register(
    name: str = "moebius",
    *,
    quant: Optional[str] = None,
    release_parameters: bool = False,
    implementation: Optional[str] = None,
    group: Optional[Group] = None,
    tokens: str = "own",
    **layer_options: Any,
) -> None:
    """Makes `experts_implementation=name` valid for the models of transformers.

    quant: the scheme to which unquantized parameters are quantized when they are packed, such as
    "int4_w4a16" or "fp8_w8a8"; None: weights stay as they are.

    release_parameters: the parameters of a module are emptied once they are packed, so that
    weights are not held twice.  They do not come back: state_dict(), and so save_pretrained(), then
    raises InvalidArgument, and so does loading new weights.

    implementation: forces an implementation of moebius.Experts.

    group: a moebius.Group over which the experts are spread.  Every rank has the whole model and
    computes its share of the experts, for the tokens of all ranks.  With tokens="own" every rank
    brings its own (data parallel), and with tokens="same" all ranks bring the same (tensor
    parallel).  Every rank must make the same calls: give synced_gpus=True to generate() where
    ranks have their own tokens.  `layer_options` go to moebius.MoeLayer, such as `backend`.

    Registering a name again replaces it, and modules are packed anew at their next call.  Raises
    Unsupported where transformers has no such interface."""
    functions = _interface()
    if quant is not None:
        find_scheme(quant)
    if tokens not in ("own", "same"):
        raise InvalidArgument(f'tokens is {tokens!r}, expected "own" or "same"')
    if group is None and (layer_options or tokens != "own"):
        given = ", ".join(layer_options) or "tokens"
        raise InvalidArgument(f"{given} is given without a group")
    if group is not None:
        layer_options.setdefault("tp_size", group.size if tokens == "same" else 1)
        # All modules share one, since they run one after the other.
        layer_options.setdefault("transports", Transports(group))
        layer_options.setdefault("workspaces", Workspaces())
    options = _Options(name, quant, release_parameters, implementation, group, layer_options)
    _registered[name] = options
    functions.register(name, _forward_function(options))


def prepare(model: torch.nn.Module) -> int:
    """Readies the experts of a model for torch.compile, and says how many modules there are.  It is
    needed before a model is compiled that has not run yet; weights are still packed when each
    module runs for the first time.  Raises InvalidArgument where no module uses Moebius."""
    modules = _modules(model)
    for module, options in modules:
        _slot_of(module, options)
    return len(modules)


def refresh(model: torch.nn.Module) -> int:
    """Makes the next call of each experts module read its weights again, and says how many modules
    there are.  It is needed only where weights were written in a way that torch does not count:
    through `.data`, or to tensors made in inference mode."""
    modules = _modules(model)
    for module, options in modules:
        _slot_of(module, options).forget_marks()
    return len(modules)


def _interface() -> Any:
    """The registry of experts functions."""
    try:
        return importlib.import_module("transformers.integrations.moe").ALL_EXPERTS_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"this transformers has no interface for experts, expected 5.0 or later: {error}"
        ) from None


def _modules(model: torch.nn.Module) -> list[tuple[torch.nn.Module, _Options]]:
    """The experts modules of a model that use Moebius."""
    found = []
    for module in model.modules():
        name = getattr(getattr(module, "config", None), "_experts_implementation", None)
        options = _registered.get(name) if isinstance(name, str) else None
        if options is not None and module._parameters.get("down_proj") is not None:
            found.append((module, options))
    if not found:
        names = " or ".join(f'"{name}"' for name in _registered) or "register() first, and"
        raise InvalidArgument(
            f"no experts of this {type(model).__name__} use Moebius: set {names} with "
            "model.set_experts_implementation()"
        )
    return found


def _forward_function(options: _Options) -> Callable[..., torch.Tensor]:
    """What transformers calls in place of the forward of an experts module."""

    def moebius_experts_forward(
        self: torch.nn.Module,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        if _is_compiling():
            return _traced_forward(self, hidden_states, top_k_index, top_k_weights)
        slot = self.__dict__.get(_ATTRIBUTE)
        if slot is None or slot.options is not options:
            slot = _slot_of(self, options)
        result: torch.Tensor = slot.forward(hidden_states, top_k_index, top_k_weights)
        return result

    return moebius_experts_forward


def _traced_forward(
    module: torch.nn.Module,
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
) -> torch.Tensor:
    """The call as one operator, since torch.compile cannot look into the library."""
    slot = getattr(module, _ATTRIBUTE, None)
    if slot is None:
        raise InvalidArgument(
            "experts are compiled before their first call: call moebius.transformers.prepare(model)"
        )
    result: torch.Tensor = _operators.moebius.experts(hidden, topk_ids, topk_weights, slot.handle)
    return result


def _slot_of(module: torch.nn.Module, options: _Options) -> _Slot:
    slot: Optional[_Slot] = module.__dict__.get(_ATTRIBUTE)
    if slot is None or slot.options is not options:
        if slot is not None and slot.is_released:
            raise InvalidArgument(
                f"the parameters of {label(module)} were released, so that they cannot be packed "
                f'for "{options.name}": load the model again'
            )
        slot = _Slot(module, options)
        module.__dict__[_ATTRIBUTE] = slot
    return slot


class _Slot:
    """What belongs to one experts module: its packed weights, and what these were made from.

    The module holds its slot.  Operators call a slot as they call a moebius.Experts."""

    def __init__(self, module: torch.nn.Module, options: _Options) -> None:
        self.options = options
        self.is_released = False
        self.handle = torch_ops.handle(self)
        self._module = weakref.ref(module)
        self._source = ExpertModule(module)
        self._marks: Any = None
        self._experts: Any = None
        self._topk = 0

    def __reduce__(self) -> Any:
        """A copy of the module begins without packed weights: it gets None."""
        if self.is_released:
            raise InvalidArgument(
                f"the parameters of {self._source.label} were released, so that it cannot be copied"
            )
        return type(None), ()

    def forget_marks(self) -> None:
        self._marks = None

    def forward(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        if torch.is_grad_enabled():
            parameters = self._source.parameters
            inputs = (hidden, topk_weights, *parameters)
            if any(x.requires_grad for x in inputs):
                return torch_ops.without_gradients(
                    self, (hidden, topk_ids, topk_weights), parameters
                )
        return self(hidden, topk_ids, topk_weights)

    def __call__(
        self,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        *,
        out: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        if self._marks != self._source.marks() or self._topk != topk_ids.shape[-1]:
            self._follow(topk_ids.shape[-1])
        if topk_weights.shape != topk_ids.shape:
            # Some routers give the weights of all experts.
            topk_weights = topk_weights.gather(-1, topk_ids)
        if topk_weights.dtype is not torch.float32:
            topk_weights = topk_weights.float()
        shape = hidden.shape
        if len(shape) != 2:
            hidden = hidden.reshape(-1, shape[-1])
            topk_ids = topk_ids.reshape(len(hidden), -1)
            topk_weights = topk_weights.reshape(len(hidden), -1)
        dtype = hidden.dtype
        wanted: torch.dtype = self._experts.dtype
        # Autocast gives hidden states of another dtype than that of the weights.
        same = dtype is wanted
        direct = out if same and out is not None and len(shape) == 2 else None
        result: torch.Tensor = self._experts(
            hidden if same else hidden.to(wanted), topk_ids, topk_weights, out=direct
        )
        if not same:
            result = result.to(dtype)
        if len(shape) != 2:
            result = result.view(shape)
        if out is None or direct is not None:
            return result
        return out.copy_(result)

    def _follow(self, topk: int) -> None:
        """Packs the weights, or takes over what has changed."""
        module = self._module()
        assert module is not None  # it is being called
        if self.is_released:
            raise InvalidArgument(
                f"the parameters of {self._source.label} were released after they were packed, and "
                "have changed or moved since: load the model again"
            )
        if self._source.device.type == "cuda" and _cuda.is_current_stream_capturing():
            raise InvalidArgument(
                f"the weights of {self._source.label} are not packed yet, or have changed: call "
                "the model once before a CUDA graph records it"
            )
        marks = self._source.marks()
        if self._experts is not None and self._topk == topk and _only_values(self._marks, marks):
            self._experts.update()
        else:
            self._experts = None  # gives up its memory before the new one takes some
            self._source = ExpertModule(module)
            self._experts = self._make(topk)
            self._topk = topk
        if self.options.releases_parameters:
            self._release(module)
        self._marks = self._source.marks()

    def _make(self, topk: int) -> Any:
        options = self.options
        if options.group is None:
            return LocalExperts(
                self._source,
                topk=topk,
                quant=options.quant,
                lends=not options.releases_parameters,
                implementation=options.implementation,
            )
        return ParallelExperts(
            self._source,
            topk=topk,
            quant=options.quant,
            implementation=options.implementation,
            group=options.group,
            **options.layer_options,
        )

    def _release(self, module: Any) -> None:
        what = f"the parameters of {self._source.label} were released after they were packed"

        def refuse_save(*arguments: Any) -> None:
            raise InvalidArgument(f"{what}, so that there is nothing to save")

        def refuse_load(*arguments: Any) -> None:
            raise InvalidArgument(f"{what}, so that no weights can be loaded into them")

        self._source.empty_parameters()
        self.is_released = True
        module._register_state_dict_hook(refuse_save)
        module._register_load_state_dict_pre_hook(refuse_load)


def _only_values(old: Any, new: Any) -> bool:
    """Whether nothing but versions differs: the same memory has other values."""
    if old is None:
        return True
    return [(m[0], m[1], m[3]) for m in old] == [(m[0], m[1], m[3]) for m in new]
