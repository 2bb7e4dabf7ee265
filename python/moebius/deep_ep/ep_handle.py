# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""EPHandle: what a dispatch of ElasticBuffer returns for its combine."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from ..high_throughput import Dispatched, HighThroughput
from .expand import Expansion


@dataclass
class Route:
    """How rows came, for the calls that follow."""

    transport: HighThroughput
    rows: Dispatched
    num_rows: int
    """The rows that the library has: M, or the room on a GPU without counts on the host."""
    room: int
    """The rows that the caller was given without do_expand."""
    ids: Any
    """[room, K]: local ids, -1 elsewhere."""
    expansion: Optional[Expansion] = None
    """With do_expand, where the rows of selections lie."""


@dataclass
class EPHandle:
    """The route of a dispatch, for combine() and for dispatches along it.

    M rows received, K top-k, R ranks of a node, L local experts."""

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Any
    """[T, K]: a copy of the ids, unless do_handle_copy is off."""
    num_recv_tokens: int
    """M; without counts on the host, the room for rows."""
    num_expanded_tokens: int
    """The rows with do_expand, else 0."""
    num_recv_tokens_per_expert_list: list[int]
    """[L], multiples of expert_alignment; empty without counts on the host."""
    psum_num_recv_tokens_per_scaleup_rank: Any
    """i32 [R]: rows from the ranks 0 to r of each node."""
    psum_num_recv_tokens_per_expert: Any
    """i32 [L]: the sums of the counts up to an expert, which are multiples of expert_alignment.
    With do_expand the last one counts without padding, so that it is the end of its rows."""
    num_unaligned_recv_tokens_per_expert: Optional[Any]
    """With do_expand i32 [L]: the counts; else None."""
    recv_src_metadata: Any
    """i32 [M, 2 + K]: source rank * num_max_tokens_per_rank + source token; the row itself; with
    do_expand the expanded row of each selection, else -1."""
    dst_buffer_slot_idx: Any
    """i32 [T, 0]: rows have no slots in a buffer here."""
    route: Route
    token_metadata_at_forward: None = None
    channel_linked_list: None = None

    def tensors(self) -> tuple[Any, ...]:
        """All tensors that a dispatch has made for the handle."""
        found = [value for value in vars(self).values() if isinstance(value, torch.Tensor)]
        if self.route.expansion is not None:
            found.extend(vars(self.route.expansion).values())
        return tuple(found)
