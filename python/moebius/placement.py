# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Placement: on which rank each expert lives, and how many replicas it should have.

Wherever a function takes a placement, it takes the ranks of all experts, `ranks[e]` for expert e.
None is the linear placement.  The local experts of a rank are ordered by their ids."""
from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_int64, cast, pointer
from dataclasses import dataclass, field
from typing import Any, Optional

from . import _structs as s
from ._library import lib
from ._values import integers
from .errors import InvalidArgument, check

__all__ = ["Rebalanced", "experts_of", "linear", "rebalance"]


def linear(num_experts: int, num_ranks: int) -> list[int]:
    """The rank of each expert: neighbours live together, and the first E % R ranks own one more."""
    if num_experts < 1 or num_ranks < 1:
        raise InvalidArgument(
            f"num_experts is {num_experts} and num_ranks is {num_ranks}, expected at least 1"
        )
    each, more = divmod(num_experts, num_ranks)
    return [rank for rank in range(num_ranks) for _ in range(each + (rank < more))]


def experts_of(rank: int, ranks: Sequence[int]) -> list[int]:
    """The experts that live on a rank, in the order of its local experts."""
    return [expert for expert, owner in enumerate(ranks) if owner == rank]


@dataclass(frozen=True)
class Rebalanced:
    """The physical experts of each layer: slots that hold a logical expert, an id of the model.

    All are numpy arrays of int64.  E logical experts, P physical ones, X replicas at most."""

    physical_to_logical: Any
    """[layers, P]: the expert in each slot.  Slots are numbered rank by rank, as linear(P, R)."""
    logical_to_physical: Any
    """[layers, E, X]: the slots of each expert, -1 behind the last one."""
    replica_count: Any
    """[layers, E]: how many slots each expert has, at least 1."""
    _tables: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def physical_ids(self, topk_ids: Any, layer: int = 0) -> Any:
        """The slots of topk_ids [T, K], numpy or torch, with which transports and layers of P experts
        are called; -1 stays.

        The selection at position t * K + k takes replica (t * K + k) % replica_count, so every rank
        can tell which.  Slots and weights are those of one layer.  The first call with a GPU copies
        the tables there, so make it before a CUDA graph is recorded."""
        import numpy as np

        counts, slots = self.replica_count[layer], self.logical_to_physical[layer]
        if not hasattr(topk_ids, "detach"):
            ids = np.asarray(topk_ids)
            experts = np.maximum(ids, 0)
            replicas = np.arange(ids.size).reshape(ids.shape) % counts[experts]
            return np.where(ids < 0, -1, slots[experts, replicas]).astype(ids.dtype)
        import torch

        key = layer, topk_ids.device
        if key not in self._tables:
            tables = (torch.from_numpy(table.copy()) for table in (counts, slots))
            self._tables[key] = [table.to(topk_ids.device) for table in tables]
        counts, slots = self._tables[key]
        known = topk_ids.clamp(min=0).long()
        positions = torch.arange(known.numel(), device=known.device).view(known.shape)
        chosen = slots[known, positions % counts[known]].to(topk_ids.dtype)
        return chosen.masked_fill(topk_ids < 0, -1)


def rebalance(
    load: Any,
    num_physical: int,
    *,
    num_groups: int = 1,
    num_nodes: int = 1,
    num_ranks: int = 1,
    policy: str = "deepseek",
) -> Rebalanced:
    """Says which experts should have replicas, and where all should live, by their load.

    load [layers, E] is what each logical expert has had to do: numpy, torch or nested lists of
    numbers that are finite and at least 0.  There are num_physical slots, at least E.

    The policy "deepseek" gives what DeepSeek's EPLB gives.  Replicas go to the expert with the
    largest load per replica, and slots are packed into ranks, heaviest first, each into the lightest
    rank with room.  Where num_nodes divides num_groups, num_physical and num_ranks, and num_groups
    divides E, groups of neighbouring experts are packed into nodes first, so that each stays on
    one; otherwise the whole is one node.  Slots need not be a multiple of ranks.

    Raises InvalidArgument for other values.  Needs numpy."""
    import numpy as np

    if hasattr(load, "detach"):  # a torch tensor, maybe of a GPU or of a type that numpy lacks
        load = load.detach().cpu().double().numpy()
    try:
        exact = np.ascontiguousarray(load, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"load is no array of numbers: {error}") from None
    if exact.ndim != 2:
        raise InvalidArgument(f"load has {exact.ndim} dimensions, expected 2: [layers, experts]")
    largest = np.finfo(np.float32).max
    for layer, expert in np.argwhere(np.isfinite(exact) & (np.abs(exact) > largest)):
        raise InvalidArgument(
            f"the load of expert {expert} in layer {layer} is {exact[layer, expert]}, "
            f"expected 0 to {largest}"
        )
    loads = exact.astype(np.float32)
    num_layers, num_experts = exact.shape
    options = s.RebalanceOptions(
        num_physical=num_physical,
        num_groups=num_groups,
        num_nodes=num_nodes,
        num_ranks=num_ranks,
        policy=policy,
    )
    sizes = (num_physical, num_groups, num_nodes, num_ranks)
    if min(sizes) < 1:  # 0 is a default of the library's
        raise InvalidArgument(
            f"num_physical, num_groups, num_nodes and num_ranks are {', '.join(map(str, sizes))}, "
            "expected at least 1"
        )
    # No memory is taken for sizes that the library refuses.
    num_slots = num_physical if num_experts <= num_physical <= 1 << 20 else 0
    slots = np.empty((num_layers, num_slots), np.int64)
    indices = np.empty_like(slots)
    counts = np.empty((num_layers, num_experts), np.int64)

    def at(array: Any, c_type: Any = c_int64) -> Any:
        return cast(array.ctypes.data, POINTER(c_type))

    places = s.Rebalanced(
        physical_to_logical=at(slots), replica_index=at(indices), replica_count=at(counts)
    )
    check(lib.rebalance(at(loads, c_float), num_layers, num_experts, options, places))
    most = int(counts.max()) if counts.size else 1
    replicas = np.full((num_layers, num_experts, most), -1, np.int64)
    layers = np.arange(num_layers)[:, None]
    replicas[layers, slots, indices] = np.arange(num_slots)
    return Rebalanced(slots, replicas, counts)


def placement_pointer(ranks: Optional[Sequence[int]]) -> Any:
    """A pointer to the struct that keeps the numbers alive; None for None."""
    if ranks is None:
        return None
    numbers = integers(ranks, c_int32, "placement")
    struct = s.Placement(rank_of=cast(numbers, POINTER(c_int32)), num_experts=len(ranks))
    struct.keep = numbers
    return pointer(struct)
