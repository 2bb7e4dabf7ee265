// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The steps of a high-throughput dispatch before rows move: count and exchange.
#pragma once

#include "comm/high_throughput/cuda/block.cuh"

namespace moebius::comm::high_throughput_dispatch {

// Why a block does not move rows.
enum Stop : int { kGo = 0, kGrow = 1, kFail = 2 };

// Calls visit(word, bit) for every rank, in order; a rank is bit `bit` of word `word` of a mask.
template <int kWords, typename Visit>
__device__ __forceinline__ void for_each_rank(int num_ranks, const Visit& visit) {
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    const int num_bits = kWords == 1 ? num_ranks : min(num_ranks - 64 * word, 64);
    for (int bit = 0; bit < num_bits; ++bit) {
      visit(word, bit);
    }
  }
}

// Returns the ranks that a token goes to, and counts its selections.
template <int kWords>
__device__ inline RankMaskOf<kWords> ranks_of(const Block& block, int64_t token) {
  const DispatchArgs& args = block.args;
  RankMaskOf<kWords> ranks{};
  // Why several at a time: each selection takes two loads, the second of which needs the first.
  constexpr int kAtOnce = 8;
  for (int first = 0; first < args.topk; first += kAtOnce) {
    int32_t ids[kAtOnce];
    int32_t rank_of[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      ids[i] = first + i < args.topk ? args.ids[token * args.topk + first + i] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      rank_of[i] = ids[i] >= 0 && ids[i] < args.num_experts ? __ldg(args.rank_of + ids[i]) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = ids[i];
      if (rank_of[i] >= 0) {
        ranks.add(rank_of[i]);
        atomicAdd(block.histogram() + id, 1u);
      } else if (id != -1) {
        const auto self = static_cast<uint8_t>(block.rank());
        raise_fault(args.signals, {FaultReason::kBadId, block.op(), self, self, block.epoch},
                    make_signal(static_cast<uint32_t>(token), static_cast<uint32_t>(id)));
      }
    }
  }
  return ranks;
}

// The same where the caller has found them.
template <int kWords>
__device__ inline RankMaskOf<kWords> given_ranks_of(const Block& block, int64_t token) {
  const bool* is_in = block.args.is_in + token * block.num_ranks();
  RankMaskOf<kWords> ranks{};
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    const int end = kWords == 1 ? block.num_ranks() : min(block.num_ranks(), 64 * word + 64);
#pragma unroll 8
    for (int r = 64 * word; r < end; ++r) {
      ranks.words[word] |= static_cast<uint64_t>(is_in[r]) << (r - 64 * word);
    }
  }
  return ranks;
}

// Notes the wave of each of a token's copies, which follows from its first expert there.  Rows of
// more ranks than a word has bits never come in waves (goes_in_waves).
__device__ inline void note_waves(const Block& block, int64_t token, uint64_t ranks) {
  const DispatchArgs& args = block.args;
  uint32_t waves = 0;
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = __ffsll(static_cast<long long>(ranks)) - 1;
    int32_t first = args.num_experts;
#pragma unroll 8
    for (int k = 0; k < args.topk; ++k) {
      const int32_t id = args.ids[token * args.topk + k];
      if (id >= 0 && id < args.num_experts && __ldg(args.rank_of + id) == rank) {
        first = min(first, __ldg(args.local_of + id));
      }
    }
    const int wave = min(1 + first / args.experts_per_wave, kWaves - 1);
    args.wave_of[token * block.num_ranks() + rank] = static_cast<uint8_t>(wave);
    waves |= 1u << wave;
  }
  args.waves_of[token] = waves;
}

// Gives every copy of this block its place among the block's copies that go to the same rank.
template <int kWords>
__device__ inline void count_copies(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int num_warps = args.shared.warps;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < args.num_experts; e += threads) {
    block.histogram()[e] = 0;
  }
  for (int r = thread; r < num_ranks; r += threads) {
    block.running()[r] = 0;
  }
  __syncthreads();
  const uint32_t lanes_before = (1u << block.lane()) - 1;
  uint32_t* warp_counts = block.warp_counts();
  uint32_t* own_counts = warp_counts + block.warp() * num_ranks;
  for (int64_t first = block.begin; first < block.end; first += threads) {
    const int64_t token = first + thread;
    const RankMaskOf<kWords> ranks = token >= block.end      ? RankMaskOf<kWords>{}
                                     : args.is_in != nullptr ? given_ranks_of<kWords>(block, token)
                                                             : ranks_of<kWords>(block, token);
    if (kWords == 1 && args.early_rows != 0 && token < block.end) {
      note_waves(block, token, ranks.words[0]);
    }
    for_each_rank<kWords>(num_ranks, [&](int word, int bit) {
      const uint32_t lanes = __ballot_sync(~0u, ranks.words[word] >> bit & 1);
      if (block.lane() == 0) {
        own_counts[64 * word + bit] = __popc(lanes);
      }
    });
    __syncthreads();
    for (int r = thread; r < num_ranks; r += threads) {
      uint32_t sum = block.running()[r];
      for (int w = 0; w < num_warps; ++w) {
        const uint32_t count = warp_counts[w * num_ranks + r];
        warp_counts[w * num_ranks + r] = sum;
        sum += count;
      }
      block.running()[r] = sum;
    }
    __syncthreads();
    for_each_rank<kWords>(num_ranks, [&](int word, int bit) {
      const int r = 64 * word + bit;
      const uint64_t is_in = ranks.words[word] >> bit & 1;
      const uint32_t lanes = __ballot_sync(~0u, is_in);
      if (token < block.end) {
        const uint32_t place = own_counts[r] + __popc(lanes & lanes_before);
        args.index[token * num_ranks + r] = is_in ? static_cast<int32_t>(place) : -1;
      }
    });
    __syncwarp();  // the first lane writes own_counts again
  }
  uint32_t* counts = args.block_counts + blockIdx.x * (num_ranks + args.num_experts);
  for (int i = thread; i < num_ranks + args.num_experts; i += threads) {
    counts[i] = i < num_ranks ? block.running()[i] : block.histogram()[i - num_ranks];
  }
}

