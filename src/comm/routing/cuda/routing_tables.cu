// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <type_traits>

#include "comm/device/signals.h"
#include "comm/routing/cuda/routing_tables.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "moebius/tensor.h"

namespace moebius::comm {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;
// How many ids one block looks through for one expert.
constexpr int64_t kIdsPerBlock = 8192;

// A block of the layout of few tokens has a thread for each of them.
constexpr int kMostTokensAlone = 1024;
constexpr int64_t kMostExpertsAlone = 8192;  // 32 KiB of shared memory

// Each thread takes a token, whose ranks it keeps in kWords words.  A block first adds up its
// tokens per rank in shared memory; counts per expert go straight to global memory, since ids are
// spread over many experts.  A block that is alone (kAlone) has those in shared memory, too, and
// stores its counts, so that the outputs need not be cleared first.
template <int kWords, bool kAlone>
__global__ void __launch_bounds__(kAlone ? kMostTokensAlone : kThreads)
    layout_kernel(const LayoutArgs args) {
  __shared__ int32_t tokens_of[kMaxCudaRanks + 1];  // by rank; the last: tokens with any rank
  extern __shared__ int32_t selections_of[];        // kAlone: by expert
  const int num_threads = static_cast<int>(blockDim.x);
  for (int r = static_cast<int>(threadIdx.x); r <= args.num_ranks; r += num_threads) {
    tokens_of[r] = 0;
  }
  for (int e = static_cast<int>(threadIdx.x); kAlone && e < args.num_experts; e += num_threads) {
    selections_of[e] = 0;
  }
  __syncthreads();
  const int64_t token = int64_t{blockIdx.x} * num_threads + threadIdx.x;
  if (token < args.num_tokens) {
    RankMaskOf<kWords> ranks{};
    for (int k = 0; k < args.topk; ++k) {
      const int64_t place = token * args.topk + k;
      const int32_t id = args.ids[place];
      if (id < -1 || id >= args.num_experts) {
        atomicMin(args.bad_id,
                  static_cast<unsigned long long>(place) << 32 | static_cast<uint32_t>(id));
      } else if (id >= 0) {
        ranks.add(args.rank_of[id]);
        atomicAdd(kAlone ? &selections_of[id] : &args.tokens_per_expert[id], 1);
      }
    }
    for (int r = 0; r < args.num_ranks; ++r) {
      const bool is_in = ranks.has(r);
      args.is_token_in_rank[token * args.num_ranks + r] = is_in;
      if (is_in) {
        atomicAdd(&tokens_of[r], 1);
      }
    }
    if (!ranks.is_empty()) {
      atomicAdd(&tokens_of[args.num_ranks], 1);
    }
  }
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.x); r <= args.num_ranks; r += num_threads) {
    int32_t* total = r < args.num_ranks ? &args.tokens_per_rank[r] : args.tokens_per_node;
    if (kAlone) {
      *total = tokens_of[r];
    } else {
      atomicAdd(total, tokens_of[r]);
    }
  }
  for (int e = static_cast<int>(threadIdx.x); kAlone && e < args.num_experts; e += num_threads) {
    args.tokens_per_expert[e] = selections_of[e];
  }
}

// How many threads of the block that vote yes have a lower index, and how many there are in all.
struct Votes {
  int before;
  int all;
};
__device__ Votes vote(bool yes) {
  __shared__ int of_warp[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned ballot = __ballot_sync(kAllLanes, yes);
  __syncthreads();  // all threads have read the vote before
  if (lane == 0) {
    of_warp[threadIdx.x / kWarp] = __popc(ballot);
  }
  __syncthreads();
  Votes votes{__popc(ballot & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kWarps; ++w) {
    votes.before += w < static_cast<int>(threadIdx.x) / kWarp ? of_warp[w] : 0;
    votes.all += of_warp[w];
  }
  return votes;
}

__device__ bool names_expert(const RouteArgs& args, int64_t token, int destination) {
  bool goes = false;
  for (int k = 0; k < args.topk; ++k) {
    const int32_t id = args.ids[token * args.topk + k];
    goes |= id >= 0 && id < args.num_experts && args.destination_of[id] == destination;
  }
  return goes;
}

__device__ bool has_rank(const RouteArgs& args, int64_t token, int destination) {
  bool goes = false;
  for (int r = 0; r < args.num_ranks; ++r) {
    const int there = args.destination_of_rank != nullptr ? args.destination_of_rank[r] : r;
    goes |= there == destination && args.is_in[token * args.num_ranks + r];
  }
  return goes;
}

// Block d numbers the copies to destination d, in order of token.
__global__ void route_kernel(const RouteArgs args) {
  const int destination = args.first + static_cast<int>(blockIdx.x);
  int copies = 0;
  for (int64_t first = 0; first < args.num_tokens; first += kThreads) {
    const int64_t token = first + threadIdx.x;
    const bool goes = token < args.num_tokens && (args.ids ? names_expert(args, token, destination)
                                                           : has_rank(args, token, destination));
    const Votes votes = vote(goes);
    if (args.index != nullptr && token < args.num_tokens) {
      args.index[token * args.num_destinations + blockIdx.x] = goes ? copies + votes.before : -1;
    }
    copies += votes.all;
  }
  if (args.copies != nullptr && threadIdx.x == 0) {
    args.copies[blockIdx.x] = copies;
  }
}

__global__ void check_ids_kernel(Ids ids, int64_t num_ids, int num_experts, CheckedIds* checked) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int32_t id = i < num_ids ? ids[i] : -1;
  if (id < -1 || id >= num_experts) {
    atomicMin(&checked->bad_id,
              static_cast<unsigned long long>(i) << 32 | static_cast<uint32_t>(id));
  }
  const int selected = __syncthreads_count(id >= 0);
  if (threadIdx.x == 0) {
    atomicAdd(&checked->selections, static_cast<unsigned long long>(selected));
  }
}

// Block l counts the ids of local expert l.
__global__ void expert_counts_kernel(Ids ids, int64_t num_ids, int alignment, int32_t* counts) {
  int count = 0;
  for (int64_t first = 0; first < num_ids; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    count += __syncthreads_count(i < num_ids && ids[i] == static_cast<int>(blockIdx.x));
  }
  if (threadIdx.x == 0) {
    counts[blockIdx.x] = (count + alignment - 1) / alignment * alignment;
  }
}

// Block (part, expert) counts the ids of that expert in the part: starts[expert, part].
__global__ void count_ids_kernel(const ExpertOrderArgs args) {
  const int expert = static_cast<int>(blockIdx.y);
  const int64_t begin = blockIdx.x * kIdsPerBlock;
  const int64_t end = min(args.num_ids, begin + kIdsPerBlock);
  int found = 0;
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    found += __syncthreads_count(i < end && args.ids[i] == expert);
  }
  if (threadIdx.x == 0) {
    args.starts[expert * gridDim.x + blockIdx.x] = found;
  }
}

