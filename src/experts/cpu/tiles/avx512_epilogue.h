// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of a product (TileEpilogue) in the AMX and the AVX-512 tile kernels.  Only files
// built for AVX-512 BF16 include this header; each has its own copy, as in avx512_tiles.h.
#pragma once

#include <algorithm>
#include <cstddef>

#include "experts/cpu/tiles/avx512_tiles.h"
#include "experts/cpu/tiles/tile_epilogue.h"

namespace moebius::cpu {

namespace {

// Rounds the 16 values of `low`, then those of `high`, to one register of bf16.
inline __m512i join_bf16(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
inline __m512 widen_words(__m512i words, const uint16_t (&from)[32]) {
  constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(kUpperHalves, _mm512_load_si512(from), words));
}
inline __m512 widen_low(__m512i words) {
  alignas(64) static constexpr uint16_t kFrom[32] = {0, 0,  0, 1,  0, 2,  0, 3,  0, 4, 0,
                                                     5, 0,  6, 0,  7, 0,  8, 0,  9, 0, 10,
                                                     0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  return widen_words(words, kFrom);
}
inline __m512 widen_high(__m512i words) {
  alignas(64) static constexpr uint16_t kFrom[32] = {0,  16, 0,  17, 0,  18, 0,  19, 0,  20, 0,
                                                     21, 0,  22, 0,  23, 0,  24, 0,  25, 0,  26,
                                                     0,  27, 0,  28, 0,  29, 0,  30, 0,  31};
  return widen_words(words, kFrom);
}

// Computes x / (1 + e^-z) for kCount registers, in four parts.  e^t is 2^i * e^r with |r| <= ln2 /
// 2, by the series to r^6, whose remainder is below 2e-7; the reciprocal takes one Newton step.
// Where e^-z is beyond f32, the result is x times 0.  NaN stays NaN.
template <size_t kCount>
class Sigmoid {
 public:
  [[gnu::always_inline]] void start(size_t k, __m512 z) {
    const __m512 largest = _mm512_set1_ps(kLargestExponent);
    t_[k] = _mm512_sub_ps(_mm512_setzero_ps(), z);
    is_finite_[k] = _mm512_cmp_ps_mask(t_[k], largest, _CMP_NGT_UQ);
    t_[k] = _mm512_min_ps(largest, t_[k]);
    t_[k] = _mm512_max_ps(_mm512_set1_ps(-87.0f), t_[k]);
  }
  [[gnu::always_inline]] void reduce() {
    for (size_t k = 0; k < kCount; ++k) {
      i_[k] = _mm512_roundscale_ps(_mm512_mul_ps(t_[k], _mm512_set1_ps(1.44269504f)), 0);
      t_[k] = _mm512_fnmadd_ps(i_[k], _mm512_set1_ps(0.693359375f), t_[k]);
      t_[k] = _mm512_fnmadd_ps(i_[k], _mm512_set1_ps(-2.12194440e-4f), t_[k]);
      p_[k] = _mm512_fmadd_ps(_mm512_set1_ps(1.0f / 720), t_[k], _mm512_set1_ps(1.0f / 120));
    }
  }
  [[gnu::always_inline]] void sum() {
    for (const float factor : {1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
      for (size_t k = 0; k < kCount; ++k) {
        p_[k] = _mm512_fmadd_ps(p_[k], t_[k], _mm512_set1_ps(factor));
      }
    }
    for (size_t k = 0; k < kCount; ++k) {
      p_[k] = _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p_[k], i_[k]));
      t_[k] = _mm512_rcp14_ps(p_[k]);
    }
  }
  [[gnu::always_inline]] __m512 times(size_t k, __m512 x) const {
    const __m512 correction = _mm512_fnmadd_ps(p_[k], t_[k], _mm512_set1_ps(2.0f));
    return _mm512_mul_ps(x, _mm512_maskz_mul_ps(is_finite_[k], t_[k], correction));
  }

 private:
  static constexpr float kLargestExponent = 88.722f;

  __mmask16 is_finite_[kCount];
  __m512 t_[kCount];  // -z within bounds, then r, then about 1 / p
  __m512 i_[kCount];
  __m512 p_[kCount];  // the series, then 1 + e^-z
};

inline __m512 mul_sigmoid16(__m512 x, __m512 z) {
  Sigmoid<1> sigmoid;
  sigmoid.start(0, z);
  sigmoid.reduce();
  sigmoid.sum();
  return sigmoid.times(0, x);
}

// The argument of the gate's sigmoid.  REQUIRES: kSilu or kGeluTanh.
inline __m512 sigmoid_argument(Activation kind, __m512 g) {
  if (kind == Activation::kSilu) {
    return g;
  }
  constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(g, g), g);
  const __m512 z = _mm512_fmadd_ps(cubic, _mm512_set1_ps(0.044715f), g);
  return _mm512_mul_ps(z, _mm512_set1_ps(kScale));
}

// The activation of the gate alone, before any rounding.  REQUIRES: kSilu, kGeluTanh or kRelu2.
inline __m512 activate16(Activation kind, __m512 g) {
  if (kind == Activation::kRelu2) {
    const __m512 positive = _mm512_max_ps(_mm512_setzero_ps(), g);
    return _mm512_mul_ps(positive, positive);
  }
  return mul_sigmoid16(g, sigmoid_argument(kind, g));
}

// These two pass NaN through.  That is why the bound is the first operand.
inline __m512 at_most16(__m512 x, float limit) {
  return _mm512_min_ps(_mm512_set1_ps(limit), x);
}
inline __m512 clamped16(__m512 x, float limit) {
  return _mm512_max_ps(_mm512_set1_ps(-limit), at_most16(x, limit));
}

inline __m512 swiglu_oai16(const ActivationSpec& spec, __m512 g, __m512 u) {
  g = at_most16(g, spec.limit);
  const __m512 act = mul_sigmoid16(g, _mm512_mul_ps(g, _mm512_set1_ps(spec.alpha)));
  return _mm512_mul_ps(_mm512_add_ps(clamped16(u, spec.limit), _mm512_set1_ps(spec.beta)), act);
}

inline __m512 swiglu_step16(const ActivationSpec& spec, __m512 g, __m512 u) {
  return _mm512_mul_ps(at_most16(mul_sigmoid16(g, g), spec.limit), clamped16(u, spec.limit));
}

inline void put16(const TileEpilogue& e, std::byte* out, __m512 v) {
  const __m256i bits = to_bf16(_mm512_mul_ps(v, _mm512_set1_ps(e.act_factor)));
  if (e.as_f32) {
    _mm512_storeu_ps(out, widen_bf16(bits));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bits);
  }
}

