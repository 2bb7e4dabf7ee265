// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Expert stage: y = W2[e] * act(W1[e] * x + b1[e]) + b2[e] for every (row, local expert e).
// Place: after dispatch (prepare), before weighting, reduction and combine (finalize).
// Letters: M rows received, K top-k, L local experts, E global experts, H hidden, I intermediate,
// N = rows of w1 (2*I gated, I otherwise), A adapters of rank r.
//
// Activation formats:
//   standard  x [M, H] with topk_ids [M, K]; the stage sorts (row, slot) pairs by expert itself.
//   batched   x [L, max_rows, H] with expert_num_tokens [L]; rows past a count are garbage that may
//             be read but never influences other rows.
// LoRA: for a row with adapter a, W is W + scaling[a] * B[a] * A[a] in both GEMMs.  The adapter is
// applied to exactly what W is applied to (the values that quantized activations stand for).  A * x
// and its product with B stay f32 and are added to the f32 result of GEMM1 or GEMM2, after scales
// and bias and before it is rounded (kF64: double throughout).
// Rounding points (Precision::kModel) are those of the public vLLM kernels.  GEMM1 (f32
// accumulation, scales, bias) is rounded to in_dtype.  The activation's output is rounded to
// in_dtype; silu and gelu round act(gate) first, then the product.  Where a2 is quantized, the
// output is then quantized as a2 says.  GEMM2 is rounded to in_dtype.  CPUs that multiply bf16 take
// subnormal numbers for zero and have bounds for rows: docs/formats.md.
// Thread-safety: apply() is const; concurrent calls need different outputs and workspaces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "moebius/api.h"
#include "moebius/quant_config.h"
#include "moebius/row_arrivals.h"
#include "moebius/slot_order.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

enum class ActivationFormat : uint8_t { kStandard, kBatched };
std::string_view name(ActivationFormat format);  // "standard", "batched"

enum class Activation : uint8_t {
  kSilu,        // gated: silu(g) * u
  kGelu,        // erf; gated: gelu(g) * u
  kGeluTanh,    // tanh approximation
  kSwigluOai,   // g' * sigmoid(alpha * g') * (u' + beta), g' = min(g, limit),
                // u' = clamp(u, -limit, limit); with alpha 1 and beta 0: silu with clamp_limit
  kRelu2,       // relu(x)^2, not gated
  kSwigluStep,  // min(silu(g), limit) * clamp(u, -limit, limit)
};
std::string_view name(Activation activation);

struct ActivationSpec {
  Activation kind = Activation::kSilu;
  bool gated = true;         // w1 holds gate and up
  bool interleaved = false;  // gate and up rows of w1 alternate (gpt-oss) instead of gate, then up
  float alpha = 1.702f;      // swiglu-oai only, finite
  float beta = 1.0f;         // swiglu-oai only, finite
  float limit = 7.0f;        // swiglu-oai and swiglu-step, above 0
};

// Sets output [rows, I] to the activation of input [rows, N].  Both have one dtype (f32, bf16 or
// f16) and are on the stream's device; on a GPU the work is enqueued.  May be called concurrently
// for different outputs.  Throws InvalidArgument where shapes, dtypes or devices do not fit.
void apply_activation(const ActivationSpec& spec,
                      const Tensor& input,
                      const Tensor& output,
                      const Stream& stream);

// kModel: f32 accumulation and the rounding points above.
// kF64: double throughout; nothing is rounded in between and activations are not quantized.  Only
// the reference implementation computes it; it is the oracle of `--check`.
enum class Precision : uint8_t { kModel, kF64 };

// Says who weights and sums the rows of a token (see weight_and_reduce.h).
enum class WeightAndReduceKind : uint8_t {
  kDelegate,      // prepare/finalize decides
  kContiguous,    // expert output is [M, K, H]: weight, then sum over K
  kNoOp,          // expert output is final: [M, H], weighted and summed as kContiguous would
  kNaiveBatched,  // expert output is [L, max_rows, H]
};

