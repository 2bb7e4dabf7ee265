// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Router stage: hidden states -> router logits -> expert ids and weights per token.
// Place: the first stage; its ids and weights drive dispatch and combine.
// Letters: T tokens, H hidden, E experts (global), K top-k, G groups.
// Thread-safety: select() and logits() are const, and concurrent calls need different outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "moebius/api.h"
#include "moebius/slot_order.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

enum class Scoring : uint8_t {
  kSoftmax,  // over all experts, or over the chosen ones with score_after_topk
  kSigmoid,
  kSqrtSoftplus,  // sqrt(log(1 + exp(x)))
  kSparseMixer,   // of PhiMoE, see RouterConfig::mixer_epsilon
};

// Routing that ignores the logits, for load tests and benchmarks: K different experts per token,
// each with weight 1/K.  kZipf draws them one after the other with a probability proportional to
// 1 / r^zipf_exponent, where r = 1..E is an expert's place in a permutation that the seed fixes.
enum class Simulation : uint8_t { kNone, kUniform, kZipf };

// How Router::logits sums products.
enum class LogitSums : uint8_t {
  kStated,  // in one order, with the same bits on every device
  // On a GPU, for bf16 only: in the order of the tensor cores, which is faster with many tokens.
  // The bits are the same in every call on one kind of GPU, whatever other tokens a call has.  A
  // sum differs from that of kStated by about 1e-7 of the sum of the magnitudes of its products.
  // So a token may be routed differently than elsewhere when two experts are that close.
  kTensorCores,
};

// Computes ids i32 [T, K] and weights f32 [T, K] from logits f32 [T, E], for methods not listed
// here.
using CustomRouting =
    std::function<void(const Tensor& logits, const Tensor& ids, const Tensor& weights)>;

// How one row of logits becomes K ids and weights:
//   1. s = score(logits), unless score_after_topk (then s = logits)
//   2. c = s + correction_bias (where given): used to choose, never as a weight
//   3. when num_groups > 1: the score of a group is the sum of its two best c (with correction
//      bias) or its best c (without); experts outside the topk_groups best groups are not eligible.
//      Groups of one expert each leave the choice to step 4: there is 1 group, and config() says so
//   4. the K best c; ties go to the lower expert id, group ties to the lower group
//   5. weight = s of the chosen experts (score_after_topk: s is scored now, and softmax runs over
//      the K chosen ones)
//   6. renormalize: weights are divided by max(their sum, 1e-20)
//   7. weights are multiplied by routed_scaling_factor
//   8. and by expert_scale of their experts, where given
// With kSparseMixer, steps 1 to 5 are done once for each of the K experts: m is the best logit of
// the experts not chosen yet, whose expert is chosen.  Its weight is its softmax over those of them
// for which (m - x) / max(|x|, m) <= 2 mixer_epsilon, where x is the logit.
// Experts are in the order of decreasing c.  Source: vLLM's topk_softmax and grouped_topk kernels.
// NaN and infinity never make an id invalid or repeated.  A NaN c counts as -inf.  A group whose
// score is not finite is not eligible; with num_groups == 1 the row is one group, scored by its
// best c.  Slots that no eligible expert fills take the lowest ids left over, with weight 0.  A row
// without an eligible group gets ids 0..K-1 with weight 1/K, without steps 6 and 7.
struct RouterConfig {
  int64_t num_experts = 0;  // E > 0
  int64_t topk = 1;         // 1 <= K <= E and K <= topk_groups * E / num_groups (step 3)
  Scoring scoring = Scoring::kSoftmax;
  bool score_after_topk = false;
  bool renormalize = false;
  int64_t num_groups = 1;   // >= 1, divides E
  int64_t topk_groups = 1;  // <= num_groups
  float routed_scaling_factor = 1.0f;
  // kSparseMixer only, at least 0.  It excludes groups, correction_bias and score_after_topk.
  float mixer_epsilon = 0.01f;
  Simulation simulation = Simulation::kNone;
  double zipf_exponent = 1.0;
  // Simulation: equal seeds, shapes and call numbers give equal ids.  The call number counts the
  // calls of select() on a Router from 0.
  uint64_t seed = 0;
  CustomRouting custom = {};  // when set, replaces all of the above; on the CPU only
  LogitSums logit_sums = LogitSums::kStated;
  // The device of the router's tensors.  On a GPU select() and logits() enqueue and return.
  Device device = {};
};

