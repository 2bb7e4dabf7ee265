# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of Buffer for low latency.

Letters: T tokens of this rank, H hidden, K top-k, R ranks, E experts, L local experts, M the most
tokens of a rank; an expert has room for M * R rows."""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Optional

import torch

from .._structs import CODING_LOGFMT10, CODING_NONE
from .._torch import contiguous
from ..errors import InvalidArgument
from ..low_latency import LowLatency
from .comm_stream import CommStreams
from .events import EventOverlap, NoEvent
from .handles import LowLatencyHandle, expect_low_latency_handle
from .low_latency_plans import Banks, Cast, Plan
from .ranks import Ranks
from .tensors import cuda, expect_tensor

# Top-k that size hints reckon with; memory is made when the first call tells.
_MOST_TOPK = 16

Hook = Callable[[], None]


class LowLatencyCalls:
    """Mixed into Buffer."""

    enable_shrink: bool
    _ranks: Optional[Ranks]
    _streams: CommStreams
    _masked: set[int]
    _banks: dict[LowLatency, Banks]
    _plans: dict[Any, Plan]
    _open: Callable[[], Ranks]

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """The bytes of memory that peers write to, for bf16.  Buffer takes any number, and makes
        memory when a call needs it."""
        return LowLatency.size_hint(
            num_ranks,
            num_experts,
            hidden=hidden,
            topk=min(_MOST_TOPK, num_experts),
            max_tokens=num_max_dispatch_tokens_per_rank,
            device="cuda" if cuda.is_available() else "cpu",
        )

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Nothing needs to be cleaned.  With enable_shrink, ranks that have gone are found out.
        Collective then."""
        ranks = self._open()
        max_tokens = num_max_dispatch_tokens_per_rank
        for made in ranks.devices if self.enable_shrink else []:
            for topk, dtype in made.low_latency_kinds(num_experts, hidden, max_tokens):
                nothing = torch.empty((0, hidden), dtype=dtype, device=made.device)
                no_ids = torch.empty((0, topk), dtype=torch.int64, device=made.device)
                self.low_latency_dispatch(nothing, no_ids, max_tokens, num_experts, use_fp8=False)

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Any, LowLatencyHandle, EventOverlap, Optional[Hook]]:
        """Sends x [T, H] bf16 to the experts topk_idx [T, K] int64 or int32, -1 = masked.

        Gives
        - rows [L, M * R, H], at the front of each expert those that came, ordered by (source rank,
          source token); with use_fp8 e4m3 and scales f32 [L, M * R, H / 128], with use_ue8m0 the
          exponents of four in an int32 [L, M * R, ceil(H / 512)]; the scales of a column of rows
          are neighbours in memory.  A torch without float8_e4m3fn gets uint8;
        - i32 [L] counts; the handle; an event; a hook, or None.
        With return_recv_hook, the tensors are complete when the hook has been called.
        The stats, i32 [L] rows and i64 [R] microseconds of waiting, are added to.
        A handle is good until the dispatch after the next.  Collective."""
        if async_finish and return_recv_hook:
            _refuse_both()
        max_tokens = num_max_dispatch_tokens_per_rank
        key: tuple[Any, ...] = ()
        plan = None
        # Whatever refuses arguments other than their numbers of tokens is done when a plan is made.
        try:
            num_tokens, hidden = x.shape
            num_routed, topk = topk_idx.shape
            key = (
                hidden,
                topk,
                max_tokens,
                num_experts,
                x.dtype,
                topk_idx.dtype,
                x.device,
                topk_idx.get_device(),
                use_fp8,
                round_scale,
                use_ue8m0,
            )
            plan = self._plans.get(key)
        except (AttributeError, TypeError, ValueError):
            pass
        if plan is None:
            cast = Cast(use_fp8, round_scale, use_ue8m0)
            plan = self._make_plan(key, x, topk_idx, max_tokens, num_experts, cast)
            num_tokens, num_routed = x.shape[0], topk_idx.shape[0]
        banks = plan.banks
        if banks.before_last() is not None:
            banks.make_room()
        x, ids = contiguous(x), contiguous(topk_idx)
        turn = None if async_finish else plan.lane.plain_turn()
        if turn is None:
            turn = self._streams.begin(plan.device, None, async_finish)
        stream, here = turn.own, turn.here
        is_recorded = turn.is_recorded()
        received, wait_us = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        number, made = plan.dispatch(
            x,
            ids,
            num_tokens,
            num_routed,
            received,
            wait_us,
            stream,
            here,
            is_recorded,
            return_recv_hook,
        )
        rows, scales, counts, words = made
        keep = (x, ids, made, received, wait_us) if return_recv_hook else None
        handle = LowLatencyHandle(plan, words, stream, is_recorded, number, keep)
        banks.before_last, banks.last = banks.last, weakref.ref(handle)
        if async_finish:
            used = (x, ids, received, wait_us, words[0])  # words may be those of another stream
            event = self._streams.end(turn, used, (rows, scales, counts))
        else:
            event = NoEvent()
        hook = handle.finish if return_recv_hook else None
        return (rows, scales) if use_fp8 else rows, counts, handle, event, hook

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Any,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, EventOverlap, Optional[Hook]]:
        """Weights and sums the rows x [L, M * R, H] of each token: -> [T, H].

        topk_idx are those of the dispatch; topk_weights f32 [T, K].  With use_logfmt rows travel
        with 10 bits per element.  With zero_copy the rows are those in
        get_next_low_latency_combine_buffer(handle), and x is not read.  The second combine of a handle
        costs one more dispatch.  Gives the sums, in `out` if
        that is given, an event, and a hook or None.  Collective."""
        if self._ranks is None:
            self._open()
        if not isinstance(handle, LowLatencyHandle):
            expect_low_latency_handle(handle)
        if async_finish and return_recv_hook:
            _refuse_both()
        # This refuses a handle whose memory has been used again.
        dispatched = handle._number or handle.number()
        plan = handle.plan
        lent = out
        turn = None if async_finish else plan.lane.plain_turn()
        num_tokens = -1 if zero_copy else plan.count_combined(x, topk_idx, topk_weights, out)
        if num_tokens < 0:
            expect_tensor(x, "x", 3)
            expect_tensor(topk_idx, "topk_idx", 2)
            expect_tensor(topk_weights, "topk_weights", 2)
            if out is None:
                shape = (topk_weights.shape[0], x.shape[2])
                out = torch.empty(shape, dtype=x.dtype, device=x.device)
            given = handle.result().combine_buffer if zero_copy else contiguous(x)
            num_tokens = plan.count_combined(given, topk_idx, topk_weights, out)
        else:
            if out is None:
                out = plan.make_sums(num_tokens, turn)
            given = contiguous(x)
        ids, weights = contiguous(topk_idx), contiguous(topk_weights)
        if turn is None:
            turn = self._streams.begin(plan.device, None, async_finish)
        if handle.is_combined:
            with cuda.stream(turn.stream):
                given = self._dispatch_again(handle, ids, given, turn.stream)
            dispatched = handle.number()
        handle.is_combined = True
        wait_us = combine_wait_recv_cost_stats
        if num_tokens >= 0:
            coding = CODING_LOGFMT10 if use_logfmt else CODING_NONE
            stream = turn.own
            number = plan.combine(
                dispatched,
                given,
                ids,
                weights,
                out,
                num_tokens,
                coding,
                wait_us,
                stream,
                return_recv_hook,
            )
            if return_recv_hook:
                handle.begin_combine(number, (given, ids, weights, out, wait_us))
        else:
            arguments = (given, ids, weights, handle.result())
            options: dict[str, Any] = {
                "coding": "logfmt10" if use_logfmt else None,
                "wait_us": wait_us,
                "into": out,
                "stream": turn.stream,
            }
            transport = plan.transport  # most of such tensors are refused there
            if return_recv_hook:
                handle.begin_combine(*transport.combine_start(*arguments, **options)._hand_over())
            else:
                transport.combine(*arguments, **options)
        hook = handle.finish_combine if return_recv_hook else None
        if not async_finish:
            return out, NoEvent(), hook
        made = (out,) if lent is None else ()
        return out, self._streams.end(turn, (given, ids, weights, lent), made), hook

    def get_next_low_latency_combine_buffer(self, handle: Any) -> Any:
        """[L, M * R, H]: memory for the rows of the combine of this dispatch; see zero_copy."""
        self._open()
        return expect_low_latency_handle(handle).result().combine_buffer

    def _dispatch_again(self, handle: LowLatencyHandle, ids: Any, x: Any, stream: Any) -> Any:
        """A transport combines each dispatch once.  This makes another dispatch of the same ids,
        with rows of zeros, for one more combine of x, which it gives.  Where ranks have been
        excluded since, x is put into the order without them."""
        transport, banks = handle.plan.transport, handle.plan.banks
        banks.make_room()
        hidden = handle.hidden
        dtype = torch.bfloat16 if hidden % 2 else torch.uint8  # rows have an even size
        rows = torch.zeros((len(ids), hidden), dtype=dtype, device=ids.device)
        ranges = torch.empty(handle.plan.ranges_shape, dtype=torch.int64, device=ids.device)
        result = transport.dispatch(rows, ids, into={"source_ranges": ranges}, stream=stream)
        handle.replace(result)
        banks.add(handle)
        if self.enable_shrink or any(transport.dead_ranks):
            if not torch.equal(handle.source_ranges, ranges):
                x = _moved(x, handle.source_ranges, ranges)
        return x

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Excludes a rank, or takes it back; every live rank makes the same call before its next
        one.  Its tokens do not come, and its experts add nothing.  Other calls of the buffer
        raise CommError while a rank is excluded."""
        ranks = self._open()
        if not 0 <= rank_to_mask < ranks.size or rank_to_mask == ranks.rank:
            raise InvalidArgument(
                f"rank_to_mask is {rank_to_mask}, expected another rank less than {ranks.size} than "
                f"the own one, which is {ranks.rank}"
            )
        (self._masked.add if mask else self._masked.discard)(rank_to_mask)
        for transport in self._all_low_latency():
            transport.set_dead(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 to the elements of mask_status i32 [R] whose ranks are excluded, and 0 to the
        others.  With enable_shrink, ranks that were missed are among them."""
        ranks = self._open()
        if mask_status.is_cuda:  # kernels that are under way may still find ranks missing
            stream: Any = torch.cuda.current_stream(mask_status.device)
            stream.synchronize()
        masked = set(self._masked)
        for transport in self._all_low_latency():
            masked.update(rank for rank, is_dead in enumerate(transport.dead_ranks) if is_dead)
        status = [int(rank in masked) for rank in range(ranks.size)]
        mask_status.copy_(torch.tensor(status, dtype=mask_status.dtype, device="cpu"))

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks back."""
        self._open()
        self._masked.clear()
        for transport in self._all_low_latency():
            for rank, is_dead in enumerate(transport.dead_ranks):
                if is_dead:
                    transport.set_dead(rank, False)

    def _all_low_latency(self) -> list[LowLatency]:
        return [made for device in self._open().devices for made in device.all_low_latency]

    def _make_plan(
        self,
        key: tuple[Any, ...],
        x: Any,
        ids: Any,
        max_tokens: int,
        num_experts: int,
        cast: Cast,
    ) -> Plan:
        """The plan of such calls, which is the first of its kind."""
        ranks = self._open()
        if cast.use_ue8m0 and not cast.round_scale:
            raise InvalidArgument("use_ue8m0 is set without round_scale, expected both")
        expect_tensor(x, "x", 2)
        expect_tensor(ids, "topk_idx", 2)
        transport = self._low_latency(x, ids.shape[1], max_tokens, num_experts)
        plan = self._plans[key] = Plan(
            transport,
            self._banks.setdefault(transport, Banks()),
            self._streams.lane(x.device),
            x,
            ids,
            ranks.size,
            ranks.num_local_experts(num_experts),
            max_tokens,
            num_experts,
            cast,
        )
        return plan

    def _low_latency(self, x: Any, topk: int, max_tokens: int, num_experts: int) -> LowLatency:
        made = self._open().on(x.device)
        kind = (num_experts, x.shape[1], topk, max_tokens, x.dtype)
        transport = made.find_low_latency(kind)
        if transport is None:
            transport = made.make_low_latency(kind, excludes_missing=self.enable_shrink)
            for rank in self._masked:
                transport.set_dead(rank)
        return transport


def _moved(x: Any, ranges: Any, wanted: Any) -> Any:
    """The rows x [L, M * R, H], which lie as the ranges i64 [L, R] say, as others want them."""
    moved = torch.empty_like(x)
    for local, pairs in enumerate(zip(ranges.tolist(), wanted.tolist())):
        for before, after in zip(*pairs):
            begin, to, count = before >> 32, after >> 32, after & 0xFFFFFFFF
            moved[local, to : to + count] = x[local, begin : begin + count]
    return moved


def _refuse_both() -> NoReturn:
    raise InvalidArgument("async_finish and return_recv_hook are both set, expected one at most")
