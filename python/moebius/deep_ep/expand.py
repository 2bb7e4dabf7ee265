# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Rows with one per selection, grouped by local expert.

All is torch's, of fixed sizes, so that no host waits for a GPU.

Letters: M rows, K top-k, L local experts, N expanded rows."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch


@dataclass
class Expansion:
    slots: Any
    """i64 [M, K]: the expanded row of each selection, -1 where the expert is elsewhere."""
    counts: Any
    """i64 [L]: the selections of each expert."""
    begins: Any
    """i64 [L]: the first expanded row of each expert."""
    copy_row: Any
    """i64 [N]: the row of each expanded one; 0 for padding."""
    slot: Any
    """i64 [N]: which of the K selections it is; 0 for padding."""
    is_padding: Any
    """bool [N]."""


def expand(ids: Any, num_local: int, alignment: int, num_expanded: Optional[int]) -> Expansion:
    """ids [M, K] are local, -1 elsewhere.  The rows of an expert begin at a multiple of `alignment`,
    in order of (row, slot).  N is num_expanded, or what is needed, for which the host waits."""
    num_rows, topk = ids.shape
    flat = ids.reshape(-1).to(torch.int64)
    # Selections of experts elsewhere are those of an expert after the last.
    key = torch.where(flat < 0, num_local, flat)
    ordered, order = torch.sort(key, stable=True)
    experts = torch.arange(num_local + 1, device=ids.device)
    first = torch.searchsorted(ordered, experts)
    counts = first[1:] - first[:-1]
    aligned = (counts + alignment - 1) // alignment * alignment
    begins = torch.cumsum(aligned, 0) - aligned
    if num_expanded is None:
        num_expanded = int(aligned.sum())
    # Where each selection goes; the row after the last takes those of experts elsewhere.
    shift = torch.cat([begins - first[:-1], begins.new_zeros(1)])
    place = torch.arange(len(flat), device=ids.device) + shift[ordered]
    place = torch.where(ordered == num_local, num_expanded, place)
    source = flat.new_full((num_expanded + 1,), -1)
    source[place] = order
    source = source[:num_expanded]
    slots = torch.empty_like(flat)
    slots[order] = torch.where(ordered == num_local, -1, place)
    selection = source.clamp(min=0)
    copy_row = torch.div(selection, max(topk, 1), rounding_mode="floor")
    return Expansion(
        slots=slots.view(num_rows, topk),
        counts=counts,
        begins=begins,
        copy_row=copy_row,
        slot=selection - copy_row * topk,
        is_padding=source < 0,
    )


def gather_rows(rows: Any, expansion: Any) -> Any:
    """The expanded rows of [M, ...]; those of padding are 0."""
    if len(rows) == 0:
        return rows.new_zeros((len(expansion.copy_row), *rows.shape[1:]))
    # Types of a byte are moved as bytes: torch has not all operations for fp8.
    moved = rows.view(torch.uint8) if rows.element_size() == 1 else rows
    gathered = moved[expansion.copy_row]
    mask = expansion.is_padding.view(-1, *[1] * (rows.dim() - 1))
    return gathered.masked_fill_(mask, 0).view(rows.dtype)


def sum_rows(expanded: Any, slots: Any, dtype: Any) -> Any:
    """The sums over the selections of each row, in order of slots, in f32: [M, H] of `dtype`."""
    sums = torch.zeros((len(slots), expanded.shape[1]), dtype=torch.float32, device=expanded.device)
    if len(expanded):
        for k in range(slots.shape[1]):
            slot = slots[:, k]
            here = (slot >= 0).unsqueeze(1)
            row = expanded[slot.clamp(min=0)].to(torch.float32)
            sums += torch.where(here, row, row.new_zeros(()))
    return sums.to(dtype)
