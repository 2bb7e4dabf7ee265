// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Router stage: hidden states -> router logits -> expert ids and weights per token.
// Place: first stage; its ids and weights drive dispatch and combine.
// Letters: T tokens, H hidden, E experts (global), K top-k, G groups.
// Thread-safety: select() and logits() are const; concurrent calls need different outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius {

enum class Scoring : uint8_t {
  kSoftmax,  // over all experts, or over the chosen ones with score_after_topk
  kSigmoid,
  kSqrtSoftplus,  // sqrt(log(1 + exp(x)))
};

// Routing without looking at logits, for load tests and benchmarks: K different experts per token,
// each with weight 1/K.  kZipf draws them one after the other with probability proportional to
// 1 / r^zipf_exponent, r = 1..E being an expert's place in a permutation fixed by the seed.
enum class Simulation : uint8_t { kNone, kUniform, kZipf };

// How Router::logits sums products.
enum class LogitSums : uint8_t {
  kStated,  // in one order, the same bits on every device
  // On a GPU, of bf16: in the order of its tensor cores, faster with many tokens.  The same bits in
  // every call on one kind of GPU, whatever the other tokens of a call are.  Sums differ from
  // kStated's by about 1e-7 of the sum of the magnitudes of their products, so where two experts
  // are as close a token may be routed another way than elsewhere.
  kTensorCores,
};

// ids i32 [T, K], weights f32 [T, K] from logits f32 [T, E]; for methods not listed here.
using CustomRouting =
    std::function<void(const Tensor& logits, const Tensor& ids, const Tensor& weights)>;

// How one row of logits becomes K ids and weights:
//   1. s = score(logits), unless score_after_topk (then s = logits)
//   2. c = s + correction_bias (where given): used to choose, never as a weight
//   3. num_groups > 1, below E and a divisor of it (else 1 group is meant, and config() says so, as
//      in the kernels named below: plain or biased top-k): group score = sum of the two best c of a
//      group (with correction bias) or the best (without); experts outside the topk_groups best
//      groups are not eligible
//   4. the K best c; ties go to the lower expert id, group ties to the lower group
//   5. weight = s of the chosen (score_after_topk: scored now; softmax then runs over the K chosen)
//   6. renormalize: divided by max(their sum, 1e-20); 7. multiplied by routed_scaling_factor
// Experts come in order of decreasing c.  Source: vLLM's topk_softmax and grouped_topk kernels.
// NaN and infinity never make an id invalid or repeated: a NaN c counts as -inf; a group whose
// score is not finite is not eligible (num_groups == 1: the row is one group, scored by its best
// c).  Slots that no eligible expert fills take the lowest ids left over, with weight 0.  A row
// without any eligible group gets ids 0..K-1 with weight 1/K, whatever steps 6 and 7 say.
struct RouterConfig {
  int64_t num_experts = 0;  // E > 0
  int64_t topk = 1;         // 1 <= K <= E, and not above topk_groups * E / num_groups (step 3)
  Scoring scoring = Scoring::kSoftmax;
  bool score_after_topk = false;
  bool renormalize = false;
  int64_t num_groups = 1;   // >= 1; for what does not divide E see step 3
  int64_t topk_groups = 1;  // <= num_groups
  float routed_scaling_factor = 1.0f;
  Simulation simulation = Simulation::kNone;
  double zipf_exponent = 1.0;
  // Simulation: the same seed, call number (of select() on a Router, from 0) and shape give the
  // same ids.
  uint64_t seed = 0;
  CustomRouting custom = {};  // replaces all of the above when set; on the CPU
  LogitSums logit_sums = LogitSums::kStated;
  // Where the router's tensors are.  On a GPU select() and logits() enqueue and return.
  Device device = {};
};

// The config as it is computed: one group where step 3 means one.
RouterConfig with_equal_groups(RouterConfig config);

// On the CPU or the router's device, complete; a router on a GPU keeps copies.  Finite; a
// correction_bias of -inf masks its expert.
struct RouterWeights {
  Tensor gate = {};             // [E, H] bf16, f16 or f32; undefined when the caller brings logits
  Tensor bias = {};             // [E], added to the logits; optional
  Tensor correction_bias = {};  // [E], see RouterConfig; optional
};

class Router {
 public:
  // Throws InvalidArgument: K > E or more than the groups kept hold, shapes, a weight
  // that is not finite (named). Throws Unsupported when no implementation or the one forced by
  // MOEBIUS_ROUTER accepts, for simulated and custom routing on a GPU, and for
  // LogitSums::kTensorCores elsewhere or with a gate that is not bf16 or whose H is not a multiple
  // of 8.
  Router(RouterConfig config, RouterWeights weights);
  ~Router();
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;

  const RouterConfig& config() const;
  const RouterWeights& weights() const;
  std::string_view implementation() const;

  // hidden [T, H] f32/bf16/f16 -> out f32 [T, E]; products summed in f32 in a fixed order (stated
  // in src/router/ref/ref.h), so every implementation and thread count gives the same bits.
  // LogitSums::kTensorCores: hidden bf16 at a multiple of 16 bytes, see there.
  void logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const;
  // logits f32 [T, E] -> ids i32 [T, K], weights f32 [T, K].  T == 0 is valid.
  // Throws InvalidArgument when a custom routing leaves an id outside [-1, E) or unwritten; ids and
  // weights are then what it has made of them.
  void select(const Tensor& logits,
              const Tensor& ids,
              const Tensor& weights,
              const Stream& stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Tokens per local expert among ids i32 [T, K]: out i32 [L].  expert_map i32 [E] (-1 = foreign)
// maps global ids; undefined: ids are local already.  Ids of -1 are not counted.
// On the CPU throws InvalidArgument naming an id or map entry out of range; on a GPU, where nothing
// waits on the host, such ids are not counted.
void count_expert_tokens(const Tensor& ids,
                         const Tensor& expert_map,
                         const Tensor& out,
                         const Stream& stream);

}  // namespace moebius
