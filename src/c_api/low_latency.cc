// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/low_latency.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/expert_weights.h"
#include "c_api/results.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"
#include "c_api/transports.h"

namespace moebius::c_api {

namespace {

struct LowLatencyObject : Object {
  static constexpr std::string_view kKind = "low_latency transport";
  using Handle = moebius_low_latency;

  LowLatencyObject(std::shared_ptr<GroupObject> of, std::shared_ptr<LowLatency> made)
      : Object(of->usage), group(std::move(of)), transport(std::move(made)) {}
  std::shared_ptr<GroupObject> group;
  std::shared_ptr<LowLatency> transport;
};

struct LowLatencyResult : ResultObject {
  static constexpr std::string_view kCall = "moebius_low_latency_dispatch";

  LowLatencyResult(LowLatencyDispatchOutput&& made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), output(std::move(made)) {}

  Tensor array(std::string_view name, int /*index*/) const override {
    if (name == "combine_buffer") {
      return static_cast<const LowLatencyObject&>(*owner).transport->combine_buffer(*output.handle);
    }
    return name == "x"                   ? output.x
           : name == "x_scale"           ? output.x_scale
           : name == "expert_num_tokens" ? output.expert_num_tokens
           : name == "row_tags"          ? output.row_tags
           : name == "source_token"      ? output.source_token
           : name == "source_ranges"     ? output.source_ranges
                                         : Tensor();
  }
  Event event() const override { return output.event; }

  LowLatencyDispatchOutput output;
};

struct LowLatencyCombineResult : ResultObject {
  LowLatencyCombineResult(LowLatencyCombineOutput&& made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), output(std::move(made)) {}

  Tensor array(std::string_view name, int /*index*/) const override {
    return name == "x" ? output.x : Tensor();
  }
  Event event() const override { return output.event; }