// Whose memory experts compute on once they have been made from weights.  The rule is the same for
// every implementation on every processor.
enum class WeightMemory : uint8_t {
  // Their own.  After make_experts has returned, the caller may overwrite or free what it gave.
  // Tensors that nobody else holds (Tensor::is_exclusive) are taken over, so handles that are moved
  // in cost no second copy; other tensors are copied, or repacked into what the kernels read.
  kOwned,
  // The caller's, on the device of the experts.  It stays alive and in place as long as the experts
  // do, and nothing is copied where weights are computed as they lie.  The caller may write new
  // values there between calls, and then calls update_weights() with the same tensors, because an
  // implementation may hold repacked values beside them.  Adapters are never repacked; whoever
  // rewrites those alone need not make that call.
  kLent,
};

struct ExpertsDesc {              // fixed for the life of the object
  int64_t num_experts = 0;        // E > 0
  int64_t num_local_experts = 0;  // L in [1, E]
  int64_t topk = 1;               // K in [1, E]
  int64_t hidden = 0;             // H > 0, elements
  int64_t intermediate = 0;       // I > 0, elements; of this rank's shard under TP
  DType in_dtype = DType::kBF16;  // unquantized activations and output: bf16, f16 or f32
  ActivationSpec activation;
  ActivationFormat format = ActivationFormat::kStandard;
  Precision precision = Precision::kModel;
  int64_t num_adapters = 0;  // A; 0: no LoRA
  int64_t lora_rank = 0;     // r, of all adapters; 0 without
  WeightMemory weight_memory = WeightMemory::kOwned;
  // Other experts are computed at the same time, as a layer's routed and shared experts are.  On a
  // GPU kernels are then chosen that share its SMs; sums may have another order.
  bool beside_others = false;

  int64_t w1_rows() const { return activation.gated ? 2 * intermediate : intermediate; }
};

// Adapters of the local experts, each tensor bf16, f16 or f32.  S is 2 for gated experts, else 1.
// Adapters of a smaller rank are padded with zeros.  Either pair may be undefined; its weight then
// has no adapters.
// Under TP they are cut as W is: w1_b by rows, w2_a by columns; w1_a and w2_b are whole on every
// rank.  The sum over ranks stays right, since it is linear.
struct LoraWeights {
  Tensor w1_a;     // [A, L, S * r, H]: gate's A, then up's
  Tensor w1_b;     // [A, L, N, r], rows as w1's (interleaved, too): gate rows take gate's A * x
  Tensor w2_a;     // [A, L, r, I]
  Tensor w2_b;     // [A, L, H, r]
  Tensor scaling;  // f32 [A]: alpha / rank

  bool defined() const { return scaling || w1_a || w1_b || w2_a || w2_b; }
  // A and r as the shapes of these tensors give them, for a desc.
  int64_t num_adapters() const;
  int64_t rank() const;
};

// ExpertsDesc::weight_memory says what becomes of these tensors.
struct ExpertWeights {
  Tensor w1;  // [L, N, H]: bf16, f16, f32, or quant.w1's storage dtype
  Tensor w2;  // [L, H, I]
  QuantConfig quant;
  LoraWeights lora;  // undefined tensors: none
};

// An output can be made in parts by columns.  The caller is told of each part, so that it can be
// sent while the next one is computed.  Part i is columns [i H / count, (i + 1) H / count).
struct ColumnParts {
  int count = 1;    // divides H; 1: the output is whole
  int max_sms = 0;  // GPUs: ExpertsInput::max_sms of all parts but the first
  // Called on the host once the part is enqueued; not with count 1, nor where there are no rows.
  std::function<void(int part)> made;
};