// The sum over blocks [0, num_blocks) of one of their counts.
__device__ inline uint32_t sum_block_counts(const DispatchArgs& args,
                                            int num_counts,
                                            int index,
                                            uint32_t num_blocks) {
  uint32_t sum = 0;
#pragma unroll 8
  for (uint32_t b = 0; b < num_blocks; ++b) {
    sum += __ldcg(args.block_counts + b * num_counts + index);
  }
  return sum;
}

// The block that counted last calls it, or the first block when the route is known.
__device__ inline void send_notices(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const int num_counts = num_ranks + args.num_experts;
  const int rank = block.rank();
  __shared__ uint32_t selections;
  if (!block.is_cached()) {
    if (thread == 0) {
      selections = 0;
    }
    __syncthreads();
    for (int i = thread; i < num_counts; i += threads) {
      const uint32_t sum = i >= num_ranks && args.is_in != nullptr
                               ? static_cast<uint32_t>(args.selections_of[i - num_ranks])
                               : sum_block_counts(args, num_counts, i, gridDim.x);
      if (i < num_ranks) {
        block.running()[i] = sum;
      } else {
        block.histogram()[i - num_ranks] = sum;
        atomicAdd(&selections, sum);
      }
    }
    __syncthreads();
    if (thread == 0) {
      args.state->call_selections = selections;
    }
  }
  // The other blocks conclude from this rank's own notice that all of them have counted.
  // pairs with their awaits: the counts of all blocks are visible
  ptx::fence_acq_rel_gpu();
  const int num_words =
      block.is_cached() ? static_cast<int>(ControlLayout::kCopies) : block.num_notice_words();
  for (int i = thread; i < num_ranks * num_words; i += threads) {
    const int word = i % num_words;
    uint32_t value = args.bank;
    if (word >= ControlLayout::kCopies) {
      value = block.running()[word - ControlLayout::kCopies];
    } else if (word == ControlLayout::kBankUnits) {
      value = args.bank_units;
    } else if (word == ControlLayout::kCapacityRows) {
      value = args.capacity_rows;
    } else if (word == ControlLayout::kRowBytes) {
      value = args.row_bytes;
    } else if (word == ControlLayout::kEarlyRows) {
      value = args.early_rows;
    } else if (word == ControlLayout::kMostEarlyRows) {
      value = args.most_early_rows;
    }
    ptx::st_relaxed_sys(block.notice_word(i / num_words, rank, word),
                        make_signal(block.epoch, value));
  }
  if (!block.is_cached()) {
    for (int e = thread; e < args.num_experts; e += threads) {
      const int word = block.num_notice_words() + __ldg(args.local_of + e);
      ptx::st_relaxed_sys(block.notice_word(__ldg(args.rank_of + e), rank, word),
                          make_signal(block.epoch, block.histogram()[e]));
    }
  }
}

