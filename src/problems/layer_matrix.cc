// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/layer_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "layer/run_experts.h"
#include "moebius/weight_and_reduce.h"
#include "problems/gemm_tolerance.h"
#include "problems/place.h"

namespace moebius::testing {

namespace {

constexpr LayerTopology kTopologies[] = {{1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 1}, {3, 2}, {4, 0},
                                         {4, 1}, {4, 2}, {8, 0}, {8, 1}, {8, 2}, {8, 4}};

using enum LayerCall;

const LayerScenario kMixed = {"mixed",
                              {kUneven, kOneRank, kOneExpert, kNoTokens, kAllMasked, kRepeat}};
// Each of these needs an object of its own.
const LayerScenario kOtherScenarios[] = {
    {.name = "weight_on_input", .calls = {kUneven, kOneExpert}, .topk = 1, .weight_on_input = true},
    {.name = "strided_top5", .calls = {kUneven, kRepeat}, .topk = 5, .is_strided = true},
    {.name = "interleaved",
     .calls = {kUneven, kOneRank},
     .is_interleaved = true,
     .has_wide_ids = true},
    {.name = "microbatches2", .calls = kMixed.calls, .microbatches = 2, .has_wide_ids = true},
    {.name = "microbatches4", .calls = kMixed.calls, .microbatches = 4},
};
const LayerScenario kThreeMicrobatches = {
    .name = "microbatches3", .calls = kMixed.calls, .microbatches = 3};

// The experts of the rows that take a product in full: they are fast and sum every row by itself.
constexpr LayerExperts kFull = {"cpu_portable", "cpu_portable", Precision::kModel};
constexpr LayerExperts kOracle = {"ref_f64", "ref", Precision::kF64};

bool is_exact(const LayerExperts& experts) {
  return experts.device == DeviceType::kCpu;
}

// The layer of one rank.  It runs forward() call by call, or two micro-batches at a time.
class RankLayer {
 public:
  RankLayer(LayerProblem& problem, const LayerBackend& backend, Group& group)
      : problem_(problem),
        rank_(group.rank()),
        place_(group.device()),
        map_(place_.take(problem.placement().expert_map(rank_))),
        router_(backend.is_monolithic ? problem.make_router(group.device()) : nullptr),
        kernel_(backend.make(group, problem.placement(), problem.desc(rank_, backend.format)),
                problem.make_experts(rank_, backend.format, place_.stream),
                nullptr,
                router_,
                {.microbatches = problem.scenario().microbatches, .min_microbatch_tokens = 0}),
        twin_(problem.scenario().is_interleaved
                  ? backend.make(group, problem.placement(), problem.desc(rank_, backend.format))
                  : nullptr) {}

  void forward(const LayerInput& in_on_cpu, const Tensor& output_on_cpu) {
    const LayerInput in = take(in_on_cpu);
    const Tensor output = place_.take(output_on_cpu);
    KernelInput input;
    fill(in, input);
    input.apply_router_weight_on_input = problem_.scenario().weight_on_input;
    kernel_.forward(input, output, {}, context(0));
    bring(output, output_on_cpu);
    kernel_.prepare_finalize().check();
  }

  // Both calls are dispatched before either is computed, and combined in the reverse order.
  void forward_interleaved(const LayerInput (&in_on_cpu)[2], const Tensor (&output_on_cpu)[2]) {
    const LayerInput in[] = {take(in_on_cpu[0]), take(in_on_cpu[1])};
    const Tensor output[] = {place_.take(output_on_cpu[0]), place_.take(output_on_cpu[1])};
    PrepareResult prepared[2];
    Tensor computed[2];
    for (int i : {0, 1}) {
      prepared[i] = prepare(in[i], i);
    }
    for (int i : {0, 1}) {
      computed[i] = compute(prepared[i], i);
    }
    const auto reduce = make_weight_and_reduce(kernel_.experts().traits().weight_and_reduce);
    for (int i : {1, 0}) {
      FinalizeInput done;
      done.output = output[i];
      done.expert_output = computed[i];
      done.topk_ids = prepared[i].topk_ids;
      done.topk_weights = prepared[i].topk_weights;
      done.weight_and_reduce = reduce.get();
      twin_->finalize(done, context(i));
    }
    for (int i : {0, 1}) {
      bring(output[i], output_on_cpu[i]);
    }
  }

 private:
  CallContext context(int microbatch) { return {place_.stream, &workspaces_, microbatch, nullptr}; }

