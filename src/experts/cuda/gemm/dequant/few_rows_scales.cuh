// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scales and zero points of a lane's columns in few_rows_gemm.cu.  Scales come by TMA, in slots
// of a ring of their own, so those of the next item are there when it begins.  The four lanes of a
// quad have the same columns.  By chunks of codes, each lane reads its scales of a step from their
// slot.  Otherwise the quad holds 16 bytes of a column's scales at a time, and its lanes tell each
// other what they need of them.  Where TMA cannot read the scales, the quad loads them itself, one
// chunk ahead, and by chunks of codes stores them to slots of its own.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cuda/ftz.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::few_rows {

// The value of a scale's bits; uint8_t is e8m0.
template <typename Scale>
__device__ __forceinline__ float scale_value(uint32_t bits) {
  if constexpr (sizeof(Scale) == 4) {
    return __uint_as_float(bits);
  } else if constexpr (sizeof(Scale) == 2) {
    const auto half = static_cast<uint16_t>(bits);
    return load1(reinterpret_cast<const Scale*>(&half));
  } else {
    return e8m0_to_float(static_cast<uint8_t>(bits));
  }
}

// A scale is faint if it is less than 1 / kMostRatio of the largest before it in its column.  Sums
// are not brought to faint scales, so they stay finite, and what faint scales add is rounded to the
// type of the elements.
inline constexpr float kMostRatio = 0x1p64f;
inline constexpr float kMostReciprocal = 0x1p126f;  // larger numbers have subnormal reciprocals

// D: a Decoding.  kChunk: its chunk_bytes().
template <typename D, int kChunk>
class Scales {
 public:
  struct Lane {
    int team;
    int column;  // the first of the lane's two in a block
    int part;    // the place of the lane in its quad
    int lane;
  };
  // `stages` is a shared address; slots of scales lie behind the stages.
  __device__ Scales(const Args& args, uint32_t stages, Barriers& barriers, const Lane& lane)
      : p_(args),
        team_(lane.team),
        part_(lane.part),
        lane_(lane.lane),
        full_(ptx::opaque(ptx::shared_address(barriers.scales_full))),
        empty_(ptx::opaque(ptx::shared_address(barriers.scales_empty))) {
    by_[0][0] = by_[1][0] = zeros(p_.w.default_zero_point);
    // A slot has the scales of all teams, of which those of a team may begin behind the first 16
    // bytes.  Teams whose lanes fill slots have slots of their own.
    const int first = !kReadsSlots    ? (team_ * S::kK >> p_.scale_shift & -kOfChunk) * kBytes
                      : by_quad_ != 0 ? team_ * kOwnScaleSlots * p_.scale_slot_bytes
                                      : 0;
    own_ = stages + static_cast<uint32_t>(p_.num_stages * p_.stage_bytes +
                                          lane.column * p_.scale_bytes + first + part_ * 4);
  }