// The tensors are on the CPU or on the router's device, and their values are complete.  The router
// has memory of its own (as WeightMemory::kOwned in experts.h), so the caller may overwrite or free
// what it gave.  Each is bf16, f16 or f32, and all values are finite, but a correction_bias of -inf
// masks its expert.
struct RouterWeights {
  Tensor gate = {};             // [E, H]; undefined when the caller brings logits
  Tensor bias = {};             // [E], added to the logits; optional
  Tensor correction_bias = {};  // [E], see RouterConfig; optional
  Tensor expert_scale = {};     // [E], see RouterConfig; optional
};

// What Router::route() writes.
struct RouteOutput {
  Tensor logits;   // f32 [T, E]
  Tensor ids;      // i32 or i64 [T, K]
  Tensor weights;  // f32 [T, K]
  // The order of the slots with these ids.  It is optional, and there is one on a GPU only.
  const SlotOrder* order = nullptr;
};

class Router {
 public:
  // Throws InvalidArgument when K exceeds E or the experts of the groups kept, for wrong shapes,
  // and for a weight that is not finite, which the message names.
  // Throws Unsupported when no implementation accepts, or the one that MOEBIUS_ROUTER forces does
  // not; for simulated and custom routing on a GPU; and for LogitSums::kTensorCores on the CPU,
  // with a gate that is not bf16, or with an H that is not a multiple of 8.
  Router(RouterConfig config, RouterWeights weights);
  ~Router();
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;

  const RouterConfig& config() const;
  bool has_gate() const;  // whether logits() may be called
  std::string_view implementation() const;

  // Replaces the values of the weights, in place on a GPU, so that a Graph that has recorded
  // logits() and select() computes with the new ones.  Shapes, dtypes and what is defined are as in
  // the weights that the router was made from.  The values have been read when the call returns; on
  // a GPU they are replaced in the order of `stream`.  REQUIRES: no other call meanwhile.
  // Throws, before anything is written, what the constructor throws, and InvalidArgument for what
  // differs, naming both values.
  void update_weights(const RouterWeights& weights, const Stream& stream);
  // Throws what update_weights() would throw before it writes.
  void expect_update(const RouterWeights& weights) const;

  // hidden [T, H] f32/bf16/f16 -> out f32 [T, E].  Products are summed in f32 in a fixed order,
  // stated in src/router/ref/ref.h, so every implementation and thread count gives the same bits.
  // With LogitSums::kTensorCores, hidden is bf16 at an address that is a multiple of 16 bytes.
  // Throws InvalidArgument (shape, dtype, device) or CudaError.
  void logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const;
  // logits f32 [T, E] -> ids i32 or i64 [T, K], weights f32 [T, K].  T == 0 is valid.  No output
  // overlaps another tensor here, nor in logits().
  // Throws InvalidArgument (shape, dtype, device), also when a custom routing leaves an id outside
  // [-1, E) or unwritten; ids and weights then stay as the custom routing left them.
  void select(const Tensor& logits,
              const Tensor& ids,
              const Tensor& weights,
              const Stream& stream) const;
  // logits(), then select(), then the order of the slots where one is asked for, with the same
  // results.  Throws what those throw, and Unsupported for an order on the CPU.
  void route(const Tensor& hidden, const RouteOutput& out, const Stream& stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Counts the tokens of each local expert among ids i32 or i64 [T, K] into out i32 [L].
// expert_map i32 [E] maps global ids to local ones (-1 = foreign); when it is undefined the ids are
// local already.  Ids of -1 are not counted.  `out` may not overlap ids or expert_map.  On the CPU
// an id or map entry out of range throws InvalidArgument, which names it.  On a GPU, where the host
// does not wait, such ids are not counted.
void count_expert_tokens(const Tensor& ids,
                         const Tensor& expert_map,
                         const Tensor& out,
                         const Stream& stream);

}  // namespace moebius