// One block turns each count in `starts` into the first row of that part and expert.  The rows of
// lower experts, with their padding, come first.
__global__ void expert_offsets_kernel(const ExpertOrderArgs args, int parts) {
  __shared__ int32_t sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  int32_t base = 0;
  for (int first = 0; first < args.num_local; first += kThreads) {
    const int expert = first + thread;
    int32_t rows = 0;
    if (expert < args.num_local) {
      for (int p = 0; p < parts; ++p) {
        rows += args.starts[expert * parts + p];
      }
    }
    const int32_t padded = (rows + args.alignment - 1) / args.alignment * args.alignment;
    sums[thread] = padded;
    __syncthreads();
    for (int distance = 1; distance < kThreads; distance *= 2) {  // inclusive scan
      const int32_t lower = thread >= distance ? sums[thread - distance] : 0;
      __syncthreads();
      sums[thread] += lower;
      __syncthreads();
    }
    if (expert < args.num_local) {
      args.expert_offsets[expert + 1] = base + sums[thread];
      int32_t start = base + sums[thread] - padded;
      for (int p = 0; p < parts; ++p) {
        int32_t& part = args.starts[expert * parts + p];
        const int32_t rows_of_part = part;
        part = start;
        start += rows_of_part;
      }
    }
    base += sums[kThreads - 1];
    __syncthreads();
  }
  if (thread == 0) {
    args.expert_offsets[0] = 0;
  }
}

// Block (part, expert) writes the part's rows of that expert, in the order of the ids.  The block
// of the last part also fills the padding.
__global__ void expert_rows_kernel(const ExpertOrderArgs args) {
  const int expert = static_cast<int>(blockIdx.y);
  const int64_t begin = blockIdx.x * kIdsPerBlock;
  const int64_t end = min(args.num_ids, begin + kIdsPerBlock);
  int row = args.starts[expert * gridDim.x + blockIdx.x];
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_here = i < end && args.ids[i] == expert;
    const Votes votes = vote(is_here);
    if (is_here) {
      args.copy_row[row + votes.before] = static_cast<int32_t>(i / args.topk);
      args.slot[row + votes.before] = static_cast<int32_t>(i % args.topk);
    }
    row += votes.all;
  }
  if (blockIdx.x == gridDim.x - 1) {
    for (row += static_cast<int>(threadIdx.x); row < args.expert_offsets[expert + 1];
         row += kThreads) {
      args.copy_row[row] = -1;
      args.slot[row] = 0;
    }
  }
}

// Each warp copies a row at a time.  All rows and addresses are multiples of a Word.
template <typename Word>
__global__ void gather_rows_kernel(
    const Word* from, const int32_t* copy_row, Word* to, int64_t rows, int64_t words) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows;
       row += stride) {
    const int64_t source = copy_row[row];
    for (int64_t w = lane; w < words; w += kWarp) {
      to[row * words + w] = source < 0 ? Word{} : from[source * words + w];
    }
  }
}

// Launches blocks of kThreads threads on the stream; without blocks it does nothing.
// REQUIRES: the current device is the stream's, as for fill().
template <typename... Params>
void launch(std::string_view name,
            void (*kernel)(Params...),
            dim3 grid,
            const Stream& stream,
            const std::type_identity_t<Params>&... args) {
  if (grid.x > 0 && grid.y > 0) {
    kernel<<<grid, kThreads, 0, cuda::as_stream(stream)>>>(args...);
    cuda::check_launch(name);
  }
}