struct ExpertsInput {
  Tensor x;         // standard [M, H], batched [L, max_rows, H]; in_dtype, or a1's storage dtype
  Tensor x_scale;   // with quantized x: per tensor f32 [1,1], per token [M, 1], blocks [M, H/g];
                    // mx: e8m0 [M, H/32]; nvfp4: e4m3 [M, H/16] under a1's global scale [1],
                    // or without one [M, H/16 + 4], where each row ends in its own (f32);
                    // batched [L, ...] (QuantConfig::batched_scale_shape)
  Tensor topk_ids;  // standard: i32 or i64 [M, K]; -1 = masked
  Tensor topk_weights;       // standard: f32 [M, K]; read only by kNoOp implementations
  Tensor expert_num_tokens;  // i32 [L]; batched: required
  Tensor expert_map;         // i32 [E], local index or -1; undefined: topk_ids are local
  Tensor lora_ids;           // i32, standard [M], batched [L, max_rows]: adapter of each row, -1 =
                             // none; undefined: none at all
  // f32, standard [M], batched [L, max_rows]: the scale that the rows of GEMM2 get which come from
  // this row of x, above 0; required with QuantDesc::calls_bring_scales of a2, undefined otherwise.
  Tensor a2_scale;
  bool apply_router_weight_on_input = false;  // already applied: do not weight again
  int max_sms = 0;  // GPUs: the most SMs that a GEMM takes, at least 2; 0: all
  // Batched: how many rows an expert is expected to have, on average; 0: not known.  GPUs pick
  // kernels by this hint, since max_rows is mostly far more.  DeepGEMM calls it expected_m.
  int64_t expected_rows = 0;
  ColumnParts parts;  // more than one only with ExpertsTraits::gives_parts
  // Rows of x and x_scale that may still be on their way, only with
  // ExpertsTraits::takes_arriving_rows; everything else is there.
  RowArrivals arrivals = {};
  // i32 [L], optional, only with ExpertsTraits::counts_rows: apply() writes here how many of the
  // selections each local expert has.
  Tensor row_counts = {};
  // The order of the slots of topk_ids by expert_map, optional, only with
  // ExpertsTraits::takes_order and without row_counts: apply() then does not make it.  Its counters
  // are used up.
  const SlotOrder* order = nullptr;
};

// The buffers that one apply() needs.  `intermediate` is GEMM2's operand, the output of the
// activation; an implementation may ask for [.., 2 * I] elements of 16 bits to hold f32, and {0}
// means that it needs none.  First dimensions count rows, so a chunk's buffers fit into those of
// all rows.
struct ExpertsWorkspace {
  Shape intermediate;
  Shape output;
  DType dtype = DType::kBF16;  // of intermediate and output
  int64_t scratch_bytes = 0;   // anything else (index lists, packed blocks); 256-byte aligned
};

// Says what an implementation of the experts is and can do, fixed for the life of the object.
struct ExpertsTraits {
  std::string_view name;  // a literal, as "cpu_amx"
  // Says what is left to do with the rows that apply() writes.
  WeightAndReduceKind weight_and_reduce = WeightAndReduceKind::kDelegate;
  bool supports_chunking = false;  // apply() may be called for some of the rows at a time
  // prepare must hand over unquantized rows even when a1 is quantized.
  bool expects_unquantized_inputs = false;
  // With expects_unquantized_inputs: rows that have travelled may come quantized nonetheless, with
  // x_scale as quantize() makes it (e8m0 or e4m3 scales), and give the same bits.  Such rows travel
  // with fewer bytes; where nothing travels, they would only be quantized in two steps.
  bool takes_quantized_transfers = false;
  // apply() takes more than one ColumnParts, for standard rows.  The output's memory then is
  // [count, M, H / count].
  bool gives_parts = false;
  // apply() begins with those rows of ExpertsInput::arrivals that are here.
  bool takes_arriving_rows = false;
  // The caller must keep the memory of the weights alive and in place (WeightMemory::kLent).
  bool retains_weights = false;
  // apply() writes ExpertsInput::row_counts, for standard rows, since it counts them anyway.
  bool counts_rows = false;
  // apply() takes an ExpertsInput::order, for standard rows, instead of making one.
  bool takes_order = false;
};

class Experts {
 public:
  virtual ~Experts() = default;

  const ExpertsTraits& traits() const { return traits_; }
  std::string_view name() const { return traits_.name; }
  virtual const ExpertsDesc& desc() const = 0;
  virtual const QuantConfig& quant() const = 0;
  bool retains_weights() const { return traits_.retains_weights; }