  LayerInput take(const LayerInput& in) const {
    const bool is_wide = in.topk_ids && problem_.scenario().has_wide_ids;
    const Tensor ids = is_wide ? convert(in.topk_ids, DType::kI64) : in.topk_ids;
    return {place_.take(in.hidden), place_.take(ids), place_.take(in.topk_weights),
            place_.take(in.logits)};
  }
  void bring(const Tensor& from, const Tensor& to) const {
    if (from.raw() != to.raw()) {
      const Tensor here = place_.bring(from);
      std::memcpy(to.raw(), here.raw(), static_cast<size_t>(to.nbytes()));
    }
  }

  // What inputs of the kernel and of prepare have in common.
  template <typename Input>
  void fill(const LayerInput& in, Input& input) const {
    input.hidden = in.hidden;
    input.topk_ids = in.topk_ids;
    input.topk_weights = in.topk_weights;
    input.router_logits = in.logits;
    input.num_experts = problem_.placement().num_experts();
    input.expert_map = map_;
  }

  PrepareResult prepare(const LayerInput& in, int microbatch) {
    PrepareInput request;
    fill(in, request);
    request.quant = &kernel_.experts().quant();
    request.defer_input_quant = kernel_.experts().traits().expects_unquantized_inputs;
    request.may_quantize_transfers = kernel_.experts().traits().takes_quantized_transfers;
    PrepareResult prepared = twin_->prepare(request, context(microbatch));
    if (router_ != nullptr) {
      const Shape shape{prepared.x.dim(0), kernel_.experts().desc().topk};
      prepared.topk_ids = Tensor::empty(shape, DType::kI32, place_.device());
      prepared.topk_weights = Tensor::empty(shape, DType::kF32, place_.device());
      router_->select(prepared.router_logits, prepared.topk_ids, prepared.topk_weights,
                      place_.stream);
    } else if (!prepared.topk_ids) {
      prepared.topk_ids = in.topk_ids;
      prepared.topk_weights = in.topk_weights;
    }
    return prepared;
  }

  Tensor compute(const PrepareResult& prepared, int microbatch) {
    ExpertsInput rows;
    rows.expert_map = twin_->traits().localizes_ids ? Tensor() : map_;
    rows.x = prepared.x;
    rows.x_scale = prepared.x_scale;
    rows.topk_ids = prepared.topk_ids;
    rows.topk_weights = prepared.topk_weights;
    rows.expert_num_tokens = prepared.expert_num_tokens;
    return run_experts(kernel_.experts(), rows, default_chunk_tokens(), context(microbatch));
  }

  LayerProblem& problem_;
  int rank_;
  Place place_;
  Tensor map_;
  std::shared_ptr<const Router> router_;
  ModularKernel kernel_;
  std::unique_ptr<PrepareFinalize> twin_;  // like the kernel's, but called step by step here
  WorkspacePool workspaces_;
};

using Outputs = std::vector<std::vector<Tensor>>;  // [call][rank]

Outputs run(LayerProblem& problem, const LayerBackend& backend, const LayerTopology& topology) {
  const size_t num_calls = problem.scenario().calls.size();
  const bool on_gpus = problem.experts().device == DeviceType::kCuda;
  if (on_gpus) {
    expect_usable(Device::cuda(0));
  }
  Outputs outputs(num_calls);
  for (size_t call = 0; call < num_calls; ++call) {
    for (int rank = 0; rank < topology.num_ranks; ++rank) {
      // NaN shows rows that were not written.
      const LayerInput& in = problem.input(call, rank);
      const Tensor output = Tensor::empty(in.hidden.shape(), in.hidden.dtype());
      std::memset(output.raw(), 0xff, static_cast<size_t>(output.nbytes()));
      outputs[call].push_back(output);
    }
  }
  ThreadGroupOptions options;
  options.num_ranks = topology.num_ranks;
  options.ranks_per_node = topology.ranks_per_node;
  for (int rank = 0; on_gpus && rank < topology.num_ranks; ++rank) {
    options.devices.push_back(Device::cuda(rank % cuda_device_count()));
  }
  run_thread_ranks(options, [&](Group& group) {
    const int rank = group.rank();
    const auto r = static_cast<size_t>(rank);
    RankLayer layer(problem, backend, group);
    if (problem.scenario().is_interleaved) {
      const LayerInput in[] = {problem.input(0, rank), problem.input(1, rank)};
      const Tensor out[] = {outputs[0][r], outputs[1][r]};
      layer.forward_interleaved(in, out);
      return;
    }
    for (size_t call = 0; call < num_calls; ++call) {
      layer.forward(problem.input(call, rank), outputs[call][r]);
    }
  });
  return outputs;
}

// Why bytes are not compared: zeros of either sign are equal.
std::optional<std::string> element_difference(const Tensor& actual, const Tensor& expected) {
  const int64_t hidden = expected.dim(1);
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const float a = get_float(actual, i);
    const float e = get_float(expected, i);
    if (!(a == e)) {
      return fmt::format("row {}, column {}: {} instead of {}", i / hidden, i % hidden, a, e);
    }
  }
  return std::nullopt;
}

std::optional<std::string> row_difference(const Tensor& actual,
                                          const Tensor& expected,
                                          double tolerance) {
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    if (const double error = relative_error(actual[t], expected[t]); error > tolerance) {
      return fmt::format("row {}: relative error {:.2e}, tolerance {:.2e}", t, error, tolerance);
    }
  }
  return std::nullopt;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.nbytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0;
}

