// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// thin_codes.cu multiplies rows by codes of mxfp4 and nvfp4 by this class, which decodes them to
// the type of the rows.
#pragma once

#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/thin/codes.cuh"

namespace moebius::cuda::thin {

// A lane multiplies by these where K ends before its elements.
__device__ const uint4 kNoElements[kLane / kEight] = {};

// D: a Decoding of codes of 4 bits whose scales go into the elements.
template <typename D>
class ValueProducts {
 public:
  static_assert(D::kFolds);
  static constexpr int kRows = kEight;  // of a tile
  static constexpr int kSharedBytes = 0;

  __device__ __forceinline__ ValueProducts(const Args& args, uint32_t) : p_(args) {}

  // The stage that comes next is the first of an item.
  __device__ __forceinline__ void aim(const Place& place) {
    k_ = part() * kLane;
    row_ = row_of<T>(p_, place, quad(), k_);
    scales_.aim(p_, place);
  }
  // Loads what the stage that comes next needs beside its codes.
  __device__ __forceinline__ void load() { scales_.load(p_, k_, words_); }
  // Begins the sums of an item.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums_[j] = others_[j] = 0.0f;
    }
  }
  // Makes the stage that has been loaded the one that is multiplied, and asks for its elements of
  // the row, so that they come while its codes are awaited.
  __device__ __forceinline__ void prepare() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      by_[half][0] = words_[half][0];
      by_[half][1] = words_[half][1];
      const auto* own = k_ + half * kHalf < p_.k
                            ? reinterpret_cast<const uint4*>(row_ + half * kHalf)
                            : kNoElements;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        elements_[half][w] = own[w];
      }
    }
    k_ += kStep;
    row_ += kStep;
  }
  // Multiplies a stage.  `from`: where the codes of the lane's first column are.
  __device__ __forceinline__ void multiply(uint32_t from) {
    bool is_large = false;
    if constexpr (D::kMayBeLarge) {
      const uint32_t largest = max(max(by_[0][0], by_[0][1]), max(by_[1][0], by_[1][1]));
      is_large = __any_sync(0xffffffffu, largest >= few_rows::kLargestE8m0);
    }
    if (is_large) {
      multiply_stage<true>(from);
    } else {
      multiply_stage<false>(from);
    }
  }
  // Sets `sums` to those of rows 2 part() and 2 part() + 1, in the lane's first column and then in
  // its second.
  __device__ __forceinline__ void sums(float (&sums)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums[j] = sums_[j] + others_[j];
    }
  }

 private:
  using T = typename D::Element;

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_stage(uint32_t from) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      uint32_t codes[2][4];
      load_codes(from, half, codes);
      multiply_half<kIsSpecial>(codes, by_[half], elements_[half]);
    }
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_half(const uint32_t (&codes)[2][4],
                                                const uint32_t (&words)[2],
                                                const uint4 (&row)[4]) {
    uint32_t by[2][2];  // of either column, for its first and for its second 16 neighbours
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (D::kIsPair) {
        const uint32_t both = few_rows::folded_pair<D>(words[i], upper_bits_);
        by[i][0] = few_rows::one_half(both, false);
        by[i][1] = few_rows::one_half(both, true);
      } else {
        by[i][0] = kIsSpecial ? few_rows::unfolded_e8m0(words[i]) : few_rows::folded_e8m0(words[i]);
        by[i][1] = by[i][0];
      }
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[2][4];
      decode<kIsSpecial>(&codes[0][w], by[0][w / 2], pairs[0]);
      decode<kIsSpecial>(&codes[1][w], by[1][w / 2], pairs[1]);
      const uint32_t first[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
      const uint32_t second[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
      product(T{}, sums_, first, row[w].x, row[w].y);
      product(T{}, others_, second, row[w].z, row[w].w);
    }
  }
  // Decodes eight codes to pairs of neighbours, in their order.  So rows are multiplied as they lie
  // in the registers to which they are loaded; to move them took longer.
  template <bool kIsSpecial>
  __device__ __forceinline__ static void decode(const uint32_t* word,
                                                uint32_t by,
                                                uint32_t (&pairs)[4]) {
    uint32_t own[4];
    few_rows::decode_pairs<D, kIsSpecial>(word, by, own);
    if constexpr (D::kIsPacked) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[packed_e2m1::first_code(i) / 2] = own[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // own[j] has codes j and j + 4.
        const int from = i % 2 * 2;
        pairs[i] = __byte_perm(own[from], own[from + 1], i < 2 ? 0x5410 : 0x7632);
      }
    }
  }
  __device__ __forceinline__ static void product(
      BFloat16, float (&sums)[4], const uint32_t (&elements)[4], uint32_t x0, uint32_t x1) {
    ptx::mma_bf16(sums, elements, x0, x1);
  }
  __device__ __forceinline__ static void product(
      Float16, float (&sums)[4], const uint32_t (&elements)[4], uint32_t x0, uint32_t x1) {
    ptx::mma_f16(sums, elements, x0, x1);
  }

  const Args& p_;
  LaneScales<D> scales_;
  uint32_t upper_bits_ = ptx::kept(packed_e4m3::kUpperBits, p_.k);
  // Two sums take turns, so that products do not wait for each other.
  float sums_[4];
  float others_[4];

  // These belong to the stage that is multiplied.
  uint4 elements_[kHalves][4];  // of the lane's row
  typename LaneScales<D>::Words by_;

  // These belong to the stage that comes next.
  int k_;         // the lane's first
  const T* row_;  // from k_ on; lanes without a row have another lane's
  typename LaneScales<D>::Words words_;
};

}  // namespace moebius::cuda::thin
