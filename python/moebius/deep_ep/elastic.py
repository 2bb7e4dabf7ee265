# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""ElasticBuffer: dispatch and combine as DeepEP's second version has them.

Letters: T tokens of this rank, M rows received, H hidden, K top-k, R ranks, E experts, L local
experts, N rows with one per selection."""
from __future__ import annotations

from typing import Any, NoReturn, Optional

import torch

from ..errors import InvalidArgument, Unsupported
from .comm_stream import CommStreams, Turn
from .config import expect_sms
from .ep_handle import EPHandle, Route
from .events import EventHandle, EventOverlap, event_of
from .expand import Expansion, expand, gather_rows, sum_rows
from .high_throughput_calls import list_counts, send_rows
from .ranks import Ranks, domain_size
from .tensors import cuda, expect_tensor, list_biases, padded, split_scales

_NUM_SMS = 20  # what kernels use unless a call says otherwise
_SIZE_ALIGNMENT = 2 << 20
_SCALE_ALIGNMENT = 4  # rows; of scales whose columns are contiguous
_MOST_QPS = 129
_GROUP = 128  # elements that share a scale


class ElasticBuffer:
    """Moves rows between the ranks of a group.

    `group` is a ProcessGroup of torch.distributed of any backend, or a moebius.Group.  Calls take
    tensors on the CPU or on this rank's GPU.  num_max_tokens_per_rank is what calls take that do
    not name one, and with allow_multiple_reduction off, combine rounds once.  The smaller one of
    the two timeouts is the deadline of all waits.

    Rows always come in order of (source rank, source token), so `deterministic` has no effect, and
    memory is made when a call needs it; num_bytes, num_cpu_bytes, hidden, num_topk,
    use_fp8_dispatch, allow_hybrid_mode, prefer_overlap_with_compute, sl_idx, num_allocated_qps and
    explicitly_destroy have none either.  Errors and threads are as for Buffer.  Making one is
    collective."""

    def __init__(
        self,
        group: Any,
        num_bytes: Optional[int] = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        timeout = min(num_cpu_timeout_secs, num_gpu_timeout_secs)
        ranks = Ranks(group, timeout=timeout)
        self._ranks: Optional[Ranks] = ranks
        self._streams = CommStreams()
        self.group = group
        self.rank_idx, self.num_ranks = ranks.rank, ranks.size
        self.num_bytes = num_bytes or _size_hint(ranks.size, num_max_tokens_per_rank, hidden)
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps = num_allocated_qps or _MOST_QPS
        self.explicitly_destroy = explicitly_destroy
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(
            self.rank_idx, self.num_scaleup_ranks
        )
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    def _open(self) -> Ranks:
        if self._ranks is None:
            raise InvalidArgument("this ElasticBuffer has been destroyed")
        return self._ranks

    def destroy(self) -> None:
        """Gives up what the buffer holds.  Results stay valid; later calls raise InvalidArgument.
        Doing it twice is valid."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """The bytes of the rows that a rank can receive in bf16, a multiple of 2 MB.  The
        constructor takes any number, and memory is made when a call needs it."""
        return _size_hint(group.size(), num_max_tokens_per_rank, hidden)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """The nodes, and the ranks of each."""
        return domain_size(self._open().host)

    def get_logical_domain_size(self) -> tuple[int, int]:
        """The same: combine sums within a node first, always."""
        return domain_size(self._open().host)

    @staticmethod
    def capture() -> EventHandle:
        """An event of what torch's current stream has been given so far."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """The torch.cuda.Stream that asynchronous calls run on.  Raises Unsupported without a
        GPU."""
        self._open()
        return self._streams.current()

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Waits until all ranks are here and the work of their GPUs' streams is done.  Collective.
        The arguments have no effect: hosts wait always."""
        ranks = self._open()
        if cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()
        ranks.host.barrier()

    def get_theoretical_num_sms(
        self, num_experts: int, num_topk: int, *arguments: Any, **options: Any
    ) -> int:
        """The SMs that calls use unless they name a number."""
        return _NUM_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """A number for callers that pass it on; it has no effect."""
        return min(num_sms * 16 + 1, self.num_allocated_qps)

    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        cumulative_local_expert_recv_stats: Any = None,
        num_experts: Optional[int] = None,
        num_max_tokens_per_rank: Optional[int] = None,
        expert_alignment: Optional[int] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: Optional[EPHandle] = None,
        do_handle_copy: bool = True,
        do_cpu_sync: Optional[bool] = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, Optional[Any], Optional[Any], EPHandle, EventOverlap]:
        """Sends tokens to the ranks of their experts.

        x [T, H] of any dtype, or a pair of it and scales [T, G]; topk_idx [T, K] int64 or int32
        global, -1 = masked; topk_weights f32 [T, K].  Gives rows (and scales), ids, weights, the
        handle and an event:
        - rows [M, H] ordered by (source rank, source token), ids [M, K] local ones, -1 elsewhere,
          weights [M, K], 0 elsewhere;
        - with do_expand rows [N, H], one per selection, grouped by local expert, each group filled
          with zeros up to expert_alignment; no ids; weights [N].
        Without do_cpu_sync there is room for all that may come, and no host waits for a GPU.
        With a handle, x (and weights) go along its route, and its ids are given again.
        cumulative_local_expert_recv_stats i32 [L] is added to.  Collective."""
        ranks = self._open()
        x, scales = split_scales(x)
        payloads = [x] if scales is None else [x, scales.contiguous()]
        turn = self._begin(
            x.device,
            (previous_event, previous_event_before_epilogue),
            async_with_compute_stream,
        )
        with _current(turn):
            if handle is not None:
                if topk_idx is not None:
                    raise InvalidArgument("handle and topk_idx are given, expected one of the two")
                self._expect_same(handle, num_experts, num_max_tokens_per_rank, expert_alignment)
                received, weights = self._dispatch_cached(payloads, topk_weights, handle, turn)
            else:
                if num_experts is None or topk_idx is None:
                    raise InvalidArgument(
                        "neither handle nor topk_idx and num_experts are given, expected one of the "
                        "two"
                    )
                room = 0
                if do_cpu_sync is not None and not do_cpu_sync:
                    most = num_max_tokens_per_rank or self.num_max_tokens_per_rank
                    room = max(1, most * ranks.size)
                received, weights, handle = self._dispatch(
                    payloads,
                    expect_tensor(topk_idx, "topk_idx", 2),
                    topk_weights,
                    num_experts,
                    num_max_tokens_per_rank or self.num_max_tokens_per_rank,
                    expert_alignment or 1,
                    num_sms,
                    room,
                    do_expand,
                    turn,
                )
                handle.topk_idx = topk_idx.clone() if do_handle_copy else topk_idx
            ids = handle.route.ids
            if cumulative_local_expert_recv_stats is not None:
                counts = _counts(ids, len(handle.psum_num_recv_tokens_per_expert))
                cumulative_local_expert_recv_stats += counts.to(torch.int32)
            if scales is not None and use_tma_aligned_col_major_sf:
                received[1] = _in_columns(received[1])
        made = (*received, weights, ids, *handle.tensors())
        event = self._streams.end(turn, (*payloads, topk_idx, topk_weights), made_there=made)
        rows = received[0] if scales is None else (received[0], received[1])
        return rows, None if handle.do_expand else ids, weights, handle, event

    def _begin(self, device: Any, previous: tuple[Any, ...], is_async: bool) -> Turn:
        first, *more = previous
        turn = self._streams.begin(device, first, is_async)
        if turn.stream is not None:
            for event in map(event_of, more):
                turn.wait(event)
        return turn

    @staticmethod
    def _expect_same(handle: EPHandle, *given: Optional[int]) -> None:
        names = ("num_experts", "num_max_tokens_per_rank", "expert_alignment")
        for name, value in zip(names, given):
            if value is not None and value != getattr(handle, name):
                raise InvalidArgument(
                    f"{name} is {value}, expected {getattr(handle, name)} as in the handle"
                )

    def _dispatch(
        self,
        payloads: list[Any],
        topk_idx: Any,
        topk_weights: Any,
        num_experts: int,
        max_tokens: int,
        alignment: int,
        num_sms: int,
        room: int,
        do_expand: bool,
        turn: Turn,
    ) -> tuple[list[Any], Any, EPHandle]:
        ranks, device = self._open(), payloads[0].device
        transport = ranks.on(device).high_throughput(num_experts)
        if num_sms and device.type == "cuda":
            expect_sms(num_sms)
            transport.set_sms(num_sms, num_sms)
        on_gpu = device.type == "cuda"
        index = self.rank_idx * max_tokens + torch.arange(
            len(topk_idx), dtype=torch.int32, device=device
        )
        rows, received, ids, weights = send_rows(
            transport,
            [*payloads, index.view(-1, 1)],
            topk_idx.contiguous(),
            topk_weights,
            room,
            turn,
            expert_alignment=alignment,
        )
        num_rows = room if room and on_gpu else len(rows.x)
        route = Route(transport, rows, num_rows, room or num_rows, ids)
        num_local = ranks.num_local_experts(num_experts)
        counts = _counts(ids, num_local)
        aligned = (counts + alignment - 1) // alignment * alignment
        ends = torch.cumsum(aligned, 0)
        metadata = _metadata(received.pop(), ids)
        num_expanded = 0
        if do_expand:
            most = None
            if room:
                most = room * min(topk_idx.shape[1], num_local) + (alignment - 1) * num_local
                most = -(-most // alignment) * alignment
            expansion = route.expansion = expand(ids, num_local, alignment, most)
            received, weights = _expanded(received, weights, expansion)
            num_expanded = len(expansion.copy_row)
            metadata[:, 2:] = expansion.slots
            ends = expansion.begins + counts
        prefix = rows.rank_prefix[:, ranks.rank]
        per_rank = torch.diff(prefix, prepend=prefix.new_zeros(1))
        per_rank = per_rank.view(-1, self.num_scaleup_ranks).sum(0)
        handle = EPHandle(
            do_expand=do_expand,
            num_experts=num_experts,
            expert_alignment=alignment,
            num_max_tokens_per_rank=max_tokens,
            num_sms=num_sms or _NUM_SMS,
            topk_idx=topk_idx,
            num_recv_tokens=route.room,
            num_expanded_tokens=num_expanded,
            num_recv_tokens_per_expert_list=[] if room else list_counts(rows),
            psum_num_recv_tokens_per_scaleup_rank=torch.cumsum(per_rank, 0).to(torch.int32),
            psum_num_recv_tokens_per_expert=ends.to(torch.int32),
            num_unaligned_recv_tokens_per_expert=counts.to(torch.int32) if do_expand else None,
            recv_src_metadata=metadata,
            dst_buffer_slot_idx=torch.empty((len(topk_idx), 0), dtype=torch.int32, device=device),
            route=route,
        )
        return received, weights, handle

    @staticmethod
    def _dispatch_cached(
        payloads: list[Any], topk_weights: Any, handle: EPHandle, turn: Turn
    ) -> tuple[list[Any], Any]:
        route = handle.route
        given = payloads if topk_weights is None else [*payloads, topk_weights.contiguous()]
        rows = route.transport.dispatch_cached(given, route.rows, stream=turn.stream)
        turn.adopt(rows)
        received = [padded(payload, route.room) for payload in rows.payloads]
        weights = None
        if topk_weights is not None:
            weights = received.pop().masked_fill(route.ids < 0, 0)
        if route.expansion is not None:
            return _expanded(received, weights, route.expansion)
        return received, weights

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], EventOverlap]:
        """Sums the rows of each token, without weights: x [M, H], or [N, H] after do_expand, bf16,
        f16 or f32 -> [T, H].

        topk_weights f32 [M, K], or [N], are summed beside them.  A bias [T, H], or two, are added
        once.  The rows of a token on one rank are summed in order of slots and rounded, then those
        of ranks; with allow_multiple_reduction off, nothing is rounded between.  Gives the sums,
        those of the weights or None, and an event.  Collective."""
        self._open()
        if not isinstance(handle, EPHandle):
            raise InvalidArgument(f"handle is a {type(handle).__name__}, expected an EPHandle")
        expect_tensor(x, "x", 2)
        route, expansion = handle.route, handle.route.expansion
        expected = handle.num_expanded_tokens if handle.do_expand else route.room
        if len(x) != expected:
            raise InvalidArgument(f"x has {len(x)} rows, expected {expected} as dispatch has given")
        biases = list_biases(bias)
        turn = self._begin(
            x.device,
            (previous_event, previous_event_before_epilogue),
            async_with_compute_stream,
        )
        with _current(turn):
            rows, weights, dtype = x, topk_weights, x.dtype
            if expansion is not None:
                wide = dtype if self.allow_multiple_reduction else torch.float32
                rows = sum_rows(x, expansion.slots, wide)
                if weights is not None:
                    weights = _folded(weights, expansion.slots)
            sums = route.transport.combine(
                rows[: route.num_rows].contiguous(),
                route.rows,
                topk_weights=None if weights is None else weights[: route.num_rows].contiguous(),
                bias=[part.to(rows.dtype) for part in biases],
                stream=turn.stream,
            )
            turn.adopt(sums)
            found = sums.x.to(dtype), sums.topk_weights
        return (*found, self._streams.end(turn, (x, topk_weights, *biases), made_there=found))

    @staticmethod
    def _refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise Unsupported(
            "engram, pp and agrs calls of ElasticBuffer are not there: this package has dispatch "
            "and combine"
        )

    engram_write = engram_fetch = pp_set_config = pp_send = pp_recv = _refuse
    create_agrs_session = destroy_agrs_session = agrs_new_session = agrs_set_config = _refuse
    agrs_get_inplace_tensor = all_gather = _refuse
    get_agrs_buffer_size_hint = get_agrs_num_max_session_bytes = _refuse
    get_engram_storage_size_hint = get_pp_buffer_size_hint = _refuse

    def __repr__(self) -> str:
        state = ", destroyed" if self._ranks is None else ""
        return f"moebius.deep_ep.ElasticBuffer(rank={self.rank_idx}, size={self.num_ranks}{state})"