  LowLatencyCombineOutput output;
};

LowLatencyOptions read_options(const moebius_low_latency_options& given) {
  expect_ge(given.num_sms, 0, "num_sms");
  return {.max_tokens = given.max_tokens == 0 ? 128 : given.max_tokens,
          .hidden = given.hidden,
          .topk = given.topk,
          .in_dtype = read_in_dtype(given.in_dtype),
          .num_sms = given.num_sms,
          .sum = read_flag(given.sums_per_rank, "sums_per_rank") ? LowLatencySum::kRanks
                                                                 : LowLatencySum::kSelections,
          .excludes_missing = read_flag(given.excludes_missing, "excludes_missing")};
}

LowLatencyDispatchInput read_input(const moebius_low_latency_dispatch_input* input,
                                   const Stream& stream) {
  const moebius_low_latency_dispatch_input given = read_struct(input, "input");
  const auto optional = [&](const moebius_tensor* tensor, std::string_view what) {
    return read_optional_tensor(tensor, what, stream);
  };
  return {
      .x = read_tensor(given.x, "x", stream),
      .topk_ids = read_tensor(given.topk_ids, "topk_ids", stream),
      .cast = static_cast<LowLatencyCast>(read_choice(given.cast, MOEBIUS_CAST_FP8_UE8M0, "cast")),
      .row_tags = optional(given.row_tags, "row_tags"),
      .previous = read_event(given.previous_cuda_event, stream),
      .records_event = read_flag(given.records_event, "records_event"),
      .x_scale = optional(given.x_scale, "x_scale"),
      .scales = static_cast<LowLatencyScales>(
          read_choice(given.scales, MOEBIUS_SCALES_PACKED_COLUMNS, "scales")),
      .max_tokens = given.max_tokens,
      .received = optional(given.received, "received"),
      .wait_us = optional(given.wait_us, "wait_us"),
      .into = {
          .x = optional(given.x_into, "x_into"),
          .x_scale = optional(given.x_scale_into, "x_scale_into"),
          .expert_num_tokens = optional(given.expert_num_tokens_into, "expert_num_tokens_into"),
          .row_tags = optional(given.row_tags_into, "row_tags_into"),
          .source_token = optional(given.source_token_into, "source_token_into"),
          .source_ranges = optional(given.source_ranges_into, "source_ranges_into")}};
}

// The input of a combine, and where its sums go.
struct CombineCall {
  LowLatencyCombineInput input;
  Tensor into;
};

CombineCall read_input(const moebius_low_latency_combine_input* input, const Stream& stream) {
  const moebius_low_latency_combine_input given = read_struct(input, "input");
  return {.input = {.x = read_tensor(given.x, "x", stream),
                    .topk_ids = read_tensor(given.topk_ids, "topk_ids", stream),
                    .topk_weights = read_tensor(given.topk_weights, "topk_weights", stream),
                    .previous = read_event(given.previous_cuda_event, stream),
                    .records_event = read_flag(given.records_event, "records_event"),
                    .wait_us = read_optional_tensor(given.wait_us, "wait_us", stream),
                    .coding = static_cast<LowLatencyCoding>(
                        read_choice(given.coding, MOEBIUS_CODING_LOGFMT10, "coding"))},
          .into = read_optional_tensor(given.x_into, "x_into", stream)};
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_low_latency_create(moebius_group group,
                                          const moebius_low_latency_options* options,
                                          moebius_low_latency* transport) {
  return giving(transport, "transport", [&] {
    const Using<GroupObject> used(group);
    const moebius_low_latency_options given = read_struct(options, "options");
    const LowLatencyOptions wanted = read_options(given);
    const ExpertPlacement placement =
        read_placement(given.placement, given.num_experts, used->get().size());
    const auto shared = find_transports(given.transports, *used);
    auto made = shared ? shared->transports->low_latency(placement, wanted)
                       : std::make_shared<LowLatency>(used->get(), placement, wanted);
    return make_handle(std::make_shared<LowLatencyObject>(used.object(), std::move(made)));
  });
}

moebius_status moebius_low_latency_size_hint(const moebius_low_latency_options* options,
                                             int32_t num_ranks,
                                             moebius_device device,
                                             int64_t* bytes) {
  return giving(bytes, "bytes", [&] {
    const moebius_low_latency_options given = read_struct(options, "options");
    const int64_t num_experts =
        read_placement(given.placement, given.num_experts, read_num_ranks(num_ranks)).num_experts();
    return LowLatency::size_hint(read_options(given), num_ranks, num_experts, read_device(device));
  });
}

moebius_status moebius_low_latency_dispatch(moebius_low_latency transport,
                                            const moebius_low_latency_dispatch_input* input,
                                            moebius_stream stream,
                                            moebius_result* result) {
  return giving(result, "result", [&] {
    const Using<LowLatencyObject> used(transport);
    const Stream on = read_stream(stream);
    return make_handle<ResultObject>(std::make_shared<LowLatencyResult>(
        used->transport->dispatch(read_input(input, on), on), used.object()));
  });
}

moebius_status moebius_low_latency_dispatch_start(moebius_low_latency transport,
                                                  const moebius_low_latency_dispatch_input* input,
                                                  moebius_stream stream,
                                                  moebius_pending* pending) {
  return giving(pending, "pending", [&] {
    const Using<LowLatencyObject> used(transport);
    const Stream on = read_stream(stream);
    return make_handle<PendingObject>(
        std::make_shared<PendingResult<LowLatencyResult, LowLatencyDispatchOutput>>(
            used->transport->dispatch_async(read_input(input, on), on), used.object()));
  });
}

moebius_status moebius_low_latency_combine(moebius_low_latency transport,
                                           const moebius_low_latency_combine_input* input,
                                           moebius_result dispatched,
                                           moebius_stream stream,
                                           moebius_result* result) {
  return guarded([&] {
    const Using<LowLatencyObject> used(transport);
    const auto from = find_result<LowLatencyResult>(dispatched, "dispatched");
    const Stream on = read_stream(stream);
    const CombineCall call = read_input(input, on);
    if (!call.into || call.input.records_event) {
      expect_out(result, "result");
    }
    LowLatencyCombineOutput made =
        used->transport->combine(call.input, *from->output.handle, on, call.into);
    if (result != nullptr) {
      *result = make_handle<ResultObject>(
          std::make_shared<LowLatencyCombineResult>(std::move(made), used.object()));
    }
  });
}

moebius_status moebius_low_latency_combine_start(moebius_low_latency transport,
                                                 const moebius_low_latency_combine_input* input,
                                                 moebius_result dispatched,
                                                 moebius_stream stream,
                                                 moebius_pending* pending) {
  return giving(pending, "pending", [&] {
    const Using<LowLatencyObject> used(transport);
    const auto from = find_result<LowLatencyResult>(dispatched, "dispatched");
    const Stream on = read_stream(stream);
    const CombineCall call = read_input(input, on);
    return make_handle<PendingObject>(
        std::make_shared<PendingResult<LowLatencyCombineResult, LowLatencyCombineOutput>>(
            used->transport->combine_async(call.input, *from->output.handle, on, call.into),
            used.object()));
  });
}

moebius_status moebius_low_latency_set_dead(moebius_low_latency transport,
                                            int32_t rank,
                                            int32_t is_dead) {
  return guarded([&] {
    const bool dead = read_flag(is_dead, "is_dead");
    Using<LowLatencyObject>(transport)->transport->set_dead(rank, dead);
  });
}

moebius_status moebius_low_latency_dead_ranks(moebius_low_latency transport, int32_t* is_dead) {
  return guarded([&] {
    expect_out(is_dead, "is_dead");
    const std::vector<bool> dead = Using<LowLatencyObject>(transport)->transport->dead_ranks();
    for (size_t rank = 0; rank < dead.size(); ++rank) {
      is_dead[rank] = dead[rank] ? 1 : 0;
    }
  });
}

moebius_status moebius_low_latency_check(moebius_low_latency transport) {
  return guarded([&] { Using<LowLatencyObject>(transport)->transport->check(); });
}

moebius_status moebius_low_latency_bytes(moebius_low_latency transport, int64_t* bytes) {
  return guarded(
      [&] { expect_out(bytes, "bytes") = Using<LowLatencyObject>(transport)->transport->bytes(); });
}

moebius_status moebius_low_latency_statistics(moebius_low_latency transport,
                                              moebius_transport_statistics* statistics) {
  return guarded([&] {
    write_statistics(statistics, Using<LowLatencyObject>(transport)->transport->statistics());
  });
}

moebius_status moebius_low_latency_destroy(moebius_low_latency transport) {
  return guarded([&] { destroy_handle<LowLatencyObject>(transport); });
}
