# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Buffer: dispatch and combine as DeepEP's first version has them."""
from __future__ import annotations

from typing import Any, NoReturn, Optional

import torch

from ..errors import Unsupported
from .comm_stream import CommStreams
from .events import EventHandle, EventOverlap
from .high_throughput_calls import HighThroughputCalls
from .low_latency_calls import LowLatencyCalls
from .ranks import Ranks
from .tensors import cuda, has_fp8


def _device_in_use() -> Any:
    """torch's current GPU, if this process uses one."""
    if cuda.is_available() and cuda.is_initialized():
        return torch.device("cuda", cuda.current_device())
    return torch.device("cpu")


class Buffer(HighThroughputCalls, LowLatencyCalls):
    """Moves rows between the ranks of a group.

    `group` is a ProcessGroup of torch.distributed of any backend, or a moebius.Group; `comm`, in
    its place, is a communicator of mpi4py.  Calls take tensors on the CPU or on this rank's GPU;
    the first call with a kind of tensor makes what that kind needs.

    Memory is made when a call needs it, so num_nvl_bytes and num_rdma_bytes have no effect, and
    neither have low_latency_mode, num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl,
    use_fabric and explicitly_destroy.  With enable_shrink, low-latency calls go on without ranks
    that are missed, on the CPU also without those that never made one: num_rdma_bytes of memory
    are then made at once.

    Calls raise moebius.CommError, whose `peer` is the rank to blame, when a rank does not come
    before the deadline (MOEBIUS_TIMEOUT_MS), and moebius.InvalidArgument for wrong arguments.
    One thread at a time may use a buffer.  Making one is collective."""

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        use_fabric: bool = False,
    ) -> None:
        self._ranks: Optional[Ranks] = Ranks(group, comm)
        self._streams = CommStreams()
        self._masked: set[int] = set()
        self._banks = {}
        self._plans = {}
        self._layout_plans = {}
        self._dispatch_plans = {}
        self._cached_plans = {}
        self._combine_plans = {}
        self.rank = self._ranks.rank
        self.group_size = self._ranks.size
        self.group = comm if group is None else group
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        if enable_shrink and self._ranks.num_nodes == 1:
            self._ranks.on(_device_in_use()).reserve_low_latency(num_rdma_bytes)

    def destroy(self) -> None:
        """Gives up what the buffer holds.  Results stay valid; later calls raise InvalidArgument.
        Doing it twice is valid."""
        ranks, self._ranks = self._ranks, None
        self._banks.clear()
        self._plans.clear()
        self._layout_plans.clear()
        self._dispatch_plans.clear()
        if ranks is not None:
            ranks.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether there are fp8 rows: whether torch has the type."""
        return has_fp8

    @staticmethod
    def capture() -> EventOverlap:
        """An event of what torch's current stream has been given so far."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        """The torch.cuda.Stream that asynchronous calls run on.  Raises Unsupported without a
        GPU."""
        self._open()
        return self._streams.current()

    def get_local_buffer_tensor(
        self,
        dtype: Any,
        size: Optional[Any] = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> NoReturn:
        """Raises Unsupported: there is no such memory."""
        raise Unsupported(
            "get_local_buffer_tensor() is not there: rows arrive in memory that each call makes; "
            "get_next_low_latency_combine_buffer() has that of combine"
        )

    def __repr__(self) -> str:
        state = ", destroyed" if self._ranks is None else ""
        return f"moebius.deep_ep.Buffer(rank={self.rank}, size={self.group_size}{state})"
