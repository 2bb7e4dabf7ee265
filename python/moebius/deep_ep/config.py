# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Config: what a call may use."""
from __future__ import annotations

from ..errors import InvalidArgument

# What a row brings beside hidden states, at most: ids, weights and scales, and where it comes from.
_MOST_TOPK = 128
_MOST_SCALES = 128
_BESIDE_ROW = _MOST_TOPK * (8 + 4) + _MOST_SCALES * 4 + 8
_ALIGNMENT = 128


class Config:
    """How many SMs the kernels of a call use.  The four sizes of chunks have no effect here: rows
    go where they belong in one step.

    Raises InvalidArgument for an odd or negative num_sms, and for chunks that are not positive."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        expect_sms(num_sms)
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens
        for name, value in vars(self).items():
            if name != "num_sms" and value <= 0:
                raise InvalidArgument(f"{name} is {value}, expected more than 0")

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """The bytes of the chunks that this configuration stands for.  Buffer takes any number,
        and makes memory when a call needs it."""
        rows = max(self.num_sms // 2, 1) * num_ranks * self.num_max_nvl_chunked_recv_tokens
        return _rounded(rows * (hidden_bytes + _BESIDE_ROW))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: rows that cross to another node need no memory of their own."""
        return 0

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


def expect_sms(num_sms: int) -> None:
    """Raises InvalidArgument unless a kernel can use so many SMs; 0: the library chooses."""
    if num_sms < 0 or num_sms % 2:
        raise InvalidArgument(f"num_sms is {num_sms}, expected an even number")


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
