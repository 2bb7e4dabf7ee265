// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// thin_codes.cu multiplies int4 codes and rows as integers by this class.
//
// A row becomes integers, 128 neighbours at a time, which share a scale of the weights: multiples
// of 2^-21 of the power of two that is above the largest of them.  Each is written as three digits
// of eight bits with signs, and an operand of the tensor cores has a column for each digit of two
// rows.  Codes become integers of eight bits by three instructions for eight of them, where bf16
// takes eleven.  Sums over 128 neighbours are exact in i32.  So an element is off by at most 2^-21
// of the largest of its neighbours, which is about what sums in f32 lose, or by 2^-127.
// Two infinite elements among 128 neighbours may give infinity where f32 sums give NaN.
#pragma once

#include <type_traits>

#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/dequant/few_rows_scales.cuh"
#include "experts/cuda/gemm/thin/codes.cuh"

namespace moebius::cuda::thin {

// D: a Decoding of int4.
template <typename D>
class DigitProducts {
 public:
  static_assert(D::kCode == quant::Code::kU4 && !D::kFolds);
  static constexpr int kRows = 2;  // of a tile
  static constexpr int kDigits = 3;
  static constexpr int kRowColumns = 4;  // of the operand; the last is not used
  static constexpr int kHalves = 2;      // of a stage, whose codes share a scale
  static constexpr int kHalf = kStep / kHalves;
  static constexpr int kColumnBytes = kHalf + kChunk;  // why more: so banks differ
  static constexpr int kHalfBytes = kEight * kColumnBytes;
  static constexpr int kSharedBytes = kHalves * kHalfBytes;  // of a warp

  __device__ __forceinline__ DigitProducts(const Args& args, uint32_t shared)
      : p_(args), digits_(shared) {}