def _current(turn: Turn) -> Any:
    """torch's operations in the body run where the call runs; None on the CPU."""
    return cuda.stream(turn.stream)


def _size_hint(num_ranks: int, max_tokens: int, hidden: int) -> int:
    num_bytes = num_ranks * max_tokens * hidden * 2
    return -(-num_bytes // _SIZE_ALIGNMENT) * _SIZE_ALIGNMENT


def _counts(ids: Any, num_local: int) -> Any:
    """i64 [L]: the selections of each local expert.  No host waits."""
    experts = torch.arange(num_local, device=ids.device)
    return (ids.reshape(-1, 1) == experts).sum(0)


def _metadata(index: Any, ids: Any) -> Any:
    """Where the rows come from; -1 for rows that are not there, which have no ids."""
    metadata = ids.new_full((len(ids), 2 + ids.shape[1]), -1, dtype=torch.int32)
    metadata[:, 0] = index.view(-1).masked_fill((ids < 0).all(1), -1)
    metadata[:, 1] = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
    return metadata


def _expanded(received: list[Any], weights: Any, expansion: Expansion) -> tuple[list[Any], Any]:
    wide = [gather_rows(rows, expansion) for rows in received]
    if weights is None:
        return wide, None
    if len(weights) == 0:
        return wide, weights.new_zeros(len(expansion.copy_row))
    found = weights[expansion.copy_row, expansion.slot]
    return wide, found.masked_fill_(expansion.is_padding, 0)


def _folded(weights: Any, slots: Any) -> Any:
    """The weights [N] of expanded rows as [M, K], 0 elsewhere."""
    if len(weights) == 0:
        return torch.zeros(slots.shape, dtype=torch.float32, device=slots.device)
    return weights[slots.clamp(min=0)].masked_fill_(slots < 0, 0)


def _in_columns(scales: Any) -> Any:
    """The same scales [rows, G] with the elements of a column next to each other."""
    room = -(-len(scales) // _SCALE_ALIGNMENT) * _SCALE_ALIGNMENT
    wide = torch.empty_strided(
        scales.shape, (1, max(room, 1)), dtype=scales.dtype, device=scales.device
    )
    wide.copy_(scales)
    return wide
