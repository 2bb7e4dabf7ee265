// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These warps fill the stages of few_rows_gemm.cu.  They take turns, so that each has the time of
// several stages to wait for its rows.  One thread requests the codes.  Rows go through
// registers, where elements of k are brought into the order in which codes are decoded.
#pragma once

#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"

namespace moebius::cuda::few_rows {

template <Code kCode, int kRows>
class Filler {
 public:
  // `index` is that of the warp among the filling ones.
  __device__ Filler(
      const Args& args, const TileStarts& starts, uint8_t* stages, Barriers& barriers, int index)
      : p_(args), items_{args, starts}, stages_(stages), barriers_(barriers), step_(index) {
    ring_.advance(index, p_.num_stages);
  }

  // Fetches to L2 the codes of the warp's first stage, while the kernel before ends.
  __device__ void prefetch() {
    const int item = static_cast<int>(blockIdx.x);
    if (item < items_.num() && step_ < p_.steps) {
      place_ = items_.find(item);
      if (ptx::elect_one()) {
        for_each_box([&](int /*box*/, int x, int y) { ptx::tensor_prefetch(&p_.codes, x, y); });
      }
      __syncwarp();
    }
  }

  __device__ void run() {
    const int num_items = items_.num();
    int item = static_cast<int>(blockIdx.x);
    if (item >= num_items) {
      return;
    }
    place_ = items_.find(item);
    while (true) {
      while (step_ >= p_.steps) {
        step_ -= p_.steps;
        item += static_cast<int>(gridDim.x);
        if (item >= num_items) {
          return;
        }
        place_ = items_.find(item);
      }
      fill();
      step_ += kFillers;
      ring_.advance(kFillers, p_.num_stages);
    }
  }

 private:
  using S = Step<kCode, kRows>;
  // A warp brings the slabs of these rows at once, and lane l % 8 row l % 8 of eight: what they
  // store then lies in different banks.
  static constexpr int kBlockRows = kWarp / S::kSlabs;

  struct Unit {
    uint4 eights[4];  // neighbours along k
    bool exists;
  };

  __device__ __forceinline__ int row_of(int block) const {
    return (block >> p_.team_shift) * kBlockRows + row_;
  }
  __device__ __forceinline__ int team_of(int block) const {
    return block & ((1 << p_.team_shift) - 1);
  }

  __device__ __forceinline__ Unit load(int block) const {
    Unit unit;
    const int row = row_of(block);
    const int first = ((step_ << p_.team_shift) + team_of(block)) * S::kK;
    unit.exists = row < place_.rows;
    const auto* from =
        reinterpret_cast<const BFloat16*>(p_.a.values) + (place_.row + row) * p_.k + first;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slab = S::kByChunks ? i : slab_;
      const int k = slab * kSlab + (S::kByChunks ? slab_ : i) * 8;
      unit.eights[i] = unit.exists && first + slab * kSlab < p_.k
                           ? *reinterpret_cast<const uint4*>(from + k)
                           : uint4{};
    }
    return unit;
  }

  __device__ __forceinline__ void store(const Unit& unit, int block, uint8_t* stage) const {
    if (!unit.exists) {
      return;
    }
    const int row = row_of(block);
    uint8_t* to =
        stage + kCodeBytes + team_of(block) * S::kRowBytes + slab_ / 2 * S::kTileBytes + row * 128;
    uint4 own[4];  // of the lanes of a quad
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own[i] = in_order_of<kCode>(S::kWords == 1 ? unit.eights[i] : halves(unit, i));
    }
    const auto store = [&](int i, const uint4& pairs) {
      *reinterpret_cast<uint4*>(to + (((slab_ % 2 * 4 + i) ^ (row % 8)) << 4)) = pairs;
    };
    store(0, make_uint4(own[0].x, own[1].x, own[2].x, own[3].x));
    store(1, make_uint4(own[0].y, own[1].y, own[2].y, own[3].y));
    store(2, make_uint4(own[0].z, own[1].z, own[2].z, own[3].z));
    store(3, make_uint4(own[0].w, own[1].w, own[2].w, own[3].w));
  }
  // Codes of 8 bits: lane l has words l of both chunks of a slab, each of four codes.
  __device__ __forceinline__ static uint4 halves(const Unit& unit, int l) {
    const uint4& a = unit.eights[l / 2];
    const uint4& b = unit.eights[2 + l / 2];
    return l % 2 == 0 ? make_uint4(a.x, a.y, b.x, b.y) : make_uint4(a.z, a.w, b.z, b.w);
  }

  // How many of the boxes of a team lie within the columns.
  __device__ __forceinline__ int boxes_of_team() const {
    const int columns = min(p_.n - place_.column, kColumns >> p_.team_shift);
    return (columns + kGroupColumns - 1) / kGroupColumns;
  }
  // Calls f(box, x, y) with the coordinates of each box of a stage.
  template <typename F>
  __device__ __forceinline__ void for_each_box(const F& f) const {
    const int side_by_side = kGroups >> p_.team_shift;
    const int boxes = boxes_of_team();
#pragma unroll
    for (int box = 0; box < kGroups; ++box) {
      const int beside = box & (side_by_side - 1);
      const int team = box >> (2 - p_.team_shift);
      if (beside < boxes) {
        f(box, ((step_ << p_.team_shift) + team) * kStepBytes,
          place_.group * p_.n + place_.column + beside * kGroupColumns);
      }
    }
  }
  __device__ __forceinline__ void request_codes(uint8_t* stage, uint64_t* full) const {
    const int bytes = (boxes_of_team() << p_.team_shift) * kBoxBytes;
    ptx::mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(bytes));
    for_each_box([&](int box, int x, int y) {
      ptx::tensor_load(ptx::shared_address(stage) + static_cast<uint32_t>(box * kBoxBytes),
                       &p_.codes, x, y, ptx::shared_address(full));
    });
  }

  __device__ __forceinline__ void fill() const {
    const int blocks = (place_.rows + kBlockRows - 1) / kBlockRows << p_.team_shift;
    uint8_t* stage = stages_ + ring_.slot * p_.stage_bytes;
    uint64_t* full = &barriers_.full[ring_.slot];
    Unit first = load(0);
    Unit second = load(1);
    // pairs with Worker::release: the stage has been read.
    ptx::mbarrier_wait_parity(&barriers_.empty[ring_.slot], ring_.parity ^ 1);
    if (ptx::elect_one()) {
      request_codes(stage, full);
    }
    __syncwarp();
    store(first, 0, stage);
    store(second, 1, stage);
#pragma unroll 1
    for (int block = 2; block < blocks; block += 2) {
      first = load(block);
      second = load(block + 1);
      store(first, block, stage);
      store(second, block + 1, stage);
    }
    ptx::fence_proxy_async_shared();  // wgmma reads rows
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive(full);
    }
    __syncwarp();
  }

  const Args& p_;
  Items<kRows> items_;
  uint8_t* stages_;
  Barriers& barriers_;
  int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  int row_ = lane_ % 8 + lane_ / (8 * S::kSlabs) * 8;
  int slab_ = lane_ / 8 % S::kSlabs;
  int step_;  // of the item, as all below
  Place place_ = {};
  Ring ring_;
};

}  // namespace moebius::cuda::few_rows