std::optional<std::string> compare(LayerProblem& problem,
                                   const LayerBackend& backend,
                                   const LayerTopology& topology) {
  const Outputs outputs = run(problem, backend, topology);
  const ExpertsDesc desc = problem.desc(0, backend.format);
  const double of_rows = layer_tolerance(problem.quant());
  const Scheme& scheme = problem.scheme().expert_case.scheme;
  const double of_calls =
      tolerance(desc.in_dtype, scheme.activation, std::max(desc.hidden, desc.intermediate),
                differing_codes(problem.experts().device, desc.in_dtype, scheme.activation,
                                scheme.weight, scheme.scales == WeightScales::kBlock));
  for (size_t call = 0; call < outputs.size(); ++call) {
    const LayerCall kind = problem.scenario().calls[call];
    RelativeError error;  // of the call
    for (int rank = 0; rank < topology.num_ranks; ++rank) {
      const Tensor& actual = outputs[call][static_cast<size_t>(rank)];
      const Tensor& first = outputs[0][static_cast<size_t>(rank)];
      const auto at = [&](const std::string& difference) {
        return fmt::format("{}, {}, rank {}, {}", to_string(topology), name(kind), rank,
                           difference);
      };
      if (kind == LayerCall::kRepeat && !same_bits(actual, first)) {
        return at("other bits than the first time");
      }
      const Tensor expected =
          problem.expected(call, rank, backend.format, backend.scope, backend.sum,
                           Topology::make(rank, topology.num_ranks, topology.ranks_per_node));
      const auto difference = is_exact(problem.experts())
                                  ? element_difference(actual, expected)
                                  : row_difference(actual, expected, of_rows);
      if (difference) {
        return at(*difference);
      }
      for (int64_t i = 0; i < expected.numel(); ++i) {
        error.add(get_float(actual, i), get_float(expected, i));
      }
    }
    if (error.value() > of_calls) {
      return fmt::format("{}, {}: relative error {:.2e}, tolerance {:.2e}", to_string(topology),
                         name(kind), error.value(), of_calls);
    }
  }
  return std::nullopt;
}

// All of kSchemes, other dtypes, biases, and a hidden size of 2880.
std::vector<LayerScheme> layer_schemes() {
  std::vector<LayerScheme> schemes;
  for (const Scheme& scheme : kSchemes) {
    schemes.push_back({std::string(scheme.name), {.scheme = scheme}});
  }
  schemes.push_back({"unquantized_f16", {.scheme = kSchemes[0], .dtype = DType::kF16}});
  schemes.push_back({"unquantized_f32", {.scheme = kSchemes[0], .dtype = DType::kF32}});
  schemes.push_back({"biased", {.scheme = kSchemes[0], .biased = true}});
  schemes.push_back({"unquantized_h2880", {.scheme = kSchemes[0]}, 2880});
  return schemes;
}

}  // namespace

std::string to_string(const LayerTopology& topology) {
  return fmt::format(
      "{} rank{}{}", topology.num_ranks, topology.num_ranks == 1 ? "" : "s",
      topology.ranks_per_node == 0 ? "" : fmt::format(" in nodes of {}", topology.ranks_per_node));
}