  // These are as in ValueProducts.
  __device__ __forceinline__ void find(const Place& place) { find_scales<D>(p_, place, scales_); }
  __device__ __forceinline__ void aim(const Place& place) {
    k_ = 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      rows_[row] = row_of<T>(p_, place, row, first_k());
    }
    comes_second_ = place.tile.rows > 1;
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int k = k_ + half * kHalf;
      const int own_k = min(k + part() * kChunkCodes, p_.k - kChunkCodes);
      const uint32_t scale = static_cast<uint32_t>(own_k) >> p_.scale_shift;
      words_[half][0] = scales_[0][scale];
      words_[half][1] = scales_[1][scale];
      const bool exists = k + first_k() < p_.k;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        elements_[row][half] = exists && (row == 0 || comes_second_)
                                   ? *reinterpret_cast<const uint4*>(rows_[row] + k)
                                   : uint4{};
      }
    }
    has_second_ = comes_second_;
    k_ += kStep;
  }
  __device__ __forceinline__ void begin() {
    sums_[0] = sums_[1] = 0.0f;
  }
  // Makes digits of the stage that has been loaded, and loads the next.
  __device__ __forceinline__ void prepare() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float factor = store_digits(elements_[0][half], half, 0);
      if (has_second_) {
        const float second = store_digits(elements_[1][half], half, 1);
        factor = part() < 2 ? factor : second;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        by_[half][i] = factor * few_rows::scale_value<typename D::Scale>(words_[half][i]);
      }
    }
    load();
    __syncwarp();  // all digits are there
  }

  __device__ __forceinline__ void multiply(uint32_t from) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      uint32_t codes[2][4];
      load_codes(from, part() + 4 * half, codes);
      const uint32_t own =
          digits_ +
          static_cast<uint32_t>(half * kHalfBytes + quad() * kColumnBytes + part() * kChunkCodes);
      uint32_t digits[2][4];
      ptx::ld_shared(own, digits[0]);
      ptx::ld_shared(own + kChunk, digits[1]);
      int32_t sums[4] = {};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t elements[4] = {even_codes(codes[0][w]), even_codes(codes[1][w]),
                                      odd_codes(codes[0][w]), odd_codes(codes[1][w])};
        ptx::mma_s8(sums, elements, digits[w / 2][w % 2 * 2], digits[w / 2][w % 2 * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t sum = part() % 2 == 0 ? sums[2 * i] * 256 + sums[2 * i + 1] : sums[2 * i];
        sums_[i] = __fmaf_rn(static_cast<float>(sum), by_[half][i], sums_[i]);
      }
    }
  }

  // Lanes with part() 0 have both rows.
  __device__ __forceinline__ void sums(float (&sums)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[2 * i] = sums_[i] + __shfl_xor_sync(kAll, sums_[i], 1);
      sums[2 * i + 1] = __shfl_down_sync(kAll, sums[2 * i], 2);
    }
  }

 private:
  using T = typename D::Element;
  using Word = std::conditional_t<kScaleBytes<D> == 4, uint32_t, uint16_t>;
  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr uint32_t kSigns = 0x80808080u;
  static constexpr uint32_t kLargeExponent = 255;  // of NaN and infinity
  static constexpr uint32_t kLeastExponent = 21;   // so that step and inverse are normal

  // These return codes 0, 2, 4 and 6 of a word, or the others, less 8 and times kCodeFactor.
  static constexpr float kCodeFactor = 16.0f;
  __device__ __forceinline__ static uint32_t even_codes(uint32_t word) {
    return ptx::and_xor(word << 4, 0xf0f0f0f0u, kSigns);
  }
  __device__ __forceinline__ static uint32_t odd_codes(uint32_t word) {
    return ptx::and_xor(word, 0xf0f0f0f0u, kSigns);
  }

  // Two lanes share eight neighbours of a half: one has those in even places, the other the rest.
  __device__ __forceinline__ static int first_k() {
    return lane() / 2 * kEight;
  }

  // Returns that of two elements which the lane has.
  __device__ __forceinline__ static float own_element(BFloat16, uint32_t pair) {
    return __uint_as_float(__byte_perm(pair, 0, lane() % 2 == 0 ? 0x1044 : 0x3244));
  }
  __device__ __forceinline__ static float own_element(Float16, uint32_t pair) {
    return widen_pair(Float16{}, lane() % 2 == 0 ? pair : pair >> 16).x;
  }

  // Stores the digits of the lane's elements.  Returns what sums of the lane's digits are to be
  // multiplied by: lanes with an even part() have those of the first and second digit as one
  // number, and the others those of the third.
  __device__ __forceinline__ float store_digits(const uint4& eight, int half, int row) const {
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
    float x[4];
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = own_element(T{}, words[i]);
      own = max(own, __float_as_uint(x[i]) & 0x7fffffffu);
    }
    const uint32_t largest = __reduce_max_sync(kAll, own);
    const uint32_t exponent = max(largest >> 23, kLeastExponent);
    float step = __uint_as_float((exponent - 20) << 23);
    float inverse = __uint_as_float((274 - exponent) << 23);
    float last_step = step;
    if (exponent == kLargeExponent) {
      // Infinity becomes a digit, and its step is infinite; with NaN the step is NaN.
      step = __uint_as_float(largest);
      last_step = 0.0f;
      inverse = 1.0f;
#pragma unroll
      for (float& element : x) {
        element = isinf(element) ? copysignf(65536.0f, element) : 0.0f;
      }
    }
    constexpr float kToInteger = 0x1.8p23f;
    constexpr int32_t kHalves16 = 0x8080;  // lets the lower digits be rounded
    int32_t q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = __float_as_int(__fmaf_rn(x[i], inverse, kToInteger)) - (0x4b400000 - kHalves16);
    }
    const uint32_t low01 = __byte_perm(q[0], q[1], 0x5140);
    const uint32_t low23 = __byte_perm(q[2], q[3], 0x5140);
    const uint32_t high01 = __byte_perm(q[0], q[1], 0x0062);
    const uint32_t high23 = __byte_perm(q[2], q[3], 0x0062);
    const uint32_t digits[kDigits] = {__byte_perm(high01, high23, 0x5410),
                                      __byte_perm(low01, low23, 0x7632) ^ kSigns,
                                      __byte_perm(low01, low23, 0x5410) ^ kSigns};
    const uint32_t to =
        digits_ + static_cast<uint32_t>(half * kHalfBytes + row * kRowColumns * kColumnBytes +
                                        lane() * int{sizeof(uint32_t)});
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      ptx::st_shared_word(to + static_cast<uint32_t>(digit * kColumnBytes), digits[digit]);
    }
    return part() % 2 == 0 ? step * (256.0f / kCodeFactor) : last_step * (1.0f / kCodeFactor);
  }

  const Args& p_;
  uint32_t digits_;
  float sums_[2];  // of a digit or two, in both columns

  float by_[kHalves][2];  // what sums of the stage that is multiplied are multiplied by

  // These belong to the stage that is loaded next.
  int k_;
  const T* rows_[kRows];  // from first_k() on
  const Word* scales_[2];
  bool comes_second_;  // whether its tile has a second row

  // These belong to the stage that has been loaded.
  bool has_second_;
  uint4 elements_[kRows][kHalves];
  uint32_t words_[kHalves][2];
};

}  // namespace moebius::cuda::thin
