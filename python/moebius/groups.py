# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Groups: one rank's handle on its peers."""
from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_int32, c_void_p, create_string_buffer, memmove, string_at
from types import TracebackType
from typing import Any, Optional

from . import _structs as s
from ._callbacks import guarded, watch_signals
from ._handles import Handle
from ._library import lib
from ._values import integer
from .errors import InvalidArgument, check, create
from .tensors import device_name

__all__ = ["Group"]


def _options(timeout: Optional[float], ranks_per_node: int) -> s.GroupOptions:
    return s.GroupOptions(ranks_per_node=ranks_per_node, timeout_ms=_milliseconds(timeout))


def _milliseconds(timeout: Optional[float]) -> int:
    if timeout is None:
        return 0
    if not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout is {timeout} s, expected a finite number of more than 0")
    return max(1, round(timeout * 1000))


class Group(Handle):
    """One rank's handle on its peers, made by one of the functions below.

    Calls marked collective are made by every rank in the same order.  Every wait ends at the
    group's timeout, and at once when a peer has failed, with CommError; the group is then broken.
    KeyboardInterrupt ends a wait of the main thread, too.  One thread at a time may use a group
    and what is made from it.

    As a context manager a group is closed at the end; where the body raises, the others are told
    so (abort)."""

    _destroy = lib.group_destroy

    def __init__(self, handle: Optional[int]) -> None:
        """For the functions below."""
        watch_signals()
        self._handle = handle
        info = self._info()
        self.rank: int = info.rank
        """This rank, from 0."""
        self.size: int = info.size
        """The number of ranks."""

    @staticmethod
    def threads(
        size: int, *, timeout: Optional[float] = None, ranks_per_node: int = 0
    ) -> list[Group]:
        """Groups for threads of the caller's: element r is for the thread that is rank r.

        `timeout` in seconds; None is the setting MOEBIUS_TIMEOUT_MS.  `ranks_per_node` pretends
        nodes; 0 stands for one."""
        size = integer(size, c_int32, "size")
        # No memory is taken for sizes that the library refuses.
        handles = (c_void_p * (size if 1 <= size <= 1 << 16 else 1))()
        check(lib.make_thread_groups(size, _options(timeout, ranks_per_node), handles))
        return [Group(handle) for handle in handles]

    @staticmethod
    def processes(
        rank: int,
        size: int,
        all_gather: Callable[[bytes], Sequence[bytes]],
        *,
        timeout: Optional[float] = None,
        ranks_per_node: int = 0,
    ) -> Group:
        """A group of processes of one machine that were started in whatever way.

        `all_gather(data)` gives the bytes of all ranks, in their order; it is called once, in this
        call, with some hundred bytes.  What it raises is raised here.  Collective."""

        def gather(user: Any, data: int, num_bytes: int, out: int) -> None:
            parts = all_gather(string_at(data, num_bytes))
            if len(parts) != size or any(len(part) != num_bytes for part in parts):
                raise InvalidArgument(
                    f"all_gather gave parts of {[len(part) for part in parts]} bytes, "
                    f"expected {size} of {num_bytes}"
                )
            memmove(out, b"".join(map(bytes, parts)), size * num_bytes)

        function = s.AllGatherFunction(guarded(gather))
        options = _options(timeout, ranks_per_node)
        return Group(create(lib.make_process_group, rank, size, function, None, options))

    @staticmethod
    def torch(
        process_group: Any = None, *, timeout: Optional[float] = None, ranks_per_node: int = 0
    ) -> Group:
        """A group of the processes of a torch.distributed process group of any backend, which must
        be processes of one machine; None is the default group.  It is used in this call only.
        Collective."""
        dist: Any = importlib.import_module("torch.distributed")
        if not dist.is_initialized():
            raise InvalidArgument("torch.distributed is not initialised: call init_process_group()")
        rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if rank < 0:
            raise InvalidArgument("this process is not in the process group")

        def all_gather(data: bytes) -> list[bytes]:
            parts: list[Any] = [None] * size
            dist.all_gather_object(parts, data, group=process_group)
            return parts

        return Group.processes(
            rank, size, all_gather, timeout=timeout, ranks_per_node=ranks_per_node
        )

    @staticmethod
    def mpi(
        comm: Any = None, *, timeout: Optional[float] = None, ranks_per_node: int = 0
    ) -> Group:
        """A group of the processes of an MPI communicator: one of mpi4py, the address of an
        MPI_Comm as a number, or None for MPI_COMM_WORLD.  `ranks_per_node` 0 takes the machines as
        they are.  Collective.  Raises Unsupported in a build without MPI."""
        if comm is not None and not isinstance(comm, int):
            mpi: Any = sys.modules.get("mpi4py.MPI")
            if not isinstance(comm, getattr(mpi, "Comm", ())):
                raise InvalidArgument(f"comm is {comm!r}, expected one of mpi4py or an address")
            comm = mpi._addressof(comm)
        return Group(create(lib.make_mpi_group, comm, _options(timeout, ranks_per_node)))

    def cuda(self, index: int) -> Group:
        """The same ranks with a GPU for each; several may share one.  This handle is used up, and
        stays as it is when the call raises.  Collective."""
        return self._become(create(lib.make_cuda_group, self._get(), index))

    def nccl(self, index: int, comm: Optional[int] = None) -> Group:
        """The same ranks over NCCL, with a GPU for each.  `comm` is an ncclComm_t of these ranks as
        a number, which stays the caller's; None: the group makes its own.  This handle is used up,
        and stays as it is when the call raises.  Collective."""
        return self._become(create(lib.make_nccl_group, self._get(), index, comm))

    @staticmethod
    def from_nccl(comm: int, *, timeout: Optional[float] = None) -> Group:
        """A group over NCCL for a caller that has nothing but an ncclComm_t, whose ranks are
        processes of one machine.  Collective."""
        return Group(create(lib.make_nccl_group_of, comm, _milliseconds(timeout)))

    def _become(self, handle: Optional[int]) -> Group:
        used, self._handle = self._handle, None
        self._destroy(used)
        return Group(handle)

    def _info(self) -> s.GroupInfo:
        info = s.GroupInfo()
        check(lib.group_get_info(self._get(), byref(info)))
        return info

    @property
    def node(self) -> int:
        """The node of this rank."""
        node: int = self._info().node
        return node

    @property
    def num_nodes(self) -> int:
        """The nodes of the group."""
        num_nodes: int = self._info().num_nodes
        return num_nodes

    @property
    def local_rank(self) -> int:
        """This rank within its node."""
        local_rank: int = self._info().local_rank
        return local_rank

    @property
    def ranks_on_node(self) -> int:
        """The ranks of this node."""
        ranks_on_node: int = self._info().ranks_on_node
        return ranks_on_node

    @property
    def device(self) -> str:
        """Where rows travel: "cpu" or "cuda:N"."""
        return device_name(self._info().device)

    @property
    def timeout(self) -> float:
        """The deadline of waits in seconds."""
        return float(self._info().timeout_ms) / 1000

    @property
    def waited(self) -> float:
        """The seconds that this rank has waited in all calls so far."""
        return float(self._info().waited_ns) / 1e9

    @property
    def bytes_sent(self) -> int:
        """The bytes sent to other ranks in all calls so far."""
        bytes_sent: int = self._info().bytes_sent
        return bytes_sent

    @property
    def kind(self) -> str:
        """ "threads", "processes", "mpi", "peer" (GPUs) or "nccl"."""
        kind: str = self._info().name.decode()
        return kind

    def barrier(self) -> None:
        """Waits until all ranks are here.  Collective."""
        check(lib.group_barrier(self._get()))

    def all_gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, which give equally many.  Collective."""
        size = len(data)
        out = (c_char * max(size * self.size, 1))()
        check(lib.group_all_gather(self._get(), create_string_buffer(data, size), size, out))
        gathered = bytes(out)
        return [gathered[rank * size : (rank + 1) * size] for rank in range(self.size)]

    def split(self, color: int, key: int = 0) -> Optional[Group]:
        """A group of the ranks that give the same color, ordered by key, then by rank; None for a
        negative color.  This group stays usable, and the part may outlive it.  Collective."""
        part = create(lib.group_split, self._get(), color, key)
        return None if part is None else Group(part)

    def abort(self, why: str) -> None:
        """Tells every peer that this rank cannot go on; their waits end and name it."""
        check(lib.group_abort(self._get(), why))

    def set_dead(self, rank: int, is_dead: bool = True) -> None:
        """Goes on without a rank, or takes it back; every live rank makes the same call."""
        check(lib.group_set_dead(self._get(), rank, is_dead))

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._handle is None:
            return
        if error is not None:
            why = (str(error) or type(error).__name__).encode(errors="replace")
            lib.group_abort(self._handle, why.replace(b"\0", b" "))
        self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return f"moebius.Group(rank={self.rank}, size={self.size}, closed)"
        return f"moebius.Group({self.kind!r}, rank={self.rank}, size={self.size})"
