# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a buffer, and the transports that move rows between them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Tuple

from ..errors import InvalidArgument, Unsupported
from ..groups import Group
from ..high_throughput import HighThroughput
from ..low_latency import LowLatency
from ..transports import Transports
from .tensors import inference_mode


def make_group(group: Any, comm: Any, timeout: Optional[float]) -> Group:
    """A group on the host of a torch ProcessGroup, a moebius.Group, or a communicator of mpi4py.
    Collective."""
    if group is not None and comm is not None:
        raise InvalidArgument("group and comm are both given, expected one of the two")
    if isinstance(group, Group):
        part = group.split(0, group.rank)
        assert part is not None
        return part
    if group is not None:
        with inference_mode(False):  # its collectives write to tensors
            return Group.torch(group, timeout=timeout)
    if comm is None:
        raise InvalidArgument("neither group nor comm is given, expected one of the two")
    if type(comm).__module__.partition(".")[0] == "mpi4py":
        try:
            return Group.mpi(comm, timeout=timeout)
        except Unsupported:  # this build is without MPI
            pass
    return Group.processes(comm.Get_rank(), comm.Get_size(), comm.allgather, timeout=timeout)


# Experts, hidden, top-k, tokens of a rank at most, dtype of rows.
LowLatencyKind = Tuple[int, int, int, int, Any]


class DeviceRanks:
    """The ranks with a device each, and the transports between these devices."""

    def __init__(self, group: Group, device: Any) -> None:
        self.group = group
        self.device = device
        self._transports = Transports(group)
        self._high_throughput: dict[int, HighThroughput] = {}
        self._low_latency: dict[LowLatencyKind, LowLatency] = {}

    def high_throughput(self, num_experts: int) -> HighThroughput:
        """The transport among so many experts.  Collective when it is new."""
        made = self._high_throughput.get(num_experts)
        if made is None:
            made = HighThroughput(self.group, num_experts, transports=self._transports)
            self._high_throughput[num_experts] = made
        return made

    def find_low_latency(self, kind: LowLatencyKind) -> Optional[LowLatency]:
        """The transport for such calls, if it has been made."""
        return self._low_latency.get(kind)

    def make_low_latency(self, kind: LowLatencyKind, **options: Any) -> LowLatency:
        """Collective, unless there is reserved memory for it."""
        num_experts, hidden, topk, max_tokens, dtype = kind
        made = self._low_latency[kind] = LowLatency(
            self.group,
            num_experts,
            hidden=hidden,
            topk=topk,
            max_tokens=max_tokens,
            dtype=dtype,
            transports=self._transports,
            **options,
        )
        return made

    def low_latency_kinds(
        self, num_experts: int, hidden: int, max_tokens: int
    ) -> list[tuple[int, Any]]:
        """The top-k and dtypes of the transports for such calls."""
        wanted = (num_experts, hidden, max_tokens)
        return [
            (topk, dtype)
            for experts, size, topk, room, dtype in self._low_latency
            if (experts, size, room) == wanted
        ]

    def reserve_low_latency(self, nbytes: int) -> None:
        """Makes memory for transports ahead, so that making them later needs no other rank.
        Collective."""
        self._transports.reserve_low_latency(nbytes)

    @property
    def all_low_latency(self) -> list[LowLatency]:
        return list(self._low_latency.values())

    def close(self) -> None:
        for transport in (*self._low_latency.values(), *self._high_throughput.values()):
            transport.close()
        self._transports.close()
        self.group.close()


class Ranks:
    """The ranks on the host, and with GPUs once a tensor on one has come."""

    def __init__(self, group: Any, comm: Any = None, timeout: Optional[float] = None) -> None:
        self.host = make_group(group, comm, timeout)
        self.rank, self.size = self.host.rank, self.host.size
        self.num_nodes, self.ranks_on_node = self.host.num_nodes, self.host.ranks_on_node
        self._of: dict[Any, DeviceRanks] = {}

    def on(self, device: Any) -> DeviceRanks:
        """The ranks with devices of this kind, of which `device` is this rank's.  Collective when
        it is new."""
        made = self._of.get(device)
        if made is None:
            made = self._of[device] = DeviceRanks(self._group_of(device), device)
        return made

    def _group_of(self, device: Any) -> Group:
        part = self.host.split(0, self.rank)
        assert part is not None
        if device.type == "cpu":
            return part
        if device.type == "cuda":
            return part.cuda(device.index)
        raise Unsupported(f"a tensor is on {device}, expected cpu or cuda")

    @property
    def devices(self) -> list[DeviceRanks]:
        return list(self._of.values())

    def num_local_experts(self, num_experts: int) -> int:
        """The experts of this rank: the first ranks own one more where they cannot own equally
        many."""
        return num_experts // self.size + (self.rank < num_experts % self.size)

    def close(self) -> None:
        for made in self._of.values():
            made.close()
        self.host.close()


def _with_host_group(group: Any, read: Callable[[Group], tuple[int, int]]) -> tuple[int, int]:
    host = make_group(group, None, None)
    try:
        return read(host)
    finally:
        host.close()


def domain_size(group: Group) -> tuple[int, int]:
    """The nodes of a group, and the ranks of each."""
    return group.num_nodes, group.size // group.num_nodes


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """The nodes of a process group, and the ranks of each.  Collective."""
    return _with_host_group(group, domain_size)


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """The same: sums are made within a node first, always.  Collective."""
    return _with_host_group(group, domain_size)
