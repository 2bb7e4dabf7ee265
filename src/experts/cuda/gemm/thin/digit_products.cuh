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
  // Makes digits of the stage that has been loaded, and loads the next.  The lane's own are loaded
  // while codes may still be on their way.
  __device__ __forceinline__ void prepare() {
    float factors[kHalves];
    store_digits(0, factors);
    if (has_second_) {
      float others[kHalves];
      store_digits(1, others);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        factors[half] = part() < 2 ? factors[half] : others[half];
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        by_[half][i] = factors[half] * few_rows::scale_value<typename D::Scale>(words_[half][i]);
      }
    }
    load();
    __syncwarp();  // all digits are there
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t own =
          digits_ +
          static_cast<uint32_t>(half * kHalfBytes + quad() * kColumnBytes + part() * kChunkCodes);
      ptx::ld_shared(own, own_digits_[half][0]);
      ptx::ld_shared(own + kChunk, own_digits_[half][1]);
    }
  }

  // Products of both halves take turns, so that they do not wait for each other.
  __device__ __forceinline__ void multiply(uint32_t from) {
    uint32_t codes[kHalves][2][4];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      load_codes(from, part() + 4 * half, codes[half]);
    }
    int32_t sums[kHalves][4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint32_t first = codes[half][0][w];
        const uint32_t second = codes[half][1][w];
        const uint32_t elements[4] = {even_codes(first), even_codes(second), odd_codes(first),
                                      odd_codes(second)};
        const uint32_t* own = own_digits_[half][w / 2] + w % 2 * 2;
        ptx::mma_s8(sums[half], elements, own[0], own[1]);
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t* both = sums[half] + 2 * i;
        const int32_t sum = part() % 2 == 0 ? both[0] * 256 + both[1] : both[0];
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

  // Stores the digits of the lane's elements of a row.  Sets `by` to what sums of the lane's digits
  // are to be multiplied by: lanes with an even part() have those of the first and second digit as
  // one number, and the others those of the third.  Both halves go side by side, since a lane waits
  // for what all lanes find together.
  __device__ __forceinline__ void store_digits(int row, float (&by)[kHalves]) const {
    float x[kHalves][4];
    uint32_t largest[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint4& eight = elements_[row][half];
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
      uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[half][i] = own_element(T{}, words[i]);
        own = max(own, __float_as_uint(x[half][i]) & 0x7fffffffu);
      }
      largest[half] = __reduce_max_sync(kAll, own);
    }
    float step[kHalves];
    float last_step[kHalves];
    float inverse[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t exponent = max(largest[half] >> 23, kLeastExponent);
      last_step[half] = step[half] = __uint_as_float((exponent - 20) << 23);
      inverse[half] = __uint_as_float((274 - exponent) << 23);
    }
    // Both halves share one branch, which is rarely taken.
    if (max(largest[0], largest[1]) >> 23 == kLargeExponent) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (largest[half] >> 23 == kLargeExponent) {
          // Infinity becomes a digit, and its step is infinite; with NaN the step is NaN.
          step[half] = __uint_as_float(largest[half]);
          last_step[half] = 0.0f;
          inverse[half] = 1.0f;
#pragma unroll
          for (float& element : x[half]) {
            element = isinf(element) ? copysignf(65536.0f, element) : 0.0f;
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      store_four(
          x[half], inverse[half],
          digits_ + static_cast<uint32_t>(half * kHalfBytes + row * kRowColumns * kColumnBytes));
      by[half] = part() % 2 == 0 ? step[half] * (256.0f / kCodeFactor)
                                 : last_step[half] * (1.0f / kCodeFactor);
    }
  }
  // Stores three digits of each of four elements times `inverse`.
  __device__ __forceinline__ static void store_four(const float (&x)[4],
                                                    float inverse,
                                                    uint32_t first) {
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
    const uint32_t to = first + static_cast<uint32_t>(lane() * int{sizeof(uint32_t)});
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      ptx::st_shared_word(to + static_cast<uint32_t>(digit * kColumnBytes), digits[digit]);
    }
  }

  const Args& p_;
  uint32_t digits_;
  float sums_[2];  // of a digit or two, in both columns

  // These belong to the stage that is multiplied.
  uint32_t own_digits_[kHalves][2][4];  // of the lane's column of the operand
  float by_[kHalves][2];                // what sums are multiplied by

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
