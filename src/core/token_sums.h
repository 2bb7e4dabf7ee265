// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums the rows that belong to a token, for all tokens (row_sums.h computes one sum).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "core/row_sums.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// One term of a token's sum.
struct TokenTerm {
  int64_t row;
  float weight;
};

// The rule of vLLM's moe_sum for the K rows of a token: products are rounded to the rows' type, and
// so are the sums of 2 to 4 rows after every addition.
inline bool sums_in_dtype(int64_t topk) {
  return topk >= 2 && topk <= 4;
}
inline SumRounding sum_rounding(int64_t topk) {
  return sums_in_dtype(topk) ? SumRounding::kProductsAndSums : SumRounding::kProducts;
}

// output[t] = the sum of the terms that append_terms(t, terms) appends.  `rows` and `output` are
// [.., H] and have the same type.
template <typename AppendTerms>
void sum_tokens(const Tensor& rows,
                const Tensor& output,
                SumRounding rounding,
                const Stream& stream,
                const AppendTerms& append_terms) {
  // Several tokens per task, so that the rows of the next token can usually be prefetched, but
  // enough tasks for all threads.
  const int64_t tokens_per_task =
      std::clamp<int64_t>(output.dim(0) / (4 * stream.num_threads()), 1, 16);
  const int64_t hidden = output.dim(1);
  const int64_t row_bytes = hidden * bits(output.dtype()) / 8;
  parallel_for(stream, output.dim(0), tokens_per_task, [&](int64_t begin, int64_t end) {
    std::vector<TokenTerm> terms;
    std::vector<SumTerm> current;
    std::vector<SumTerm> next;
    const auto set_rows = [&](int64_t t) {
      terms.clear();
      append_terms(t, terms);
      next.clear();
      for (const auto& [row, weight] : terms) {
        next.push_back({rows.bytes() + row * row_bytes, weight});
      }
    };
    set_rows(begin);
    for (int64_t t = begin; t < end; ++t) {
      current.swap(next);
      next.clear();
      if (t + 1 < end) {
        set_rows(t + 1);
      }
      sum_rows({.dtype = output.dtype(),
                .rounding = rounding,
                .terms = current.data(),
                .num_terms = static_cast<int64_t>(current.size()),
                .n = hidden,
                .out = output.bytes() + t * row_bytes,
                .past_caches = false,
                .next = next.data(),
                .num_next = static_cast<int64_t>(next.size())});
    }
  });
}

}  // namespace moebius