// Reads the notices of all ranks into shared memory, and derives each destination's addresses.
__device__ inline Stop read_notices(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int rank = block.rank();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const int num_words = block.num_notice_words();
  int stop = thread == 0 && is_aborted(args.signals) ? kFail : kGo;
  for (int i = thread; i < num_ranks * num_words && stop == kGo; i += threads) {
    const int source = i / num_words;
    const int word = i % num_words;
    if (block.is_cached() && word >= ControlLayout::kCopies) {
      block.notice(source)[word] = args.copies[source * num_ranks + word - ControlLayout::kCopies];
      continue;
    }
    uint64_t seen;
    if (await_signal(args.signals, block.is_cached() ? block.op() : SignalOp::kDispatchCounts,
                     block.epoch, source, block.notice_word(rank, source, word), &seen)) {
      block.notice(source)[word] = signal_value(seen);
    } else {
      stop = kFail;
    }
  }
  if (__syncthreads_or(stop) != 0) {
    return kFail;
  }
  Fault fault{FaultReason::kNone, block.op(), static_cast<uint8_t>(rank), 0, block.epoch};
  uint64_t seen = 0;
  for (int d = thread; d < num_ranks; d += threads) {
    uint32_t rows = 0;
    uint32_t base = 0;
    for (int s = 0; s < num_ranks; ++s) {
      base = s == rank ? rows : base;
      rows += block.notice(s)[ControlLayout::kCopies + d];
    }
    if (!block.is_cached()) {
      base += sum_block_counts(args, num_ranks + args.num_experts, d, blockIdx.x);
    }
    block.row_base()[d] = block.is_cached() ? 0 : base;
    block.total_rows()[d] = rows;
    const uint32_t* notice = block.notice(d);
    const uint32_t capacity = notice[ControlLayout::kCapacityRows];
    std::byte* bank = args.banks[notice[ControlLayout::kBank] % kMaxBanks * num_ranks + d];
    int64_t span = 0;
    for (int f = 0; f < args.num_fields; ++f) {
      block.field_base(f)[d] = reinterpret_cast<uint64_t>(bank) + static_cast<uint64_t>(span);
      span += field_span(args.field_bytes[f], capacity > 0 ? capacity : rows);
    }
    if (notice[ControlLayout::kRowBytes] != args.row_bytes) {
      fault.reason = FaultReason::kMismatch;
      seen = make_signal(notice[ControlLayout::kRowBytes], args.row_bytes);
    } else if (capacity > 0 && rows > capacity) {
      fault.reason = FaultReason::kOverflow;
      seen = make_signal(rows, capacity);
    } else if (span > static_cast<int64_t>(notice[ControlLayout::kBankUnits]) * kFieldAlignment) {
      stop = kGrow;
    }
    if (fault.reason != FaultReason::kNone) {
      fault.guilty = static_cast<uint8_t>(d);
      // Every rank reads the same counts, so it finds an overflow itself, with both numbers.
      if (fault.reason == FaultReason::kOverflow) {
        raise_own_fault(args.signals, fault, seen);
      } else {
        raise_fault(args.signals, fault, seen);
      }
      stop = kFail;
      break;
    }
  }
  return static_cast<Stop>(__syncthreads_or(stop == kFail)   ? kFail
                           : __syncthreads_or(stop == kGrow) ? kGrow
                                                             : kGo);
}

// All ranks get the same answer, since it follows from what all of them have told.
__device__ inline bool goes_in_waves(const Block& block) {
  const uint32_t wanted = block.args.early_rows;
  uint32_t most = 0;
  bool is_agreed = wanted != 0 && block.num_ranks() <= kWarp;
  for (int r = 0; r < block.num_ranks(); ++r) {
    const uint32_t* notice = block.notice(r);
    is_agreed = is_agreed && notice[ControlLayout::kEarlyRows] == wanted &&
                notice[ControlLayout::kMostEarlyRows] == block.args.most_early_rows;
    most = max(most, block.total_rows()[r]);
  }
  return is_agreed && most >= wanted && most <= block.args.most_early_rows;
}

// The rows of a local expert from all ranks, rounded up to the alignment, when all have told.
// Returns false when the kernel must end.
__device__ inline bool await_expert_rows(const Block& block, int local, uint32_t& rows) {
  const DispatchArgs& args = block.args;
  rows = 0;
  for (int s = 0; s < block.num_ranks(); ++s) {
    uint64_t seen;
    if (!await_signal(args.signals, SignalOp::kDispatchCounts, block.epoch, s,
                      block.notice_word(block.rank(), s, block.num_notice_words() + local),
                      &seen)) {
      return false;
    }
    rows += signal_value(seen);
  }
  const auto alignment = static_cast<uint32_t>(args.expert_alignment);
  rows = (rows + alignment - 1) / alignment * alignment;
  return true;
}

__device__ inline void tell_host(const Block& block, Stop stop) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  if (args.host_experts != nullptr && stop == kGo) {
    bool ok = true;
    for (int l = static_cast<int>(threadIdx.x); l < args.num_local && ok;
         l += static_cast<int>(blockDim.x)) {
      uint32_t rows;
      ok = await_expert_rows(block, l, rows);
      args.host_experts[l] = rows;
    }
    if (__syncthreads_and(ok) == 0) {
      return;  // the host finds the fault
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < num_ranks * num_ranks;
       i += static_cast<int>(blockDim.x)) {
    args.host->copies[i] = block.notice(i / num_ranks)[ControlLayout::kCopies + i % num_ranks];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    args.host->epoch = block.epoch;
    args.host->in_waves = goes_in_waves(block) ? 1 : 0;
    // pairs with the host's load of the word: the counts before it are visible
    ptx::st_release_sys(
        &args.host->word,
        make_signal(args.host_tag, stop == kGrow ? HostCounts::kGrow : HostCounts::kMoved));
  }
}

}  // namespace moebius::comm::high_throughput_dispatch
