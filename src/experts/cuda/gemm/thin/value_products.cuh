// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// thin_codes.cu multiplies rows by codes of mxfp4 and nvfp4 by this class, which decodes them to
// the type of the rows.
#pragma once

#include <type_traits>

#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/thin/codes.cuh"

namespace moebius::cuda::thin {

// D: a Decoding of codes of 4 bits whose scales go into the elements.
template <typename D>
class ValueProducts {
 public:
  static_assert(D::kFolds);
  static constexpr int kRows = kEight;  // of a tile
  static constexpr int kSharedBytes = 0;

  __device__ __forceinline__ ValueProducts(const Args& args, uint32_t) : p_(args) {}

  // Finds the scales of the item that is requested.  Those of the one before have been loaded.
  __device__ __forceinline__ void find(const Place& place) { find_scales<D>(p_, place, scales_); }
  // The stage that is loaded next is that item's first.
  __device__ __forceinline__ void aim(const Place& place) {
    k_ = part() * kLane;
    has_row_ = quad() < place.tile.rows;
    row_ = row_of<T>(p_, place, quad(), k_);
  }
  // Loads what that stage needs beside its codes.
  __device__ __forceinline__ void load() {
    load_scales(k_);
    load_elements();
  }
  // Begins the sums of an item.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums_[j] = others_[j] = 0.0f;
    }
  }
  // Called ahead of each stage, while its codes may be on their way.
  __device__ __forceinline__ void prepare() {}
  // Multiplies a stage, and loads what the one after it needs.  `from`: where the codes of the
  // lane's first column are.
  __device__ __forceinline__ void multiply(uint32_t from) {
    bool is_large = false;
    if constexpr (D::kMayBeLarge) {
      const uint32_t largest =
          max(max(words_[0] & 0xffu, words_[0] >> 8), max(words_[1] & 0xffu, words_[1] >> 8));
      is_large = __any_sync(0xffffffffu, largest >= few_rows::kLargestE8m0);
    }
    if (is_large) {
      multiply_stage<true>(from);
    } else {
      multiply_stage<false>(from);
    }
    load_elements();
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

  static constexpr int kChunks = 2;  // of a lane and column in a stage
  static constexpr int kLane = kChunks * kChunkCodes;
  static constexpr int kWords = kLane / kEight;
  using Word = std::conditional_t<D::kIsPair, uint32_t, uint16_t>;  // the scales of kLane codes
  static_assert(sizeof(Word) == kScaleBytes<D> * (D::kIsPair ? 4 : 2));

  // Returns k, once `word` is there: ptxas does not know that permutations by own_bytes_ give their
  // first operand.
  __device__ __forceinline__ int after(uint32_t word, int k) const {
    return static_cast<int>(__byte_perm(k, word, own_bytes_));
  }
  __device__ __forceinline__ void load_scales(int k) {
    const uint32_t at = static_cast<uint32_t>(min(k, p_.k - kLane)) / kLane;
    words_[0] = scales_[0][at];
    words_[1] = scales_[1][at];
  }

  // Lanes without a row load nothing, since nobody stores their sums.  Codes beyond the end of K
  // are zeros, and elements must be, too, since zero times infinity is NaN.  These zeros are opaque
  // so that nvcc branches, instead of choosing each register in every stage.
  __device__ __forceinline__ void load_elements() {
    const bool wanted = has_row_ && k_ < p_.k;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      elements_[w] = ptx::ld_global_if(wanted, row_ + w * kEight);
    }
    if (k_ >= p_.k) {
#pragma unroll
      for (uint4& element : elements_) {
        const uint32_t zero = ptx::opaque(0u);
        element = {zero, zero, zero, zero};
      }
    }
    k_ += kStep;
    row_ += kStep;
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_stage(uint32_t from) {
    uint32_t by[kChunks][2];  // a scale, or two of neighbours, of either column
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      by[chunk][0] = folded<kIsSpecial>(words_[0], chunk);
      by[chunk][1] = folded<kIsSpecial>(words_[1], chunk);
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t codes[2][4];
      load_codes(from, kChunks * part() + chunk, codes);
      multiply_chunk<kIsSpecial>(codes, by[chunk], elements_ + chunk * kWords / kChunks);
      if (chunk == 0) {
        // ptxas lets warps await loads of rows and of scales together.  So scales are asked for
        // once the elements are here; otherwise products would wait for the next stage's scales.
        load_scales(after(elements_[0].x, k_));
      }
    }
  }

  // Returns what the codes of a chunk are multiplied by.
  template <bool kIsSpecial>
  __device__ __forceinline__ uint32_t folded(uint32_t word, int chunk) const {
    if constexpr (D::kIsPair) {
      return few_rows::folded_pair<D>(chunk == 0 ? word & 0xffffu : word >> 16, upper_bits_);
    } else {
      const uint32_t code = chunk == 0 ? word & 0xffu : word >> 8;
      return kIsSpecial ? few_rows::unfolded_e8m0(code) : few_rows::folded_e8m0(code);
    }
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_chunk(const uint32_t (&codes)[2][4],
                                                 const uint32_t (&folded)[2],
                                                 const uint4* row) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t by = D::kIsPair ? few_rows::one_half(folded[i], w >= 2) : folded[i];
        decode<kIsSpecial>(&codes[i][w], by, pairs[i]);
      }
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
  // These are opaque, too, since nvcc would make both of one word in every stage.
  uint32_t upper_bits_ = ptx::opaque(ptx::kept(packed_e4m3::kUpperBits, p_.k));
  uint32_t own_bytes_ = ptx::opaque(ptx::kept(0x3210, p_.k));
  const Word* scales_[2];
  // Two sums take turns, so that products do not wait for each other.
  float sums_[4];
  float others_[4];

  // These have been loaded for the stage that is multiplied.
  uint4 elements_[kWords];  // of the lane's row
  uint32_t words_[2];       // scales of either column; once they are used, those of the next stage

  // These belong to the stage that is loaded next.
  int k_;         // the lane's first
  const T* row_;  // from k_ on; lanes without a row have another lane's
  bool has_row_;
};

}  // namespace moebius::cuda::thin
