# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Placement: on which rank each expert lives.

Wherever a function takes a placement, it takes the ranks of all experts, `ranks[e]` for expert e.
None is the linear placement.  The local experts of a rank are ordered by their ids."""
from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, c_int32, cast, pointer
from typing import Any, Optional

from . import _structs as s
from .errors import InvalidArgument

__all__ = ["experts_of", "linear"]


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


def placement_pointer(ranks: Optional[Sequence[int]]) -> Any:
    """A pointer to the struct that keeps the numbers alive; None for None."""
    if ranks is None:
        return None
    numbers = (c_int32 * max(len(ranks), 1))(*map(int, ranks))
    struct = s.Placement(rank_of=cast(numbers, POINTER(c_int32)), num_experts=len(ranks))
    struct.keep = numbers
    return pointer(struct)