// The address of the first value of row r of C.  The next tile has the 16 columns that follow.
inline const float* c_row(const float* c, int64_t r) {
  const auto row = static_cast<uint64_t>(r);
  return c + row / kTileRows * 2 * kTileFloats + row % kTileRows * 16;
}

// Says what becomes of sums before anything is rounded.
enum class SumForm : uint8_t {
  kPlain,           // nothing
  kScaledIntegers,  // i32, times the scales of their row and column
  kAny,             // whatever the epilogue says
};

inline SumForm form_of(const TileEpilogue& e) {
  const bool has_row_scales = e.row_scales != nullptr;
  const bool has_column_scales = e.column_scales != nullptr;
  if (e.bias != nullptr || e.addend != nullptr) {
    return SumForm::kAny;
  }
  if (e.integers && has_row_scales && has_column_scales) {
    return SumForm::kScaledIntegers;
  }
  return !e.integers && !has_row_scales && !has_column_scales ? SumForm::kPlain : SumForm::kAny;
}

template <typename Body>
auto with_form(SumForm form, Body body) {
  switch (form) {
    case SumForm::kPlain:
      return body.template operator()<SumForm::kPlain>();
    case SumForm::kScaledIntegers:
      return body.template operator()<SumForm::kScaledIntegers>();
    default:
      return body.template operator()<SumForm::kAny>();
  }
}

