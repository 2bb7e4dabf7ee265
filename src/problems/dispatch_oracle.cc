// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/dispatch_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/parallel.h"
#include "problems/dispatch_problem.h"

namespace moebius::bench {

namespace {

constexpr int64_t kScaleGroup = 128;

// Fills a tensor with random bits.  In every 16 of them, those of the mask `clear` are cleared and
// those of `set` are set.
void fill_random(const Tensor& tensor, uint64_t seed, uint16_t clear, uint16_t set) {
  const auto repeat = [](uint64_t bits) { return bits * 0x0001000100010001u; };
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  const auto nbytes = static_cast<size_t>(tensor.nbytes());
  for (size_t at = 0; at < nbytes; at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const uint64_t word = (state & ~repeat(clear)) | repeat(set);
    std::memcpy(tensor.bytes() + at, &word, std::min(sizeof(word), nbytes - at));
  }
}

bool same_row(const Tensor& a, int64_t row_a, const Tensor& b, int64_t row_b, int64_t row_bytes) {
  return std::memcmp(a.bytes() + row_a * row_bytes, b.bytes() + row_b * row_bytes,
                     static_cast<size_t>(row_bytes)) == 0;
}

// The ranks that hold experts of a token, in ascending order.
std::vector<int> ranks_of_token(const DispatchProblem& problem,
                                const ExpertPlacement& placement,
                                const RankRows& rows,
                                int64_t token) {
  std::vector<int> ranks;
  const auto* ids = rows.topk_ids.data<int32_t>() + token * problem.topk;
  for (int64_t k = 0; k < problem.topk; ++k) {
    ranks.push_back(placement.rank_of(ids[k]));
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

float expert_factor(int64_t expert) {
  return static_cast<float>(expert % 8 + 1);
}

// The largest sum over r of rows[at(i, r)] for any i, where i and r are ranks.  with_own says
// whether r == i counts.
template <typename At>
int64_t largest_sum(const std::vector<int64_t>& rows, int num_ranks, bool with_own, const At& at) {
  int64_t largest = 0;
  for (int i = 0; i < num_ranks; ++i) {
    int64_t sum = 0;
    for (int r = 0; r < num_ranks; ++r) {
      sum += with_own || r != i ? rows[static_cast<size_t>(at(i, r))] : 0;
    }
    largest = std::max(largest, sum);
  }
  return largest;
}

// The difference in routing of one row.
Difference routing_difference(const DispatchProblem& problem,
                              const ExpertPlacement& placement,
                              int rank,
                              const RankRows& from,
                              int64_t token,
                              const ReceivedRows& received,
                              int64_t row) {
  if (received.source_token.data<int32_t>()[row] != token) {
    return fmt::format("row {} names token {} instead of {}", row,
                       received.source_token.data<int32_t>()[row], token);
  }
  for (int64_t k = 0; k < problem.topk; ++k) {
    const int32_t id = from.topk_ids.data<int32_t>()[token * problem.topk + k];
    const bool is_here = placement.rank_of(id) == rank;
    const int64_t expected_id = is_here ? placement.local_index(id) : -1;
    const float expected_weight =
        is_here ? from.topk_weights.data<float>()[token * problem.topk + k] : 0.0f;
    const int32_t got_id = received.topk_ids.data<int32_t>()[row * problem.topk + k];
    const float got_weight = received.topk_weights.data<float>()[row * problem.topk + k];
    if (got_id != expected_id || got_weight != expected_weight) {
      return fmt::format("row {} slot {} has expert {} with weight {} instead of {} with {}", row,
                         k, got_id, got_weight, expected_id, expected_weight);
    }
  }
  return std::nullopt;
}

// Compares with the fp8 cast that low_latency.h defines.
Difference cast_difference(const Tensor& row, const Tensor& values, const Tensor& scales) {
  const auto* x = row.data<BFloat16>();
  for (int64_t g = 0; g < row.numel() / kScaleGroup; ++g) {
    float amax = 1e-4f;
    for (int64_t i = g * kScaleGroup; i < (g + 1) * kScaleGroup; ++i) {
      amax = std::max(amax, std::fabs(static_cast<float>(x[i])));
    }
    if (scales.data<float>()[g] != amax * (1.0f / kE4M3Max)) {
      return fmt::format("scale {} is {} instead of {}", g, scales.data<float>()[g],
                         amax * (1.0f / kE4M3Max));
    }
    const float factor = kE4M3Max / amax;
    for (int64_t i = g * kScaleGroup; i < (g + 1) * kScaleGroup; ++i) {
      const F8E4M3 expected(static_cast<float>(x[i]) * factor);
      if (values.data<F8E4M3>()[i].bits != expected.bits) {
        return fmt::format("value {} is {} instead of {}", i, get_float(values, i),
                           static_cast<float>(expected));
      }
    }
  }
  return std::nullopt;
}

// Compares every element with sum_of(token)(element).
template <typename SumOf>
Difference combined_difference(const DispatchProblem& problem,
                               const Tensor& combined,
                               const SumOf& sum_of) {
  for (int64_t t = 0; t < problem.tokens; ++t) {
    const auto sum = sum_of(t);
    for (int64_t h = 0; h < problem.hidden; ++h) {
      const int64_t i = t * problem.hidden + h;
      const BFloat16 expected(sum(i));
      const BFloat16 actual = combined.data<BFloat16>()[i];
      if (actual.bits != expected.bits) {
        return fmt::format("token {} element {} is {} instead of {}", t, h,
                           static_cast<float>(actual), static_cast<float>(expected));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

RankRows make_rows(const DispatchProblem& problem, RowFormat format, int rank) {
  const Shape shape = {problem.tokens, problem.hidden};
  const auto seed = static_cast<uint64_t>(rank) + 1;
  RankRows rows;
  if (format == RowFormat::kBF16) {
    rows.payloads = {Tensor::empty(shape, DType::kBF16)};
    fill_random(rows.payloads[0], seed, 0x7e00, 0x3e00);  // 2^-3 <= |x| < 2
  } else {
    rows.payloads = {Tensor::empty(shape, DType::kF8E4M3),
                     Tensor::empty({problem.tokens, problem.hidden / kScaleGroup}, DType::kF32)};
    fill_random(rows.payloads[0], seed, 0, 0);
    fill_random(rows.payloads[1], seed, 0, 0);
  }
  rows.topk_ids = Tensor::empty({problem.tokens, problem.topk}, DType::kI32);
  rows.topk_weights = Tensor::empty({problem.tokens, problem.topk}, DType::kF32);
  draw_routing(problem, seed, rows);
  return rows;
}

void draw_routing(const DispatchProblem& problem, uint64_t seed, RankRows& rows) {
  std::mt19937_64 random(seed);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    auto* ids = rows.topk_ids.data<int32_t>() + t * problem.topk;
    auto* weights = rows.topk_weights.data<float>() + t * problem.topk;
    for (int64_t k = 0; k < problem.topk;) {
      const uint64_t bits = random();
      ids[k] = static_cast<int32_t>(bits % static_cast<uint64_t>(problem.num_experts));
      weights[k] = static_cast<float>((bits >> 40) + 1) * 0x1p-24f;
      if (std::find(ids, ids + k, ids[k]) == ids + k) {
        ++k;  // not drawn before
      }
    }
  }
}

Tensor rank_contribution(const Tensor& rows, int rank, const Stream& stream) {
  const Tensor out = Tensor::empty(rows.shape(), DType::kBF16);
  const auto* x = rows.data<BFloat16>();
  auto* y = out.data<BFloat16>();
  parallel_for(stream, rows.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      y[i] = BFloat16(static_cast<float>(x[i]) * static_cast<float>(rank + 1));
    }
  });
  return out;
}

Tensor expert_contribution(const DispatchProblem& problem,
                           int rank,
                           const LowLatencyDispatchOutput& received) {
  return testing::expert_products(problem.placement(), rank, received.x, received.expert_num_tokens,
                                  expert_factor);
}

ReceivedRows received_rows(const DispatchOutput& output, int64_t num_rows, const Stream& stream) {
  const auto take = [&](const Tensor& rows) {
    return to_device(rows.slice(0, num_rows), Device::cpu(), stream);
  };
  ReceivedRows received;
  for (const Tensor& payload : output.payloads) {
    received.payloads.push_back(take(payload));
  }
  if (output.handle) {
    received.topk_ids = take(output.topk_ids);
    received.topk_weights = take(output.topk_weights);
    received.source_token = take(output.handle->source_token());
  }
  return received;
}

int64_t RowCounts::most_sent(const std::vector<int64_t>& rows, bool with_own) const {
  return largest_sum(rows, num_ranks, with_own, [&](int i, int r) { return i * num_ranks + r; });
}

int64_t RowCounts::most_received(const std::vector<int64_t>& rows, bool with_own) const {
  return largest_sum(rows, num_ranks, with_own, [&](int i, int r) { return r * num_ranks + i; });
}

RowCounts count_rows(const DispatchProblem& problem, const std::vector<RankRows>& all) {
  const ExpertPlacement placement = problem.placement();
  const auto num_ranks = static_cast<size_t>(problem.num_ranks);
  RowCounts counts{problem.num_ranks, std::vector<int64_t>(num_ranks * num_ranks),
                   std::vector<int64_t>(num_ranks * num_ranks)};
  for (size_t from = 0; from < num_ranks; ++from) {
    const RankRows& rows = all[from];
    for (int64_t t = 0; t < problem.tokens; ++t) {
      for (const int rank : ranks_of_token(problem, placement, rows, t)) {
        ++counts.copies[from * num_ranks + static_cast<size_t>(rank)];
      }
    }
    for (int64_t i = 0; i < rows.topk_ids.numel(); ++i) {
      const int rank = placement.rank_of(rows.topk_ids.data<int32_t>()[i]);
      ++counts.selections[from * num_ranks + static_cast<size_t>(rank)];
    }
  }
  return counts;
}

Difference dispatch_difference(const DispatchProblem& problem,
                               const std::vector<RankRows>& all,
                               int rank,
                               const ReceivedRows& received) {
  const ExpertPlacement placement = problem.placement();
  int64_t row = 0;
  for (const RankRows& from : all) {
    for (int64_t t = 0; t < problem.tokens; ++t) {
      const std::vector<int> ranks = ranks_of_token(problem, placement, from, t);
      if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
        continue;
      }
      if (row == received.payloads[0].dim(0)) {
        return fmt::format("there are only {} rows", row);
      }
      for (size_t f = 0; f < from.payloads.size(); ++f) {
        const int64_t row_bytes = from.payloads[f].nbytes() / problem.tokens;
        if (!same_row(received.payloads[f], row, from.payloads[f], t, row_bytes)) {
          return fmt::format("row {} of payload {} differs from its source, token {} of rank {}",
                             row, f, t, &from - all.data());
        }
      }
      if (received.source_token) {
        if (auto d = routing_difference(problem, placement, rank, from, t, received, row)) {
          return d;
        }
      }
      ++row;
    }
  }
  if (row != received.payloads[0].dim(0)) {
    return fmt::format("there are {} rows instead of {}", received.payloads[0].dim(0), row);
  }
  return std::nullopt;
}

Difference combine_difference(const DispatchProblem& problem,
                              const RankRows& own,
                              const Tensor& combined) {
  const ExpertPlacement placement = problem.placement();
  const auto* x = own.payloads[0].data<BFloat16>();
  return combined_difference(problem, combined, [&](int64_t t) {
    return [&, ranks = ranks_of_token(problem, placement, own, t)](int64_t i) {
      float sum = 0.0f;
      for (const int rank : ranks) {
        const float y = static_cast<float>(x[i]) * static_cast<float>(rank + 1);
        sum += static_cast<float>(BFloat16(y));
      }
      return sum;
    };
  });
}

Difference dispatch_difference(const DispatchProblem& problem,
                               const std::vector<RankRows>& all,
                               int rank,
                               LowLatencyCast cast,
                               const LowLatencyDispatchOutput& output) {
  const ExpertPlacement placement = problem.placement();
  std::vector<int64_t> next(static_cast<size_t>(placement.num_local(rank)), 0);
  for (const RankRows& from : all) {
    const Tensor& x = from.payloads[0];
    for (int64_t i = 0; i < from.topk_ids.numel(); ++i) {
      const int32_t id = from.topk_ids.data<int32_t>()[i];
      if (placement.rank_of(id) != rank) {
        continue;
      }
      const int64_t l = placement.local_index(id);
      const int64_t row = next[static_cast<size_t>(l)]++;
      const int64_t token = i / problem.topk;
      Difference d;
      if (cast == LowLatencyCast::kNone) {
        if (!same_row(output.x[l], row, x, token, 2 * problem.hidden)) {
          d = "differs from its source";
        }
      } else {
        d = cast_difference(x[token], output.x[l][row], output.x_scale[l][row]);
      }
      if (d) {
        return fmt::format("expert {} row {}, token {} of rank {}: {}", id, row, token,
                           &from - all.data(), *d);
      }
    }
  }
  for (size_t l = 0; l < next.size(); ++l) {
    if (output.expert_num_tokens.data<int32_t>()[l] != next[l]) {
      return fmt::format("local expert {} has {} rows instead of {}", l,
                         output.expert_num_tokens.data<int32_t>()[l], next[l]);
    }
  }
  return std::nullopt;
}

Difference low_latency_combine_difference(const DispatchProblem& problem,
                                          const RankRows& own,
                                          LowLatencySum sum,
                                          const Tensor& combined) {
  const ExpertPlacement placement = problem.placement();
  const auto* x = own.payloads[0].data<BFloat16>();
  return combined_difference(problem, combined, [&](int64_t t) {
    const auto* ids = own.topk_ids.data<int32_t>() + t * problem.topk;
    const auto* weights = own.topk_weights.data<float>() + t * problem.topk;
    // The weighted sum over the selections of `rank`, or over all of them where it is -1.
    const auto weighted = [=, &placement, &problem](int64_t i, int rank) {
      float part = 0.0f;
      for (int64_t k = 0; k < problem.topk; ++k) {
        if (rank < 0 || placement.rank_of(ids[k]) == rank) {
          const BFloat16 y(static_cast<float>(x[i]) * expert_factor(ids[k]));
          part += weights[k] * static_cast<float>(y);
        }
      }
      return part;
    };
    return [=, ranks = ranks_of_token(problem, placement, own, t)](int64_t i) {
      if (sum != LowLatencySum::kRanks) {
        return weighted(i, -1);
      }
      float total = 0.0f;
      for (const int rank : ranks) {
        total += static_cast<float>(BFloat16(weighted(i, rank)));
      }
      return total;
    };
  });
}

}  // namespace moebius::bench