void fill(void* to, int byte, size_t bytes, const Stream& stream) {
  cuda::check_cuda(cudaMemsetAsync(to, byte, bytes, cuda::as_stream(stream)), "cudaMemsetAsync");
}

// The blocks for n items of which each block takes `per_block`.
unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// The grid of (part, expert).
dim3 parts_grid(const ExpertOrderArgs& args) {
  return {blocks_for(args.num_ids, kIdsPerBlock), static_cast<unsigned>(args.num_local)};
}

void launch_layout_alone(const LayoutArgs& args, const Stream& stream) {
  const int64_t threads = (args.num_tokens + kThreads - 1) / kThreads * kThreads;
  with_rank_mask_words(args.num_ranks, [&](auto words) {
    layout_kernel<decltype(words)::value, true>
        <<<1, static_cast<unsigned>(std::max<int64_t>(kThreads, threads)),
           sizeof(int32_t) * static_cast<size_t>(args.num_experts), cuda::as_stream(stream)>>>(
            args);
  });
  cuda::check_launch("layout_kernel");
}

template <typename Word>
void gather(const Tensor& from, const Tensor& copy_row, const Tensor& to, const Stream& stream) {
  const int64_t rows = to.dim(0);
  launch("gather_rows_kernel", gather_rows_kernel<Word>, std::min(blocks_for(rows, kWarps), 4096u),
         stream, static_cast<const Word*>(from.raw()), copy_row.data<int32_t>(),
         static_cast<Word*>(to.raw()), rows,
         to.nbytes() / rows / static_cast<int64_t>(sizeof(Word)));
}

}  // namespace

void load_routing_kernels(int device) {
  cuda::load_kernels(device, layout_kernel<1, false>, layout_kernel<kWideWords, false>,
                     layout_kernel<1, true>, layout_kernel<kWideWords, true>, route_kernel,
                     check_ids_kernel, expert_counts_kernel, count_ids_kernel,
                     expert_offsets_kernel, expert_rows_kernel, gather_rows_kernel<uint4>,
                     gather_rows_kernel<uint8_t>);
}

void launch_layout(const LayoutArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  if (args.num_tokens <= kMostTokensAlone && args.num_experts <= kMostExpertsAlone) {
    launch_layout_alone(args, stream);
    return;
  }
  fill(args.tokens_per_rank, 0, sizeof(int32_t) * static_cast<size_t>(args.num_ranks), stream);
  fill(args.tokens_per_node, 0, sizeof(int32_t), stream);
  fill(args.tokens_per_expert, 0, sizeof(int32_t) * static_cast<size_t>(args.num_experts), stream);
  with_rank_mask_words(args.num_ranks, [&](auto words) {
    launch("layout_kernel", layout_kernel<decltype(words)::value, false>,
           blocks_for(args.num_tokens, kThreads), stream, args);
  });
}

void launch_route(const RouteArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  launch("route_kernel", route_kernel, static_cast<unsigned>(args.num_destinations), stream, args);
}

void launch_check_ids(
    Ids ids, int64_t num_ids, int num_experts, CheckedIds* checked, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  fill(&checked->bad_id, 0xff, sizeof(checked->bad_id), stream);
  fill(&checked->selections, 0, sizeof(checked->selections), stream);
  launch("check_ids_kernel", check_ids_kernel, blocks_for(num_ids, kThreads), stream, ids, num_ids,
         num_experts, checked);
}

void launch_expert_counts(
    Ids ids, int64_t num_ids, int num_local, int alignment, int32_t* counts, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  launch("expert_counts_kernel", expert_counts_kernel, static_cast<unsigned>(num_local), stream,
         ids, num_ids, alignment, counts);
}

int64_t expert_starts_bytes(int64_t num_ids, int num_local) {
  return static_cast<int64_t>(sizeof(int32_t)) * blocks_for(num_ids, kIdsPerBlock) * num_local;
}

void launch_expert_offsets(const ExpertOrderArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  const dim3 grid = parts_grid(args);
  launch("count_ids_kernel", count_ids_kernel, grid, stream, args);
  launch("expert_offsets_kernel", expert_offsets_kernel, 1, stream, args, static_cast<int>(grid.x));
}

void launch_expert_rows(const ExpertOrderArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  launch("expert_rows_kernel", expert_rows_kernel, parts_grid(args), stream, args);
}

void launch_gather_rows(const Tensor& from,
                        const Tensor& copy_row,
                        const Tensor& to,
                        const Stream& stream) {
  if (to.nbytes() == 0) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  const auto address_of = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()); };
  const auto row_bytes = static_cast<uintptr_t>(to.nbytes() / to.dim(0));
  if ((address_of(from) | address_of(to) | row_bytes) % sizeof(uint4) == 0) {
    gather<uint4>(from, copy_row, to, stream);
  } else {
    gather<uint8_t>(from, copy_row, to, stream);
  }
}

}  // namespace moebius::comm