// Finishes 16 values of row `row`, whose sums begin at c.
template <SumForm kForm>
inline __m512 finish16(const TileEpilogue& e, const float* c, int64_t row, int64_t half) {
  c += half * kTileFloats;
  if constexpr (kForm == SumForm::kPlain) {
    return load16(c);
  }
  if constexpr (kForm == SumForm::kScaledIntegers) {
    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(c)),
                                        _mm512_set1_ps(e.row_scales[row * e.scale_stride]));
    return _mm512_mul_ps(scaled, load16(e.column_scales + half * 16));
  }
  __m512 v = e.integers ? _mm512_cvtepi32_ps(_mm512_loadu_si512(c)) : load16(c);
  if (e.row_scales != nullptr) {
    v = _mm512_mul_ps(v, _mm512_set1_ps(e.row_scales[row * e.scale_stride]));
  }
  if (e.column_scales != nullptr) {
    v = _mm512_mul_ps(v, load16(e.column_scales + half * 16));
  }
  if (e.bias != nullptr) {
    v = _mm512_add_ps(v, load16(e.bias + half * 16));
  }
  if (e.addend != nullptr) {
    v = _mm512_add_ps(v, load16(e.addend + row * kBlockColumns + half * 16));
  }
  return v;
}

// Activates one row, for activations that ActivatedRows does not support.
inline void activate_row(const TileEpilogue& e, __m512 left, __m512 right, std::byte* out) {
  const ActivationSpec& spec = *e.activation;
  left = round_bf16(left);
  right = round_bf16(right);
  if (!spec.gated) {
    put16(e, out, activate16(spec.kind, left));
    put16(e, out + e.half_stride, activate16(spec.kind, right));
  } else if (spec.kind == Activation::kSwigluOai) {
    put16(e, out, swiglu_oai16(spec, left, right));
  } else if (spec.kind == Activation::kSwigluStep) {
    put16(e, out, swiglu_step16(spec, left, right));
  } else {
    put16(e, out, _mm512_mul_ps(round_bf16(activate16(spec.kind, left)), right));
  }
}

// Activates two gated rows by the sigmoid: r, which is even, and r + 1 if that is below end.  It
// does so in kParts parts, each of which has short chains of arithmetic.  Why two rows: their 2 x
// 16 values are rounded by one instruction for 32.
class ActivatedRows {
 public:
  static constexpr int64_t kRows = 2;
  static constexpr int64_t kParts = 4;

  static bool supports(const ActivationSpec& spec) {
    return spec.gated && (spec.kind == Activation::kSilu || spec.kind == Activation::kGeluTanh);
  }

  // Why it is inlined: all of this then stays in the registers of the loop that multiplies.
  template <int kPart, SumForm kForm>
  [[gnu::always_inline]] void part(const TileEpilogue& e, const float* c, int64_t r, int64_t end) {
    const int64_t next = std::min(r + 1, end - 1);
    if constexpr (kPart == 0) {
      start<kForm>(e, c, r, next);
    } else if constexpr (kPart == 1) {
      sigmoid_.reduce();
    } else if constexpr (kPart == 2) {
      sigmoid_.sum();
    } else {
      store(e, r, next);
    }
  }

 private:
  template <SumForm kForm>
  [[gnu::always_inline]] void start(const TileEpilogue& e,
                                    const float* c,
                                    int64_t r,
                                    int64_t next) {
    const float* row = c_row(c, r);
    const float* next_row = c_row(c, next);
    gate_ = join_bf16(finish16<kForm>(e, row, r, 0), finish16<kForm>(e, next_row, next, 0));
    up_ = join_bf16(finish16<kForm>(e, row, r, 1), finish16<kForm>(e, next_row, next, 1));
    sigmoid_.start(0, sigmoid_argument(e.activation->kind, widen_low(gate_)));
    sigmoid_.start(1, sigmoid_argument(e.activation->kind, widen_high(gate_)));
  }
  [[gnu::always_inline]] void store(const TileEpilogue& e, int64_t r, int64_t next) const {
    const __m512i act =
        join_bf16(sigmoid_.times(0, widen_low(gate_)), sigmoid_.times(1, widen_high(gate_)));
    const __m512 factor = _mm512_set1_ps(e.act_factor);
    const __m512i words =
        join_bf16(_mm512_mul_ps(_mm512_mul_ps(widen_low(act), widen_low(up_)), factor),
                  _mm512_mul_ps(_mm512_mul_ps(widen_high(act), widen_high(up_)), factor));
    // Where there is no row r + 1, row r is stored twice.
    std::byte* out = e.act_row(r);
    std::byte* next_out = out + (next - r) * e.row_stride;
    if (e.as_f32) {
      _mm512_storeu_ps(out, widen_low(words));
      _mm512_storeu_ps(next_out, widen_high(words));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(words));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(next_out),
                          _mm512_extracti64x4_epi64(words, 1));
    }
  }

  __m512i gate_;
  __m512i up_;
  Sigmoid<2> sigmoid_;
};

