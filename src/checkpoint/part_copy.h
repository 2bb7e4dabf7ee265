// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PartCopy: takes one stored matrix of a weight to its place in the loaded tensor, unpacked as
// kernels read it.  Each stored byte is read once, and its pages are released then.
// Thread-safety: copies to different places may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/expert_source.h"
#include "checkpoint/finite_weights.h"

namespace moebius::checkpoint {

struct PartCopy {
  StoredMatrix from;
  PartRole role = PartRole::kWeight;
  Unpack unpack = Unpack::kNone;
  Range rows;  // in stored elements; of zero points in words, in rows of the weight
  Range cols;  // in stored elements
  // Result: num_rows rows of elements of `dtype`, stride bytes apart.  Zero points of a symmetric
  // scheme go nowhere: they are looked at only.
  std::byte* to = nullptr;
  int64_t num_rows = 0;
  int64_t stride = 0;
  DType dtype = DType::kU8;
  int64_t expert = 0;         // counted over all ranks
  int zero_point_bits = 4;    // of zero points in words
  int zero_point_offset = 0;  // is added to them
  // Which stored column each column of scales and zero points is; null: its own.
  std::shared_ptr<const std::vector<int64_t>> order;

  // The rows and columns of stored elements that run() reads.
  std::pair<Range, Range> stored_range() const;
  // Throws InvalidArgument as FiniteWeights does, and for a zero point that does not fit.
  void run(FiniteWeights& finite) const;
};

}  // namespace moebius::checkpoint