  // Replaces the values of the weights in place: no address changes, so a Graph that has recorded
  // apply() computes with the new values, and afterwards the object gives the bits of one that was
  // made from `weights`.  All tensors have the shapes and dtypes, and the scheme is the one, of
  // the weights that the object was made from, and they are on its device or on the host.  Lent
  // weights are the lent tensors themselves, in which the caller has written.
  // What is left out stays as it is: w1 with its scales and those of its rows (quant.w1, quant.a1),
  // w2 likewise, or all of lora.
  // On a GPU the values are replaced in the order of `stream`; those on the host have been read
  // when the call returns.  REQUIRES: no apply() runs meanwhile, and work of earlier ones precedes
  // the update in the order of `stream`.
  // Throws, before anything is written, InvalidArgument for what differs, naming both values, and
  // Unsupported where the implementation cannot hold the new values, or replaces none at all.
  virtual void update_weights(const ExpertWeights& weights, const Stream& stream);
  // Throws what update_weights() would throw before it writes.
  virtual void expect_update(const ExpertWeights& weights) const;

  // Returns what apply() needs for `rows` rows: M (standard) or max_rows (batched).
  virtual ExpertsWorkspace workspace(int64_t rows) const = 0;

  // Returns what SlotOrder::first_weights should be for a call of so many rows; undefined: nothing,
  // since nobody should fetch weights ahead.
  virtual Tensor first_weights(int64_t /*rows*/) const { return {}; }

  // Writes output, which has the shape and dtype of workspace(rows) and may not alias x.  The call
  // may overwrite `intermediate` and scratch, which have at least the elements and bytes that
  // workspace(rows) asks for; scratch is at a multiple of 256 bytes.
  // Masked and foreign selections give zero rows, or add nothing (kNoOp); batched rows past a count
  // are not written.  M == 0 and experts without rows are valid.  Equal inputs give equal bits, for
  // any number of threads; at most as many threads are used as make_experts's stream had.
  // On a GPU every tensor is on its device, nothing waits on the host, and a CUDA graph can capture
  // the call.  Values are not checked there: an id that the CPU would refuse counts as masked or as
  // no adapter, and counts are cut to [0, max_rows].
  // Throws InvalidArgument for shapes, dtypes and devices that do not fit, kNoOp without
  // topk_weights, a count outside [0, max_rows], an id outside [-1, E) (without expert_map: outside
  // [-1, L)), which is named with token and slot, a lora id outside [-1, A) of a computed row,
  // lora_ids without adapters, and an a2_scale that is missing, not asked for, or of a computed row
  // not above 0 and finite.
  virtual void apply(const ExpertsInput& input,
                     const Tensor& output,
                     const Tensor& intermediate,
                     const Tensor& scratch,
                     const Stream& stream) const = 0;

 protected:
  explicit Experts(ExpertsTraits traits) : traits_(traits) {}

  ExpertsTraits traits_;  // constructors may still change it
};

struct ExpertsImpl {
  std::string_view name;
  DeviceType device;  // of the streams it works on; host weights may be given to one on a GPU
  Support (*supports)(const ExpertsDesc& desc, const ExpertWeights& weights);
  std::unique_ptr<Experts> (*make)(const ExpertsDesc& desc,
                                   ExpertWeights weights,
                                   const Stream& stream);
};
// All implementations, the most specialised first and `ref` last.
std::span<const ExpertsImpl> experts_impls();

// Makes the first implementation on the stream's device that accepts; `implementation` (or
// MOEBIUS_EXPERTS) forces one.  Weights are on that device or, unless they are lent, on the host.
// Weights on the host are copied to a GPU before the call returns.
// Throws InvalidArgument for shapes that contradict desc, naming both, and Unsupported, naming
// every implementation that was tried and why it refused.
std::unique_ptr<Experts> make_experts(const ExpertsDesc& desc,
                                      ExpertWeights weights,
                                      const Stream& stream,
                                      std::string_view implementation = {});

// Checks weights and quant tensors against desc; throws InvalidArgument naming tensor and values.
void validate_expert_weights(const ExpertsDesc& desc, const ExpertWeights& weights);

}  // namespace moebius
