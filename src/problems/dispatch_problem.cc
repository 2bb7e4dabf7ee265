// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/dispatch_problem.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <vector>

namespace moebius::testing {

Tensor expert_products(const ExpertPlacement& placement,
                       int rank,
                       const Tensor& x,
                       const Tensor& counts,
                       const std::function<float(int64_t)>& factor_of) {
  const Tensor y = Tensor::empty(x.shape(), DType::kBF16);
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    if (placement.rank_of(e) != rank) {
      continue;
    }
    const int64_t l = placement.local_index(e);
    const auto* from = x[l].data<BFloat16>();
    auto* to = y[l].data<BFloat16>();
    const float factor = factor_of(e);
    for (int64_t i = 0; i < counts.data<int32_t>()[l] * x.dim(2); ++i) {
      to[i] = BFloat16(static_cast<float>(from[i]) * factor);
    }
  }
  return y;
}

RankInput make_input(const DispatchProblem& p, int rank) {
  std::mt19937_64 random(p.seed * 1000 + static_cast<uint64_t>(rank));
  const int64_t n = p.num_tokens(rank);
  const ExpertPlacement placement = p.placement();
  RankInput in{Tensor::empty({n, p.hidden}, DType::kBF16), Tensor::empty({n, 2}, DType::kI32),
               Tensor::empty({n, p.topk}, DType::kI32), Tensor::empty({n, p.topk}, DType::kF32)};
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < in.x.numel(); ++i) {
    in.x.data<BFloat16>()[i] = BFloat16(normal(random));
  }
  std::vector<int32_t> experts(static_cast<size_t>(p.num_experts));
  for (int64_t t = 0; t < n; ++t) {
    in.code.data<int32_t>()[2 * t] = rank;
    in.code.data<int32_t>()[2 * t + 1] = static_cast<int32_t>(t);
    for (size_t e = 0; e < experts.size(); ++e) {
      experts[e] = static_cast<int32_t>(e);
    }
    std::shuffle(experts.begin(), experts.end(), random);
    for (int64_t k = 0; k < p.topk; ++k) {
      int32_t id = experts[static_cast<size_t>(k)];
      if (p.skew == Skew::kOneExpert) {
        id = k == 0 ? static_cast<int32_t>(p.num_experts - 1) : -1;
      } else if (p.skew == Skew::kOneRank) {
        id = k < placement.num_local(0) ? static_cast<int32_t>(k) : -1;  // if placed linearly
      } else if (p.skew == Skew::kAllMasked) {
        id = -1;
      } else if (std::uniform_real_distribution<>(0, 1)(random) < p.masked) {
        id = -1;
      }
      in.ids.data<int32_t>()[t * p.topk + k] = id;
      in.weights.data<float>()[t * p.topk + k] =
          std::uniform_real_distribution<float>(0.1f, 1.0f)(random);
    }
  }
  return in;
}

std::vector<RankInput> make_inputs(const DispatchProblem& p) {
  std::vector<RankInput> inputs;
  for (int r = 0; r < p.num_ranks; ++r) {
    inputs.push_back(make_input(p, r));
  }
  return inputs;
}

TransportStatistics expected_sent(const DispatchProblem& p,
                                  const RankInput& in,
                                  const Topology& topology,
                                  const std::set<int>& dead) {
  const ExpertPlacement placement = p.placement();
  TransportStatistics sent;
  for (int64_t t = 0; t < in.ids.dim(0); ++t) {
    std::set<int> ranks;
    for (int64_t k = 0; k < p.topk; ++k) {
      if (const int32_t id = in.ids.data<int32_t>()[t * p.topk + k]; id >= 0) {
        ++sent.selections;
        ranks.insert(placement.rank_of(id));
      }
    }
    for (const int rank : ranks) {
      sent.copies += dead.contains(rank) ? 0 : 1;
      sent.node_copies += dead.contains(rank) || topology.same_node(rank) ? 0 : 1;
    }
  }
  return sent;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.nbytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0);
}

Tensor columns_of(const Tensor& t, int64_t begin, int64_t end) {
  if (!t) {
    return t;
  }
  const Tensor out = Tensor::empty({t.dim(0), end - begin}, t.dtype());
  const int64_t element = bits(t.dtype()) / 8;
  for (int64_t row = 0; row < t.dim(0); ++row) {
    std::memcpy(out.bytes() + row * (end - begin) * element,
                t.bytes() + (row * t.dim(1) + begin) * element,
                static_cast<size_t>((end - begin) * element));
  }
  return out;
}

std::vector<DispatchProblem> dispatch_problems(int num_ranks) {
  const auto tokens = [&](int64_t base, int64_t step) {
    std::vector<int64_t> t;
    for (int r = 0; r < num_ranks; ++r) {
      t.push_back(base + step * r);
    }
    return t;
  };
  std::vector<DispatchProblem> problems;
  DispatchProblem p;
  p.num_ranks = num_ranks;
  p.num_experts = 3 * num_ranks + 1;  // several ranks never hold equally many
  p.topk = 4;
  p.tokens = tokens(33, 0);
  problems.push_back(p);
  p.tokens = tokens(0, 7);  // rank 0 has none
  problems.push_back(p);
  p.hidden = 45;  // rows of 90 bytes
  p.strided = true;
  problems.push_back(p);
  p.strided = false;
  p.topk = 1;
  p.tokens = tokens(5, 3);
  problems.push_back(p);
  p.topk = 3;
  for (const Skew skew : {Skew::kOneExpert, Skew::kOneRank, Skew::kAllMasked}) {
    p.skew = skew;
    problems.push_back(p);
  }
  p.skew = Skew::kUniform;
  p.tokens = tokens(0, 0);  // no rank has any
  problems.push_back(p);
  p.topk = p.num_experts;  // every expert
  p.tokens = tokens(4, 1);
  problems.push_back(p);
  for (size_t i = 0; i < problems.size(); ++i) {
    problems[i].seed = i + 1;
  }
  if (num_ranks > 16) {
    problems.resize(2);  // enough to see what more ranks change, since every rank checks every row
  }
  return problems;
}

}  // namespace moebius::testing
