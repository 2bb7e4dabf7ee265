// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps that decode weights to memory while the tensor cores multiply by those of an earlier
// group: the one that plans tiles, and those that copy nothing.  Why by way of memory: decoding on
// the way to the tensor cores was slower than to decode all weights before the GEMM.
//
// Groups that have rows follow one another through the slots of b.  They are decoded in units,
// which warps claim from a counter.  A group's units may be decoded once its slot is free, that is
// when all tiles of the group that had it are multiplied, and its tiles may be planned once its
// units are decoded.  Why nobody waits for ever: units and tiles are claimed in the order of groups
// by CTAs that run, a warp decodes what it has claimed before it leaves, and neither waits for a
// later group.  A cluster that does not run yet, because other kernels have its SMs, has no items.
#pragma once

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/dequant/decode.cuh"
#include "experts/cuda/gemm/sm90/decoded_groups.cuh"
#include "experts/cuda/gemm/sm90/plan.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

enum class Step : uint8_t { kDecoded, kSlotInUse, kNothingLeft };

// Decodes units, by a whole warp.  A unit's codes are requested while the one before is decoded.
template <typename Config>
class Decoder {
 public:
  // `index`: which of the CTA's decoding warps it is.
  __device__ __forceinline__ Decoder(const Args& args, Shared<Config>& shared, int index)
      : args_(args),
        shared_(shared),
        ring_(shared.decoding.codes[index]),
        per_group_(static_cast<int>(int64_t{args.decode.n} * args.decode.k / kUnit)) {
    claim();
    unit_ = ptx::uniform(claimed_);
    if (lane_ == 0) {
      for (int chunk = 0; chunk < Ring::kChunks; ++chunk) {
        request(unit_, chunk, chunk);
      }
    }
  }

  // Decodes the next unit, unless it has to wait.
  __device__ __forceinline__ Step step() {
    if (!exists(unit_)) {
      return Step::kNothingLeft;
    }
    const int index = index_of(unit_);
    if (index >= args_.slots && !is_multiplied(shared_.decoding.used[index - args_.slots])) {
      return Step::kSlotInUse;
    }
    const int group = shared_.decoding.used[index];
    claim();
    if constexpr (Config::kIsScaled) {
      decode<Code::kU4>(group, index % args_.slots);
    } else if (args_.decode.w.is_packed) {
      decode<Code::kE2M1, true>(group, index % args_.slots);
    } else if (args_.decode.w.code == Code::kE2M1) {
      decode<Code::kE2M1>(group, index % args_.slots);
    } else {
      decode<Code::kI8>(group, index % args_.slots);
    }
    // Boxes of any SM will read it.  A release covers only what comes before its fence, so that of
    // lane 0 follows the stores of all lanes.
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ == 0) {
      ptx::fence_acq_rel_gpu();
      ptx::red_add_relaxed_gpu(decoded_units(args_, group), 1);
    }
    unit_ = ptx::uniform(claimed_);
    return Step::kDecoded;
  }

  // Whether the group's weights are there; if so, what this thread does next sees them.
  __device__ __forceinline__ bool is_decoded(int group) const {
    return group == shared_.decoding.used[0] ||
           ptx::uniform(ptx::ld_acquire_gpu(decoded_units(args_, group))) == per_group_;
  }

 private:
  using Ring = typename Config::Codes;
  static constexpr int kUnit = quant::kDecodedUnit;
  static constexpr int kHeld = 4;  // vectors that a lane decodes at once

  __device__ __forceinline__ void claim() {
    if (lane_ == 0) {
      claimed_ = atomicAdd(args_.decode_counters, 1);
    }
  }
  // Units are those of all used groups but the first.
  __device__ __forceinline__ bool exists(int unit) const {
    return unit < per_group_ * (shared_.decoding.num_used - 1);
  }
  __device__ __forceinline__ int index_of(int unit) const { return 1 + unit / per_group_; }

  __device__ __forceinline__ bool is_multiplied(int group) const {
    const int items = (shared_.first_items[group + 1] - shared_.first_items[group])
                      << shared_.cuts_items;
    const bool is =
        ptx::uniform(ptx::ld_acquire_gpu(multiplied_tiles(args_, group))) == items * kClusterSize;
    ptx::fence_proxy_async();  // boxes have read what is overwritten next
    return is;
  }

  // Requests a chunk of a unit's codes, if there is such a unit, by lane 0.
  __device__ __forceinline__ void request(int unit, int chunk, int place) {
    if (!exists(unit)) {
      return;
    }
    const DecodeArgs& p = args_.decode;
    const int64_t group = args_.first_expert + shared_.decoding.used[index_of(unit)];
    const int vectors = kChunkBytes / quant::device::vector_bytes(p.w.code);
    const int64_t at =
        (group * per_group_ + unit % per_group_) * (kUnit / kVector / vectors) + chunk;
    const int num_scales = p.folds ? vectors >> p.block_shift : 0;
    ptx::mbarrier_arrive_expect_tx(&ring_.full[place],
                                   static_cast<uint32_t>(kChunkBytes + num_scales));
    ptx::bulk_load(ring_.codes[place], p.w.values + at * kChunkBytes, kChunkBytes,
                   &ring_.full[place]);
    if (num_scales > 0) {
      ptx::bulk_load(ring_.scales[place], static_cast<const uint8_t*>(p.w.scale) + at * num_scales,
                     static_cast<uint32_t>(num_scales), &ring_.full[place]);
    }
  }

  template <Code kCode, bool kIsPacked = false>
  __device__ __forceinline__ void decode(int group, int slot) {
    constexpr int kBytes = quant::device::vector_bytes(kCode);
    constexpr int kVectors = kChunkBytes / kBytes;
    constexpr int kChunks = kUnit / kVector / kVectors;
    constexpr bool kFolds = kCode == Code::kE2M1;
    const DecodeArgs& p = args_.decode;
    const int unit = unit_ % per_group_;
    auto* to = static_cast<uint4*>(p.out) +
               (int64_t{slot} * per_group_ + unit) * (kUnit / kVector) + lane_;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      ptx::mbarrier_sleep_parity(&ring_.full[place_], parity_);
      const uint8_t* codes = ring_.codes[place_] + lane_ * kBytes;
      const uint8_t* scale = ring_.scales[place_] + (lane_ >> p.block_shift);
      const int scales_apart = kWarp >> p.block_shift;
#pragma unroll 1
      for (int first = 0; first < kVectors; first += kHeld * kWarp) {
        // All are loaded first, since loads do not pass stores.
        uint64_t held[kHeld];
        uint8_t scales[kHeld] = {};
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          held[h] = quant::device::load_codes(kCode, codes + h * kWarp * kBytes);
          if constexpr (kFolds) {
            scales[h] = *scale;
            scale += scales_apart;
          }
        }
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          to[h * kWarp] = decode_vector<BFloat16, kCode, kIsPacked>(
              held[h], p.w.default_zero_point, kFolds ? scale_of(p, scales[h]) : 1.0f);
        }
        codes += kHeld * kWarp * kBytes;
        to += kHeld * kWarp;
      }
      __syncwarp();
      if (lane_ == 0) {
        ptx::fence_proxy_async_shared();  // all lanes have read what is overwritten next
        const int ahead = chunk + Ring::kChunks;
        request(ahead < kChunks ? unit_ : claimed_, ahead % kChunks, place_);
      }
      if (++place_ == Ring::kChunks) {
        place_ = 0;
        parity_ ^= 1;
      }
    }
    decode_scales(group, unit);
  }

  // The scales of the rows that begin in a unit.
  __device__ __forceinline__ void decode_scales(int group, int unit) {
    const DecodeArgs& p = args_.decode;
    const int of_weights = args_.first_expert + group;
    const int first = static_cast<int>((int64_t{unit} * kUnit + p.k - 1) / p.k);
    const int end = static_cast<int>((int64_t{unit + 1} * kUnit + p.k - 1) / p.k);
    for (int n = first + lane_; n < end; n += kWarp) {
      p.column_scale[int64_t{group} * p.n + n] = decoded_column_scale(p, of_weights, n);
    }
    if constexpr (Config::kIsScaled) {
      const int blocks = p.num_blocks;
      const int64_t from = scale_row(p.w, of_weights, first);
      float* to = p.block_scale + int64_t{group} * blocks * p.n + first;
#pragma unroll 4
      for (int i = lane_; i < (end - first) * blocks; i += kWarp) {
        to[int64_t{i % blocks} * p.n + i / blocks] = weight_scale(p.w, from + i);
      }
    }
  }

  const Args& args_;
  Shared<Config>& shared_;
  Ring& ring_;
  int per_group_;
  int lane_ = static_cast<int>(ptx::lane());
  int unit_ = 0;     // the unit to decode
  int claimed_ = 0;  // in lane 0: the unit after it
  int place_ = 0;
  uint32_t parity_ = 0;
};

