// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/layer_options.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "c_api/convert.h"
#include "c_api/expert_weights.h"
#include "c_api/status.h"
#include "c_api/structs.h"
#include "c_api/transports.h"

namespace moebius::c_api {

namespace {

moebius_tensor view_of(const Tensor& tensor) {
  moebius_tensor view{};
  view.struct_size = sizeof(view);
  write_tensor(&view, "tensor", tensor);
  return view;
}

void expect_success(int32_t code, std::string_view what) {
  if (code != 0) {
    throw CallbackFailed(fmt::format("the {} function returned {}, expected 0", what, code));
  }
}

All2AllBackend backend_of(const moebius_layer_options& options, int num_ranks, int tp_size) {
  if (options.backend == nullptr) {
    return num_ranks == 1 || tp_size == num_ranks ? All2AllBackend::kNone
           : options.format == MOEBIUS_BATCHED    ? All2AllBackend::kLowLatency
                                                  : All2AllBackend::kHighThroughput;
  }
  const auto backend = all2all_backend_from_name(options.backend);
  expect(backend.has_value(), [&] {
    return fmt::format(
        "backend is \"{}\", expected none, allgather_reducescatter, "
        "high_throughput or low_latency",
        options.backend);
  });
  return *backend;
}

ParallelConfig parallel_of(const moebius_layer_options& options, const GroupObject* group) {
  const int num_ranks = group == nullptr ? 1 : group->get().size();
  const int rank = group == nullptr ? 0 : group->get().rank();
  const int tp_size = options.tp_size == 0 ? 1 : options.tp_size;
  expect(tp_size > 0 && num_ranks % tp_size == 0, [&] {
    return fmt::format("tp_size is {}, expected a divisor of {} ranks", tp_size, num_ranks);
  });
  const All2AllBackend backend = backend_of(options, num_ranks, tp_size);
  expect(backend != All2AllBackend::kNone || tp_size == num_ranks, [&] {
    return fmt::format(
        "backend is none, with which ranks hold the same tokens, and tp_size is {}, "
        "expected {}",
        tp_size, num_ranks);
  });
  return ParallelConfig::make(tp_size, rank % tp_size, num_ranks / tp_size, rank / tp_size,
                              !read_flag(options.no_expert_parallel, "no_expert_parallel"),
                              backend);
}

}  // namespace

LayerPlan read_layer_options(const moebius_layer_options* given, const GroupObject* group) {
  const moebius_layer_options options = read_optional(given, "layer options");
  LayerPlan plan;
  plan.options.format = read_activation_format(options.format);
  plan.options.experts = options.experts == nullptr ? "" : options.experts;
  plan.options.weight_memory = read_weight_memory(options.lends_weights);
  plan.options.precision =
      read_flag(options.computes_in_f64, "computes_in_f64") ? Precision::kF64 : Precision::kModel;
  plan.options.kernel = read_kernel_options(options.kernel);
  plan.options.monolithic = read_flag(options.monolithic, "monolithic");
  expect_ge(options.comm_sms, 0, "comm_sms");
  plan.options.comm_sms = options.comm_sms;
  if (options.capacity != 0) {
    plan.options.capacity = options.capacity == -1 ? 0 : options.capacity;
  }
  plan.options.low_latency_sum = read_flag(options.sums_per_rank, "sums_per_rank")
                                     ? LowLatencySum::kRanks
                                     : LowLatencySum::kSelections;
  plan.options.sequence_parallel = read_flag(options.sequence_parallel, "sequence_parallel");
  if (options.transports != nullptr) {
    expect(group != nullptr, "transports are given without a group");
    plan.options.transports = find_transports(options.transports, *group)->transports;
  }
  plan.parallel = parallel_of(options, group);
  if (options.max_num_tokens != 0) {
    plan.max_num_tokens = options.max_num_tokens;
  }
  plan.workspaces = options.workspaces == nullptr ? std::make_shared<WorkspacesObject>()
                                                  : find<WorkspacesObject>(options.workspaces);
  if (options.routing != nullptr) {
    plan.parts.routing = [function = options.routing, user = options.routing_user](
                             const Tensor& hidden, const Tensor& ids, const Tensor& weights,
                             const CallContext& context) {
      const moebius_tensor h = view_of(hidden);
      const moebius_tensor i = view_of(ids);
      const moebius_tensor w = view_of(weights);
      expect_success(function(user, &h, &i, &w, context.stream.native_handle()), "routing");
    };
  }
  if (options.shared_experts != nullptr) {
    plan.parts.shared_experts = std::make_shared<const SharedExperts>(SharedExpertsFunction(
        [function = options.shared_experts, user = options.shared_experts_user](
            const Tensor& hidden, const Tensor& output, const CallContext& context) {
          const moebius_tensor h = view_of(hidden);
          const moebius_tensor o = view_of(output);
          expect_success(function(user, &h, &o, context.stream.native_handle()), "shared experts");
        }));
  }
  return plan;
}

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_workspaces_create(moebius_workspaces* workspaces) {
  return giving(workspaces, "workspaces",
                [&] { return make_handle(std::make_shared<WorkspacesObject>()); });
}

moebius_status moebius_workspaces_bytes(moebius_workspaces workspaces, int64_t* bytes) {
  return guarded(
      [&] { expect_out(bytes, "bytes") = Using<WorkspacesObject>(workspaces)->pool.bytes(); });
}

moebius_status moebius_workspaces_trim(moebius_workspaces workspaces) {
  return guarded([&] { Using<WorkspacesObject>(workspaces)->pool.trim(); });
}

moebius_status moebius_workspaces_destroy(moebius_workspaces workspaces) {
  return guarded([&] { destroy_handle<WorkspacesObject>(workspaces); });
}