  // Begins an item whose columns for this lane are `column` and `column` + 8: asks for what comes
  // first.
  __device__ __forceinline__ void start(int group, int column) {
    if (by_quad_ != 0 || has_zeros_ != 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = min(column + 8 * i, p_.n - 1);
        first_[i] = ptx::opaque(static_cast<uint32_t>(scale_row(p_.w, group, n)));
      }
    }
    if constexpr (D::kIsFoldedInt4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        norm_[i] = p_.scale_norms[int64_t{group} * p_.n + min(column + 8 * i, p_.n - 1)];
      }
    }
    fetch_k_ = zero_k_ = team_ * S::kK;
    k_ = static_cast<uint32_t>(fetch_k_);
    if (by_quad_ != 0) {
      fetch_chunk();
    }
    if (D::kHasZeros && has_zeros_ != 0) {
      fetch_zeros();
    }
  }

  // Call this before the first step of an item.
  __device__ __forceinline__ void begin() {
    factor_[0] = factor_[1] = 0.0f;  // of the sums so far, which are 0
    largest_[0] = largest_[1] = 0.0f;
  }
  // Call this before the first of every p.chunk_steps steps, and end_chunk() after the last.
  __device__ __forceinline__ void next_chunk() {
    const uint32_t slot = own_ + static_cast<uint32_t>(ring_.slot * p_.scale_slot_bytes);
    if (by_quad_ == 0) {
      // pairs with the copies that Filler::request_scales requests.
      ptx::mbarrier_sleep_parity(full_ + ring_.slot * uint32_t{sizeof(uint64_t)}, ring_.parity);
    } else if constexpr (kReadsSlots) {
      // All lanes have begun the chunk before, so they have read what was here.
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint32_t at = slot + static_cast<uint32_t>(i * kChunkBytes);
        ptx::st_shared_word(at, next_words_[i][0]);
        ptx::st_shared_word(at + kToSecond, next_words_[i][1]);
      }
      __syncwarp();
      fetch_chunk();
    } else {
      words_[0] = next_words_[0][0];
      words_[1] = next_words_[0][1];
      fetch_chunk();
    }
    if constexpr (kReadsSlots) {
      // From the word that the lane loads, if lanes do, to the scales that it needs first.
      const int to_first = ((team_ * S::kK + part_ * kSlab) >> kSlotShift) - part_ * 4;
      at_ = slot + static_cast<uint32_t>(to_first);
    } else if (by_quad_ == 0) {
      words_[0] = ptx::ld_shared_word(slot);
      words_[1] = ptx::ld_shared_word(slot + 8 * static_cast<uint32_t>(p_.scale_bytes));
      release();
      ring_.advance(slots_);
    }
    if constexpr (D::kMayBeLarge) {
      // Bit 7 of a byte is set where half of the code is 72 or more.
      static_assert(kLargestE8m0 == 2 * 72);
      const auto halves = [&](uint32_t i) {
        return (ptx::ld_shared_word(slot + i * kToSecond) >> 1 & 0x7f7f7f7fu) + 0x38383838u;
      };
      is_large_ = __any_sync(kAll, ((halves(0) | halves(1)) & 0x80808080u) != 0) != 0;
    }
    if constexpr (D::kFolds) {
      fetch_folded(true);
    }
    if (!D::kFolds && !D::kIsWholeInt4 && ends_ == 0) {
      take_factors();
      if (D::kHasZeros && has_zeros_ != 0) {
        take_zeros();
      }
    }
  }

  __device__ __forceinline__ void end_chunk() {
    if constexpr (kReadsSlots) {
      if (by_quad_ == 0) {
        release();
      }
      ring_.advance(by_quad_ == 0 ? slots_ : kOwnScaleSlots);
    }
  }

  // This is for D::kFolds.  It makes the scales of the next step those that by() tells; large ones
  // stay codes.
  __device__ __forceinline__ void take_folded() {
    if constexpr (kReadsSlots) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        by_[i][0] = D::kIsPair  ? folded_pair<D>(bits_[i], upper_bits_)
                    : is_large_ ? bits_[i]
                                : folded_e8m0(bits_[i]);
      }
    } else if constexpr (D::kIsFoldedInt4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        by_[i][0] = folded_int4(scale_value<Scale>(own_bits(bits_[i])), norm_[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kFactors; ++j) {
          const uint32_t unit = (k_ + j * kSlab) >> p_.scale_shift & 3;
          const uint32_t code = __byte_perm(bits_[i], 0, 0x4440u | unit);
          by_[i][j] = both_halves(T{}, scale_value<Scale>(code) / D::kColumnFactor);
        }
      }
    }
    k_ += p_.team_k;
  }
  // Loads what take_folded() takes next, or asks the other lanes of the quad for it.  in_chunk:
  // that is of the chunk in use; otherwise next_chunk() does it.
  __device__ __forceinline__ void fetch_folded(bool in_chunk) {
    if constexpr (kReadsSlots) {
      if (in_chunk) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t from = at_ + i * kToSecond;
          bits_[i] = D::kIsPair ? ptx::ld_shared_half(from) : ptx::ld_shared_byte(from);
        }
        at_ += slot_step_;
      }
    } else {
      own_words(bits_);
    }
  }
  // Whether large scales may be among those of the step.
  __device__ __forceinline__ bool is_large() const {
    return D::kMayBeLarge && is_large_;
  }

  // Says whether other scales of sums begin before this slab of a step, see Args::ends.
  __device__ __forceinline__ bool ends_before(int slab) const {
    return D::kChanges == Changes::kNever          ? false
           : D::kChanges == Changes::kBetweenSteps ? slab == 0 && ends_ != 0
                                                   : (ends_ >> slab & 1) != 0;
  }
  // Makes the scales from `slab` on those of factors().
  __device__ __forceinline__ void take_factors(int slab) {
    take_factors();
    k_ += static_cast<uint32_t>(to_next(slab));
  }
  // The same for zero points and by().
  __device__ __forceinline__ void take_zeros(int slab) {
    if (has_zeros_ != 0) {
      take_zeros();
      zero_k_ += to_next(slab);
      fetch_zeros();
    }
  }
  // Makes the scales and zero points of the next step those of factors() and by(), and sets
  // ratios() to what the sums so far are multiplied by.
  __device__ __forceinline__ void take_ratios() {
    has_faint_ = changes_ = false;
    if (!ends_before(0)) {
      return;
    }
    const float before[2] = {factor_[0], factor_[1]};
    take_factors(0);
    if constexpr (D::kHasZeros) {
      take_zeros(0);
    }
    changes_ = __any_sync(kAll, factor_[0] != before[0] || factor_[1] != before[1]) != 0;
    if (changes_) {
      bool is_usual[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float own = fabsf(factor_[i]);
        largest_[i] = fmaxf(largest_[i], own);
        ratio_[i] =
            factor_[i] == before[i] ? 1.0f : before[i] * approximate_reciprocal_ftz(factor_[i]);
        is_usual[i] = own * kMostRatio >= largest_[i] && own < kMostReciprocal &&
                      fabsf(ratio_[i]) <= kMostRatio;
      }
      if (__any_sync(kAll, !is_usual[0] || !is_usual[1]) != 0) {
        take_unusual(before, is_usual);
      }
    }
  }
  // Says whether a ratio of the warp is not 1.
  __device__ __forceinline__ bool changes() const {
    return changes_;
  }
  __device__ __forceinline__ const float (&ratios() const)[2] {
    return ratio_;
  }
  // Says whether the warp has columns with faint scales, whose elements are multiplied by faint().
  __device__ __forceinline__ bool has_faint() const {
    return has_faint_;
  }
  __device__ __forceinline__ uint32_t faint(int i) const {
    return both_halves(T{}, faint_[i]);
  }
  // Whether there are zero points to subtract.
  __device__ __forceinline__ bool subtracts() const {
    return subtracts_ != 0;
  }

  // The factors of the sums, for both columns.
  __device__ __forceinline__ const float (&factors() const)[2] {
    return factor_;
  }
  // Says whether columns have zero points of their own.
  __device__ __forceinline__ bool has_zero_points() const {
    return has_zeros_ != 0;
  }
  // Returns what decode_pairs() takes for a slab of column i; if D::kIsWholeInt4, the zero point in
  // f32.
  __device__ __forceinline__ uint32_t by(int i, int slab) const {
    if constexpr (D::kIsPair) {
      return one_half(by_[i][0], slab >= S::kSlabs / 2);
    } else {
      return by_[i][slab * kFactors / S::kSlabs];
    }
  }

 private:
  using Scale = typename D::Scale;
  using T = typename D::Element;
  using S = Step<D::kCode, kMmaRows>;
  // Of a column and step; a lane has one slab of four by chunks, else all slabs.
  static constexpr int kFactors = !D::kFolds || D::kIsFoldedInt4 || D::kByChunks ? 1 : S::kSlabs;
  static constexpr int kBytes = D::kIsPair ? 1 : sizeof(Scale);  // of a scale
  static constexpr int kOfWord = 4 / kBytes;
  static constexpr int kOfChunk = kChunk / kBytes;
  static constexpr int kWords = kChunk / kChunkBytes;  // of a column and chunk that a lane loads
  static constexpr int kOfWords = kOfChunk / kWords;   // scales in the words of all lanes
  // These are for chunks of codes.
  static constexpr bool kReadsSlots = D::kByChunks;
  static constexpr int kSlotShift = D::kIsPair ? 4 : 5;  // of k, to bytes of a slot
  // From a lane's first column in a slot, which has no more of a column than a chunk.
  static constexpr uint32_t kToSecond = 8 * kChunk;

  // A column whose scale is 0 or faint keeps that of its sums.
  __device__ __forceinline__ void take_unusual(const float (&before)[2],
                                               const bool (&is_usual)[2]) {
    has_faint_ = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float own = factor_[i];
      faint_[i] = 1.0f;
      if (own == 0.0f || fabsf(own) * kMostRatio < largest_[i]) {
        faint_[i] = own == 0.0f ? 0.0f : own / before[i];
        factor_[i] = before[i];
        ratio_[i] = 1.0f;
      } else if (!is_usual[i]) {
        ratio_[i] = own == before[i] ? 1.0f : before[i] / own;
      }
    }
  }
  // Says that the warp has read a slot that TMA filled.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_ == 0) {
      // pairs with Filler::request_scales.
      ptx::mbarrier_arrive(empty_ + ring_.slot * uint32_t{sizeof(uint64_t)});
    }
  }
  __device__ __forceinline__ void fetch_chunk() {
    const int first = (fetch_k_ >> p_.scale_shift & -kOfChunk) + part_ * kOfWord;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      fetch_words(first + i * kOfWords, next_words_[i]);
    }
    fetch_k_ += p_.chunk_k;
  }
  // Loads a word of the scales of both columns, from the place `first` on.
  __device__ __forceinline__ void fetch_words(int first, uint32_t (&words)[2]) const {
    const auto* from = static_cast<const uint8_t*>(p_.w.scale);
    if (p_.has_scale_words) {
      const auto at = static_cast<uint32_t>(min(first, p_.w.scale_cols - kOfWord));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[i] = *reinterpret_cast<const uint32_t*>(from + uint64_t{first_[i] + at} * kBytes);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[i] = 0;
#pragma unroll
        for (int j = 0; j < kOfWord; ++j) {
          const auto at = static_cast<uint32_t>(min(first + j, p_.w.scale_cols - 1));
          const uint8_t* one = from + uint64_t{first_[i] + at} * kBytes;
          const uint32_t bits = kBytes == 4   ? *reinterpret_cast<const uint32_t*>(one)
                                : kBytes == 2 ? *reinterpret_cast<const uint16_t*>(one)
                                              : *one;
          words[i] |= bits << 8 * kBytes * j;
        }
      }
    }
  }
  // Sets `bits` to the words that have the scales of k_, by what the lane of the quad tells that
  // has loaded them.
  __device__ __forceinline__ void own_words(uint32_t (&bits)[2]) const {
    const auto word = static_cast<int>((k_ >> p_.scale_shift) / uint32_t{kOfWord});
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bits[i] = __shfl_sync(kAll, words_[i], word, 4);
    }
  }
  // Returns the scale of k_ in the lowest bits of its word.
  __device__ __forceinline__ uint32_t own_bits(uint32_t word) const {
    return word >> (k_ >> p_.scale_shift) % uint32_t{kOfWord} * (8 * kBytes);
  }
  __device__ __forceinline__ void take_factors() {
    if constexpr (!D::kFolds) {
      uint32_t bits[2];
      own_words(bits);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factor_[i] = scale_value<Scale>(own_bits(bits[i]));
      }
    }
  }
  __device__ __forceinline__ void fetch_zeros() {
    const auto at = static_cast<uint32_t>(min(zero_k_ >> p_.scale_shift, p_.w.scale_cols - 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_zero_[i] = p_.w.zero_point[first_[i] + at];
    }
  }
  __device__ __forceinline__ void take_zeros() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      by_[i][0] = zeros(static_cast<float>(next_zero_[i]) - p_.w.zero_point_offset);
    }
  }
  __device__ __forceinline__ static uint32_t zeros(float zero_point) {
    return D::kIsWholeInt4 ? __float_as_uint(zero_point) : subtrahend<D::kCode>(T{}, zero_point);
  }
  // Returns by how much k grows to the next scales, where those before `slab` of a step end.
  __device__ __forceinline__ int to_next(int slab) const {
    return p_.scaled_k + (ends_ >> slab == 1 ? p_.others_k : 0);
  }

  const Args& p_;
  int team_;
  int part_;
  int lane_;
  int slots_ = ptx::opaque(p_.scale_slots);
  int by_quad_ = ptx::opaque(!p_.brings_scales);  // not TMA
  uint32_t full_;                                 // shared addresses
  uint32_t empty_;
  uint32_t own_;  // of the lane's word of its first column in the first slot
  uint32_t at_;   // of the lane's scales of its first column in the next step, if kReadsSlots
  uint32_t upper_bits_ = ptx::uniform(ptx::kept(packed_e4m3::kUpperBits, p_.k));
  uint32_t slot_step_ = ptx::uniform(ptx::opaque(p_.team_k >> kSlotShift));
  Ring ring_;
  uint32_t ends_ = ptx::opaque(p_.ends);
  int has_zeros_ = ptx::opaque(p_.w.zero_point != nullptr);
  int subtracts_ = has_zeros_ != 0 || p_.w.default_zero_point != 0.0f;

  // Where the item has them.
  uint32_t first_[2];  // scales of the columns
  uint32_t k_;         // of the scales to be taken next, if not kReadsSlots
  int fetch_k_;        // of the chunk to be fetched next
  int zero_k_;         // of the zero points that have been fetched

  uint32_t words_[2];  // of the chunk in use, if not kReadsSlots
  uint32_t bits_[2];   // the next scales, or the words that have those of k_, if D::kFolds
  uint32_t next_words_[kWords][2];
  uint32_t next_zero_[2];
  bool is_large_ = false;
  float factor_[2];
  bool changes_ = false;
  bool has_faint_ = false;
  float largest_[2];  // magnitude of the item's scales so far
  float ratio_[2];
  float faint_[2];
  uint32_t by_[2][kFactors];  // if D::kIsPair, those of both halves of a lane's slab
  float norm_[2];             // of the item's columns, if D::kIsFoldedInt4
};

}  // namespace moebius::cuda::few_rows