// Decodes until nothing is left.
template <typename Config>
__device__ __forceinline__ void decode_rest(Decoder<Config>& decoder) {
  for (Step step = decoder.step(); step != Step::kNothingLeft; step = decoder.step()) {
    if (step == Step::kSlotInUse) {
      __nanosleep(500);
    }
  }
}

// The work of a warp that only decodes.
template <typename Config>
__device__ __forceinline__ void decode_ahead(const Args& args, Shared<Config>& shared, int index) {
  ptx::await_kernel_before();
  Decoder<Config> decoder(args, shared, index);
  decode_rest(decoder);
}

// plan_tiles() by a whole warp, which decodes meanwhile.
template <typename Config>
__device__ __forceinline__ void plan_and_decode(const Args& args, Shared<Config>& shared) {
  ptx::await_kernel_before();
  Decoder<Config> decoder(args, shared, 0);
  Items<Config> items(args, shared);
  const bool plans = ptx::lane() == 0;
  uint32_t parity = 0;
  while (true) {
    if (plans) {
      items.draw();
      shared.plan.work.num_rows = 0;
      if (items.exists()) {
        shared.plan = items.plan();
      }
    }
    __syncwarp();
    if (ptx::uniform(shared.plan.work.num_rows) == 0) {
      break;
    }
    const int group = ptx::uniform(shared.plan.work.group);
    while (!decoder.is_decoded(group)) {
      if (decoder.step() != Step::kDecoded) {
        __nanosleep(200);
      }
    }
    if (plans) {
      ptx::mbarrier_arrive(&shared.plan_full);
    }
    const auto is_taken = [&] {
      return ptx::uniform(ptx::mbarrier_test_wait_parity(&shared.plan_empty, parity) ? 1 : 0) != 0;
    };
    while (!is_taken()) {
      const Step step = decoder.step();
      if (step == Step::kNothingLeft) {
        break;
      }
      if (step == Step::kSlotInUse) {
        __nanosleep(200);
      }
    }
    ptx::mbarrier_sleep_parity(&shared.plan_empty, parity);
    parity ^= 1;
    __syncwarp();
  }
  decode_rest(decoder);
  if (plans) {
    ptx::mbarrier_arrive(&shared.plan_full);
  }
}

}  // namespace moebius::cuda::sm90
