// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel is bound by memory: every row is read once and every sum is written once.  4096 tokens
// of 8 rows of 7168 bf16 are 470 + 59 MB, which take 126 us at 4.2 TB/s.  A warp works on one
// token, or, with few tokens, on some of its columns.  Why not a CTA: with eight ranks a token has
// 1.5 rows on each, so that a CTA would request little at once; and with a quarter of the columns
// most of its time would go to finding out which rows they are.
//
// Sums of few tokens take no longer than memory takes to bring the code, which the weights of a
// layer have pushed out of L2.  So while the kernel ahead ends, warps rehearse: they go through the
// same code once for nothing.
#include <algorithm>
#include <string>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/slot_order.h"
#include "core/ids.h"
#include "experts/cuda/rows/weighted_sum.h"
#include "moebius/error.h"

namespace moebius {

namespace {

constexpr int kWarp = 32;
constexpr int kMostWarps = 8;  // warps of a CTA; none waits for another
constexpr int64_t kMostTermBytes = 48 * 1024;
constexpr int kHeld = 8;  // rows requested at once
constexpr unsigned kAll = 0xffffffffu;

struct Args {
  const void* rows;
  const int32_t* row_of_slot;
  Ids ids;
  const float* weights;
  bool by_row;
  bool settled;    // see CudaSumArgs
  bool rehearses;  // there are few tokens
  int topk;
  int64_t num_tokens;
  int64_t hidden;        // of rows
  int64_t width;         // of output
  int64_t warp_columns;  // columns that a warp sums
  void* output;
};

struct Term {
  int64_t row;
  float weight;
};
static_assert(kMaxSumTerms * sizeof(Term) == kMostTermBytes);

// Why from L2: L1 may have settled terms from before they were written.
__device__ Term term_of(const Args& a, int64_t slot) {
  const bool is_masked = a.ids && a.ids[slot] < 0;
  const int64_t row = a.row_of_slot != nullptr ? __ldcg(a.row_of_slot + slot) : slot;
  return {is_masked ? -1 : row, a.weights != nullptr ? __ldcg(a.weights + slot) : 1.0f};
}

// Gathers the token's terms in the order in which they are added, by a warp.  Returns their number.
__device__ int gather_terms(const Args& a, int64_t token, Term* terms) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int count = 0;
  for (int first = 0; first < a.topk; first += kWarp) {
    const int k = first + lane;
    const Term own = k < a.topk ? term_of(a, token * a.topk + k) : Term{-1, 0.0f};
    const unsigned in_use = __ballot_sync(kAll, own.row >= 0);
    int place = count + __popc(in_use & ((1u << lane) - 1));
    count += __popc(in_use);
    if (own.row < 0) {
      continue;
    }
    if (a.by_row) {
      place = 0;
      for (int other = 0; other < a.topk; ++other) {
        const int64_t row = term_of(a, token * a.topk + other).row;
        place += row >= 0 && row < own.row ? 1 : 0;
      }
    }
    terms[place] = own;
  }
  __syncwarp();
  return count;
}

template <typename T, int kWidth>
struct Columns;

template <typename T>
struct Columns<T, cuda::kVector> {
  using Raw = cuda::Raw8<T>;
  static __device__ Raw load(const T* p) { return cuda::load_raw(p); }
  static __device__ void widen(const Raw& raw, float (&v)[cuda::kVector]) { cuda::widen(raw, v); }
  static __device__ void store(T* p, const float (&v)[cuda::kVector]) { cuda::store8(p, v); }
};

template <typename T>
struct Columns<T, 1> {
  using Raw = T;
  static __device__ Raw load(const T* p) { return *p; }
  static __device__ void widen(const Raw& raw, float (&v)[1]) { v[0] = cuda::load1(&raw); }
  static __device__ void store(T* p, const float (&v)[1]) { cuda::store1(p, v[0]); }
};

// Sums the columns of a warp.  A rehearsal takes the token's row of the output for every term, and
// stores nothing.
template <typename T, bool kSumsInType, int kWidth>
__device__ __forceinline__ void sum_columns(
    const Args& a, int64_t token, const Term* terms, int num_terms, bool is_real) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  using Access = Columns<T, kWidth>;
  constexpr int64_t kStep = kWarp * kWidth;
  T* out = static_cast<T*>(a.output) + token * a.width;
  const T* rows = is_real ? static_cast<const T*>(a.rows) : out;
  const int64_t hidden = is_real ? a.hidden : 0;
  const int64_t begin = blockIdx.y * a.warp_columns;
  const int64_t end = min(begin + a.warp_columns, a.width);
  for (int64_t column = begin + lane * kWidth; column < end; column += kStep) {
    float sums[kWidth] = {};
    for (int first = 0; first < num_terms; first += kHeld) {
      typename Access::Raw raw[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (first + i < num_terms) {
          raw[i] = Access::load(rows + terms[first + i].row * hidden + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (first + i < num_terms) {
          const float weight = terms[first + i].weight;
          float x[kWidth];
          Access::widen(raw[i], x);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            const float total = sums[j] + cuda::rounded(T{}, x[j] * weight);
            sums[j] = kSumsInType ? cuda::rounded(T{}, total) : total;
          }
        }
      }
    }
    if (is_real) {
      Access::store(out + column, sums);
    }
  }
}

template <typename T, bool kSumsInType, int kWidth>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    weighted_sum_kernel(const __grid_constant__ Args a) {
  extern __shared__ Term terms_of_warps[];
  if (!a.settled) {
    ptx::await_kernel_before();
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  const bool exists = token < a.num_tokens;
  Term* terms = terms_of_warps + warp * a.topk;
  const int num_terms = exists ? gather_terms(a, token, terms) : 0;
#pragma unroll 1
  for (int pass = a.rehearses ? 0 : 1; pass < 2; ++pass) {
    if (pass == 1) {
      ptx::await_kernel_before();
      ptx::let_next_begin();
    }
    if (exists) {
      sum_columns<T, kSumsInType, kWidth>(a, token, terms, num_terms, pass == 1);
    }
  }
}

template <typename T, bool kSumsInType>
void launch(Args a, int num_sms, cudaStream_t stream) {
  const bool vectorizes = a.hidden % cuda::kVector == 0 && a.width % cuda::kVector == 0 &&
                          cuda::is_aligned(a.rows, 16) && cuda::is_aligned(a.output, 16);
  // With few tokens a warp takes a part of the columns, so that all SMs have work.
  const int64_t least = kWarp * (vectorizes ? cuda::kVector : 1);
  const int64_t wanted = int64_t{4} * kMostWarps * num_sms;
  const int64_t parts =
      std::clamp<int64_t>(wanted / a.num_tokens, 1, (a.width + least - 1) / least);
  a.rehearses = a.settled && parts > 1;
  a.warp_columns = ((a.width + parts - 1) / parts + least - 1) / least * least;
  const auto term_bytes = static_cast<int64_t>(sizeof(Term)) * a.topk;
  const int64_t warps = std::clamp<int64_t>(kMostTermBytes / term_bytes, 1, kMostWarps);
  const dim3 grid(static_cast<unsigned>((a.num_tokens + warps - 1) / warps),
                  static_cast<unsigned>((a.width + a.warp_columns - 1) / a.warp_columns));
  const auto threads = static_cast<unsigned>(warps * kWarp);
  const auto shared = static_cast<size_t>(warps * term_bytes);
  const auto kernel = vectorizes ? weighted_sum_kernel<T, kSumsInType, cuda::kVector>
                                 : weighted_sum_kernel<T, kSumsInType, 1>;
  cuda::launch_early("weighted_sum_kernel", kernel, grid, threads, shared, stream, a);
}

void expect_room(int64_t topk) {
  if (topk > kMaxSumTerms) {
    throw Unsupported(std::to_string(topk) + " rows of a token, sums on a GPU take up to " +
                      std::to_string(kMaxSumTerms));
  }
}

}  // namespace

void cuda_weighted_sum(const CudaSumArgs& args, const Stream& on) {
  expect_room(args.topk);
  if (args.output.numel() == 0) {
    return;
  }
  const cuda::DeviceGuard guard(on);
  Args a{};
  a.rows = args.rows.bytes() + args.first_column * bits(args.rows.dtype()) / 8;
  a.row_of_slot = args.row_of_slot ? args.row_of_slot.data<int32_t>() : nullptr;
  a.ids = Ids::of(args.ids);
  a.weights = args.weights ? args.weights.data<float>() : nullptr;
  a.by_row = args.by_row;
  a.settled = args.settled_terms;
  a.topk = static_cast<int>(args.topk);
  a.num_tokens = args.output.dim(0);
  a.hidden = args.rows.shape().back();
  a.width = args.output.dim(1);
  a.output = args.output.raw();
  cuda::visit_float(args.output.dtype(), [&](auto type) {
    using T = decltype(type);
    const cudaStream_t stream = cuda::as_stream(on);
    const int sms = cuda::num_sms(args.output.device().index);
    args.sums_in_type ? launch<T, true>(a, sms, stream) : launch<T, false>(a, sms, stream);
  });
}

void cuda_batched_sum(const CudaSumArgs& args, int64_t first_expert, const Stream& on) {
  expect_room(args.topk);
  const auto rows = allocate_on(args.ids.numel() * int64_t{sizeof(int32_t)}, on);
  CudaSumArgs with_rows = args;
  with_rows.row_of_slot =
      Tensor::borrow(rows.get(), args.ids.shape(), DType::kI32, args.ids.device());
  cuda_order_slots({.ids = args.ids,
                    .first_expert = first_expert,
                    .num_local_experts = args.rows.dim(0),
                    .max_rows = args.rows.dim(1),
                    .row_of_slot = with_rows.row_of_slot},
                   on);
  with_rows.ids = {};  // masked selections have no row
  cuda_weighted_sum(with_rows, on);
}

}  // namespace moebius