std::vector<LayerRow> layer_rows() {
  const std::vector<LayerTopology> all(std::begin(kTopologies), std::end(kTopologies));
  const std::vector<LayerScheme> schemes = layer_schemes();
  std::vector<LayerRow> rows;
  for (const LayerScheme& scheme : schemes) {
    rows.push_back({scheme.name, scheme, kFull, kMixed, all});
  }
  rows.back().topologies = {{1, 0}, {2, 0}, {3, 2}, {4, 2}};  // the widest scheme takes long
  std::vector<LayerExperts> experts;
  for (const ExpertsImpl& impl : experts_impls()) {
    if (impl.name != kFull.name) {
      experts.push_back({impl.name, impl.name, Precision::kModel, impl.device});
    }
  }
  experts.push_back(kOracle);
  for (const LayerExperts& e : experts) {
    for (const LayerScheme& scheme : schemes) {
      if (scheme.hidden <= 256) {  // at 2880 `ref` takes long
        rows.push_back({fmt::format("{}/{}", scheme.name, e.name), scheme, e, kMixed,
                        e.device == DeviceType::kCpu
                            ? std::vector<LayerTopology>{{1, 0}, {4, 2}}
                            : std::vector<LayerTopology>{{1, 0}, {2, 0}, {3, 0}, {4, 0}}});
      }
    }
  }
  for (LayerScheme scheme : schemes) {
    if (scheme.hidden <= 256) {
      scheme.hidden = 320;  // 2.5 blocks of 128 columns
      rows.push_back({scheme.name + "/h320", scheme, kFull, kMixed, {LayerTopology{1, 0}, {3, 2}}});
    }
  }
  for (const LayerScenario& scenario : kOtherScenarios) {
    for (const LayerScheme& scheme : schemes) {
      // Their rows travel differently: as they are, with scales beside them, and with one scale for
      // all rows that have arrived.
      if (scheme.name == "unquantized" || scheme.name == "fp8_block" ||
          scheme.name == "fp8_tensor") {
        rows.push_back(
            {fmt::format("{}/{}", scheme.name, scenario.name), scheme, kFull, scenario, all});
      }
    }
  }
  for (const LayerScheme& scheme : schemes) {
    if (scheme.hidden <= 256) {
      rows.push_back({fmt::format("{}/{}", scheme.name, kThreeMicrobatches.name),
                      scheme,
                      kFull,
                      kThreeMicrobatches,
                      {LayerTopology{2, 0}, {4, 2}}});
    }
  }
  return rows;
}

bool is_everywhere(const LayerRow& row) {
  return row.experts.name == kFull.name || row.experts.name == kOracle.name;
}

LayerProblem& LayerRowRunner::problem(const LayerBackend& backend, int num_ranks) {
  auto& made = problems_[{num_ranks, backend.is_monolithic}];
  if (made == nullptr) {
    made = std::make_unique<LayerProblem>(row_.scheme, row_.experts, row_.scenario, num_ranks,
                                          backend.is_monolithic);
  }
  return *made;
}

std::string LayerRowRunner::experts_refusal() {
  if (row_.experts.device == DeviceType::kCuda && cuda_device_count() == 0) {
    return "skipped: no GPU";
  }
  LayerProblem& made = problem(layer_backends()[0], 1);
  if (row_.experts.device == DeviceType::kCuda) {
    try {
      made.make_experts(0, ActivationFormat::kStandard, Stream::cuda(0));
      return "";
    } catch (const Unsupported& error) {
      return error.what();
    }
  }
  return moebius::refusal({made.desc(0, ActivationFormat::kStandard), made.weights(), {}},
                          row_.experts.implementation);
}

std::optional<std::string> LayerRowRunner::refusal(const LayerBackend& backend) {
  try {
    run(problem(backend, 1), backend, {});
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(0, message.rfind(" ("));  // without the place in the sources
  }
  return std::nullopt;
}

std::optional<std::string> LayerRowRunner::difference(const LayerBackend& backend) {
  for (const LayerTopology& topology : row_.topologies) {
    if (topology.num_ranks > 1 && !backend.over_ranks) {
      continue;
    }
    try {
      if (auto found = compare(problem(backend, topology.num_ranks), backend, topology)) {
        return found;
      }
    } catch (const Error& error) {
      return fmt::format("{}: {}", to_string(topology), error.what());
    }
  }
  return std::nullopt;
}

std::optional<std::string> LayerRowRunner::distance_from_f64() {
  LayerProblem& model = problem(layer_backends()[0], 1);
  LayerProblem oracle(row_.scheme, kOracle, row_.scenario, 1, false);
  const auto selections = [](LayerProblem& p) {
    return p.selections(0, ActivationFormat::kStandard, LayerScope::kWhole);
  };
  const double error = relative_error(selections(model), selections(oracle));
  const double allowed = layer_tolerance(model.quant());
  return error <= allowed
             ? std::nullopt
             : std::optional(fmt::format("relative error {:.2e} from float64, tolerance {:.2e}",
                                         error, allowed));
}

}  // namespace moebius::testing