// Rounds a product to bf16, subnormal or not, and adds it to +0.
inline __m256i round_product16(__m512 product) {
  const __m512i bits = _mm512_castps_si512(product);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_and_si512(_mm512_add_epi32(bits, up), _mm512_set1_epi32(-0x10000));
  const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(rounded), _mm512_setzero_ps());
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(sum), 16));
}

// Weights values as TileEpilogue::weights says.  The multiply-add adds +0 to the product before it
// is rounded, so a result of -0 means that the product is too small for f32.
inline __m512i weighted(__m512i values, float weight) {
  constexpr int kSubnormalOrMinusZero = 0x24;
  const __m512 factor = _mm512_set1_ps(weight);
  const __m512 low = _mm512_fmadd_ps(widen_low(values), factor, _mm512_setzero_ps());
  const __m512 high = _mm512_fmadd_ps(widen_high(values), factor, _mm512_setzero_ps());
  if (!_kortestz_mask16_u8(_mm512_fpclass_ps_mask(low, kSubnormalOrMinusZero),
                           _mm512_fpclass_ps_mask(high, kSubnormalOrMinusZero))) [[unlikely]] {
    return _mm512_inserti64x4(_mm512_castsi256_si512(round_product16(low)), round_product16(high),
                              1);
  }
  return join_bf16(low, high);
}

template <SumForm kForm, bool kIsWeighted, bool kPastCaches>
[[gnu::always_inline]] inline void store_row(const TileEpilogue& e, const float* c, int64_t r) {
  const float* row = c_row(c, r);
  __m512i words = join_bf16(finish16<kForm>(e, row, r, 0), finish16<kForm>(e, row, r, 1));
  if constexpr (kIsWeighted) {
    words = weighted(words, e.weights[r]);
  }
  auto* out = reinterpret_cast<uint16_t*>(e.out[r]) + e.column;
  if constexpr (kPastCaches) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out), words);
  } else {
    const auto kept = static_cast<__mmask32>((uint64_t{1} << e.columns) - 1);
    _mm512_mask_storeu_epi16(out, kept, words);
  }
}

template <SumForm kForm, bool kIsWeighted, bool kPastCaches>
void store_rows(const TileEpilogue& e, const float* c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    store_row<kForm, kIsWeighted, kPastCaches>(e, c, r);
  }
}

template <SumForm kForm>
void activate_rows(const TileEpilogue& e, const float* c, int64_t begin, int64_t end) {
  if (ActivatedRows::supports(*e.activation)) {
    for (int64_t r = begin; r < end; r += ActivatedRows::kRows) {
      ActivatedRows rows;
      rows.part<0, kForm>(e, c, r, end);
      rows.part<1, kForm>(e, c, r, end);
      rows.part<2, kForm>(e, c, r, end);
      rows.part<3, kForm>(e, c, r, end);
    }
  } else {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = c_row(c, r);
      activate_row(e, finish16<kForm>(e, row, r, 0), finish16<kForm>(e, row, r, 1), e.act_row(r));
    }
  }
}

// Carries out the epilogue of rows [begin, end).  finish_stores() must follow the last rows of a
// block.  REQUIRES: begin is even.
using FinishRows = void (*)(const TileEpilogue& e, const float* c, int64_t begin, int64_t end);

template <SumForm kForm>
FinishRows finisher_of_form(const TileEpilogue& e) {
  if (e.activation != nullptr) {
    return activate_rows<kForm>;
  }
  if (e.past_caches) {
    return e.weights != nullptr ? store_rows<kForm, true, true> : store_rows<kForm, false, true>;
  }
  return e.weights != nullptr ? store_rows<kForm, true, false> : store_rows<kForm, false, false>;
}

// The function for an epilogue, chosen once for all of its rows.
inline FinishRows finisher_of(const TileEpilogue& e) {
  if (e.activation != nullptr && e.activation->kind == Activation::kGelu) {
    return finish_rows;
  }
  return with_form(form_of(e), [&]<SumForm kForm>() { return finisher_of_form<kForm>(e); });
}

// Makes streamed lines visible to any thread that sees that the task is done.
inline void finish_stores(const TileEpilogue& e) {
  if (e.past_caches) {
    _mm_sfence();
  }
}

}  // namespace

}  // namespace moebius::cpu
