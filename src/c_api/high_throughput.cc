// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "c_api/results.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"
#include "c_api/transports.h"

namespace moebius::c_api {

namespace {

struct HighThroughputObject : Object {
  static constexpr std::string_view kKind = "high_throughput transport";
  using Handle = moebius_high_throughput;

  HighThroughputObject(std::shared_ptr<GroupObject> of, std::shared_ptr<HighThroughput> made)
      : Object(of->usage), group(std::move(of)), transport(std::move(made)) {}
  std::shared_ptr<GroupObject> group;
  std::shared_ptr<HighThroughput> transport;
};

Tensor at(const std::vector<Tensor>& tensors, int index) {
  expect_le(index, static_cast<int64_t>(tensors.size()) - 1, "index of the payload");
  return tensors[static_cast<size_t>(index)];
}

// The counts of a host list as an array.
Tensor array_of(const std::vector<int64_t>& values) {
  if (values.empty()) {
    return {};
  }
  const Tensor array = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI64);
  std::copy(values.begin(), values.end(), array.data<int64_t>());
  return array;
}

struct DispatchResult : ResultObject {
  static constexpr std::string_view kCall = "moebius_high_throughput_dispatch";

  DispatchResult(DispatchOutput made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), output(std::move(made)) {}

  Tensor array(std::string_view name, int index) const override {
    if (name == "payload") {
      return at(output.payloads, index);
    }
    if (name == "topk_ids") {
      return output.topk_ids;
    }
    if (name == "topk_weights") {
      return output.topk_weights;
    }
    if (name == "expert_num_tokens") {
      return output.expert_num_tokens;
    }
    if (name == "expert_counts") {
      return array_of(output.expert_counts);
    }
    if (name == "num_rows") {
      return output.num_rows;
    }
    if (output.handle == nullptr) {  // of a cached dispatch
      return {};
    }
    if (name == "source_rank") {
      return output.handle->source_rank();
    }
    if (name == "source_token") {
      return output.handle->source_token();
    }
    return name == "rank_prefix" ? output.handle->rank_prefix() : Tensor();
  }
  Event event() const override { return output.event; }

  const DispatchHandle& handle() const {
    expect(output.handle != nullptr, "this dispatch was a cached one, expected one with a route");
    return *output.handle;
  }

  DispatchOutput output;
};

struct CombineResult : ResultObject {
  CombineResult(CombineOutput made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), output(std::move(made)) {}

  Tensor array(std::string_view name, int /*index*/) const override {
    return name == "x" ? output.x : name == "topk_weights" ? output.topk_weights : Tensor();
  }
  Event event() const override { return output.event; }

  CombineOutput output;
};

struct LayoutResult : ResultObject {
  static constexpr std::string_view kCall = "moebius_high_throughput_layout";

  LayoutResult(DispatchLayout made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), layout(std::move(made)) {}

  Tensor array(std::string_view name, int /*index*/) const override {
    return name == "tokens_per_rank"     ? layout.tokens_per_rank
           : name == "tokens_per_node"   ? layout.tokens_per_node
           : name == "tokens_per_expert" ? layout.tokens_per_expert
           : name == "is_token_in_rank"  ? layout.is_token_in_rank
                                         : Tensor();
  }

  DispatchLayout layout;
};

struct OrderResult : ResultObject {
  OrderResult(ExpertOrder made, std::shared_ptr<Object> made_by)
      : ResultObject(std::move(made_by)), order(std::move(made)) {}

  Tensor array(std::string_view name, int index) const override {
    return name == "payload"          ? at(order.payloads, index)
           : name == "expert_offsets" ? order.expert_offsets
           : name == "copy_row"       ? order.copy_row
           : name == "slot"           ? order.slot
                                      : Tensor();
  }

  ExpertOrder order;
};

// The dispatch whose route a call takes.  Throws InvalidArgument for one of another transport,
// which may have other experts and ranks, and for a cached one, which has no route of its own.
std::shared_ptr<DispatchResult> find_dispatch(moebius_result handle,
                                              std::string_view what,
                                              const HighThroughputObject& by) {
  auto found = find_result<DispatchResult>(handle, what);
  expect(static_cast<const HighThroughputObject&>(*found->owner).transport == by.transport, [&] {
    return fmt::format("{} is a result of another transport, expected one of this transport", what);
  });
  found->handle();
  return found;
}

std::vector<Tensor> read_payloads(const moebius_tensor* const* payloads,
                                  int32_t count,
                                  std::string_view what,
                                  const Stream& stream) {
  expect_ge(count, 0, "num_payloads");
  expect(payloads != nullptr || count == 0, [&] { return fmt::format("{} are null", what); });
  std::vector<Tensor> result;
  for (int32_t i = 0; i < count; ++i) {
    result.push_back(read_tensor(payloads[i], what, stream));
  }
  return result;
}

// The layout that a call has found, one of the caller's, or none.
DispatchLayout read_layout(const moebius_dispatch_input& given, const Stream& stream) {
  if (given.layout != nullptr) {
    expect(given.is_token_in_rank == nullptr && given.tokens_per_expert == nullptr,
           "layout and is_token_in_rank or tokens_per_expert are given, expected one of the two");
    return find_result<LayoutResult>(given.layout, "layout")->layout;
  }
  if (given.is_token_in_rank == nullptr && given.tokens_per_expert == nullptr) {
    return {};
  }
  return {.tokens_per_rank = {},
          .tokens_per_node = {},
          .tokens_per_expert = read_tensor(given.tokens_per_expert, "tokens_per_expert", stream),
          .is_token_in_rank = read_tensor(given.is_token_in_rank, "is_token_in_rank", stream)};
}

DispatchInput read_input(const moebius_dispatch_input& given, const Stream& stream) {
  DispatchInput input;
  input.payloads = read_payloads(given.payloads, given.num_payloads, "payloads", stream);
  input.topk_ids = read_optional_tensor(given.topk_ids, "topk_ids", stream);
  input.topk_weights = read_optional_tensor(given.topk_weights, "topk_weights", stream);
  input.layout = read_layout(given, stream);
  input.expert_alignment = given.expert_alignment == 0 ? 1 : given.expert_alignment;
  input.capacity = given.capacity;
  input.combine_row_bytes = given.combine_row_bytes;
  input.previous = read_event(given.previous_cuda_event, stream);
  input.lists_counts = read_flag(given.lists_counts, "lists_counts");
  if (given.payloads_into != nullptr) {
    input.into.payloads =
        read_payloads(given.payloads_into, given.num_payloads, "payloads_into", stream);
  }
  input.into.topk_ids = read_optional_tensor(given.topk_ids_into, "topk_ids_into", stream);
  input.into.topk_weights =
      read_optional_tensor(given.topk_weights_into, "topk_weights_into", stream);
  return input;
}

// Outputs that a combine writes, beside its input.
struct CombineCall {
  CombineInput input;
  Tensor into;
};

CombineCall read_input(const moebius_combine_input& given, const Stream& stream) {
  CombineCall call;
  call.input.x = read_tensor(given.x, "x", stream);
  call.input.topk_weights = read_optional_tensor(given.topk_weights, "topk_weights", stream);
  call.input.bias[0] = read_optional_tensor(given.bias[0], "bias", stream);
  call.input.bias[1] = read_optional_tensor(given.bias[1], "bias", stream);
  call.input.previous = read_event(given.previous_cuda_event, stream);
  call.input.topk_weights_into =
      read_optional_tensor(given.topk_weights_into, "topk_weights_into", stream);
  call.into = read_optional_tensor(given.x_into, "x_into", stream);
  if (call.into && call.into.num_dims() == 2 && call.input.x.num_dims() == 2) {
    // C++ has room for parts of rows there.
    expect_eq(call.into.dim(1), call.input.x.dim(1), "columns of x_into");
  }
  return call;
}

std::optional<DispatchConfig> config_of(int32_t num_sms) {
  return num_sms == 0 ? std::nullopt : std::optional(DispatchConfig{.num_sms = num_sms});
}

// A result that the stream waits for, unless the caller does so itself.
moebius_result give(std::shared_ptr<ResultObject> result, bool is_async, const Stream& stream) {
  if (!is_async) {
    stream.wait(result->event());
  }
  return make_handle(std::move(result));
}

// Says what a dispatch gives back, and how.
struct DispatchGiven {
  DispatchGiven(const moebius_dispatch_input& given, const Stream& stream)
      : is_async(read_flag(given.is_async, "is_async")) {
    if (given.arrays != nullptr) {
      arrays.emplace(given.arrays, stream);
      arrays->expect_payloads(given.num_payloads);
    }
    if (given.expert_counts_into != nullptr) {
      expect(read_flag(given.lists_counts, "lists_counts") && given.capacity == 0,
             "expert_counts_into is given without lists_counts or with a capacity, expected that "
             "there are counts on the host");
      counts = given.expert_counts_into;
    }
  }

  // Without a place the caller wants nothing but the arrays.
  void give(DispatchOutput made,
            const Using<HighThroughputObject>& used,
            const Stream& stream,
            moebius_result* place) const {
    if (counts != nullptr) {
      std::copy(made.expert_counts.begin(), made.expert_counts.end(), counts);
    }
    auto result = std::make_shared<DispatchResult>(std::move(made), used.object());
    if (arrays) {
      arrays->give(*result);
    }
    if (place == nullptr) {
      stream.wait(result->event());
    } else {
      *place = c_api::give(std::move(result), is_async, stream);
    }
  }

  bool is_async;
  std::optional<WantedArrays> arrays;
  int64_t* counts = nullptr;  // [L] of the caller's
};

DispatchLayout read_into(const moebius_layout_input& given, const Stream& stream) {
  const auto optional = [&](const moebius_tensor* tensor, std::string_view what) {
    return read_optional_tensor(tensor, what, stream);
  };
  return {.tokens_per_rank = optional(given.tokens_per_rank_into, "tokens_per_rank_into"),
          .tokens_per_node = optional(given.tokens_per_node_into, "tokens_per_node_into"),
          .tokens_per_expert = optional(given.tokens_per_expert_into, "tokens_per_expert_into"),
          .is_token_in_rank = optional(given.is_token_in_rank_into, "is_token_in_rank_into")};
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_high_throughput_create(moebius_group group,
                                              const moebius_high_throughput_options* options,
                                              moebius_high_throughput* transport) {
  return giving(transport, "transport", [&] {
    const Using<GroupObject> used(group);
    const moebius_high_throughput_options given = read_struct(options, "options");
    const ExpertPlacement placement =
        read_placement(given.placement, given.num_experts, used->get().size());
    const auto shared = find_transports(given.transports, *used);
    const auto dispatch = config_of(given.dispatch_sms);
    const auto combine = config_of(given.combine_sms);
    auto made = shared
                    ? shared->transports->high_throughput(placement, dispatch, combine)
                    : std::make_shared<HighThroughput>(used->get(), placement, dispatch, combine);
    return make_handle(std::make_shared<HighThroughputObject>(used.object(), std::move(made)));
  });
}

moebius_status moebius_high_throughput_layout(moebius_high_throughput transport,
                                              const moebius_layout_input* input,
                                              moebius_stream stream,
                                              moebius_result* layout) {
  return guarded([&] {
    const Using<HighThroughputObject> used(transport);
    const moebius_layout_input given = read_struct(input, "input");
    const Stream on = read_stream(stream);
    const DispatchLayout into = read_into(given, on);
    if (!into.tokens_per_rank || !into.tokens_per_expert || !into.is_token_in_rank) {
      expect_out(layout, "layout");
    }
    DispatchLayout made =
        used->transport->layout(read_tensor(given.topk_ids, "topk_ids", on), on, into);
    if (layout != nullptr) {
      *layout =
          make_handle<ResultObject>(std::make_shared<LayoutResult>(std::move(made), used.object()));
    }
  });
}

moebius_status moebius_high_throughput_dispatch(moebius_high_throughput transport,
                                                const moebius_dispatch_input* input,
                                                moebius_stream stream,
                                                moebius_result* result) {
  return guarded([&] {
    expect_out(result, "result");
    const Using<HighThroughputObject> used(transport);
    const moebius_dispatch_input given = read_struct(input, "input");
    const Stream on = read_stream(stream);
    const DispatchGiven back(given, on);
    back.give(used->transport->dispatch(read_input(given, on), on), used, on, result);
  });
}

moebius_status moebius_high_throughput_dispatch_start(moebius_high_throughput transport,
                                                      const moebius_dispatch_input* input,
                                                      moebius_stream stream,
                                                      moebius_pending* pending) {
  return guarded([&] {
    moebius_pending& place = expect_out(pending, "pending");
    const Using<HighThroughputObject> used(transport);
    const moebius_dispatch_input given = read_struct(input, "input");
    expect(given.arrays == nullptr && given.expert_counts_into == nullptr,
           "arrays or expert_counts_into are given to the first half of a dispatch, expected NULL");
    const Stream on = read_stream(stream);
    place =
        make_handle<PendingObject>(std::make_shared<PendingResult<DispatchResult, DispatchOutput>>(
            used->transport->dispatch_async(read_input(given, on), on), used.object()));
  });
}

moebius_status moebius_high_throughput_dispatch_cached(moebius_high_throughput transport,
                                                       const moebius_dispatch_input* input,
                                                       moebius_result route,
                                                       moebius_stream stream,
                                                       moebius_result* result) {
  return guarded([&] {
    const Using<HighThroughputObject> used(transport);
    const moebius_dispatch_input given = read_struct(input, "input");
    const auto along = find_dispatch(route, "route", *used);
    const Stream on = read_stream(stream);
    const DispatchGiven back(given, on);
    if (!back.arrays || back.is_async) {
      expect_out(result, "result");
    }
    CachedDispatchInput cached;
    cached.payloads = read_payloads(given.payloads, given.num_payloads, "payloads", on);
    cached.previous = read_event(given.previous_cuda_event, on);
    back.give(used->transport->dispatch_cached(cached, along->handle(), on), used, on, result);
  });
}

moebius_status moebius_high_throughput_expert_order(moebius_high_throughput transport,
                                                    moebius_result dispatched,
                                                    int64_t expert_alignment,
                                                    moebius_stream stream,
                                                    moebius_result* result) {
  return giving(result, "result", [&] {
    const Using<HighThroughputObject> used(transport);
    const auto from = find_dispatch(dispatched, "dispatched", *used);
    return make_handle<ResultObject>(std::make_shared<OrderResult>(
        used->transport->expert_order(from->output, expert_alignment, read_stream(stream)),
        used.object()));
  });
}

moebius_status moebius_high_throughput_combine(moebius_high_throughput transport,
                                               const moebius_combine_input* input,
                                               moebius_result dispatched,
                                               moebius_stream stream,
                                               moebius_result* result) {
  return guarded([&] {
    const Using<HighThroughputObject> used(transport);
    const moebius_combine_input given = read_struct(input, "input");
    const auto from = find_dispatch(dispatched, "dispatched", *used);
    const Stream on = read_stream(stream);
    const CombineCall call = read_input(given, on);
    const bool is_async = read_flag(given.is_async, "is_async");
    const bool is_all_lent =
        call.into && (!call.input.topk_weights || call.input.topk_weights_into);
    if (!is_all_lent || is_async) {
      expect_out(result, "result");
    }
    CombineOutput made = used->transport->combine(call.input, from->handle(), on, call.into);
    if (result == nullptr) {
      on.wait(made.event);
      return;
    }
    *result = give(std::make_shared<CombineResult>(std::move(made), used.object()), is_async, on);
  });
}

moebius_status moebius_high_throughput_combine_start(moebius_high_throughput transport,
                                                     const moebius_combine_input* input,
                                                     moebius_result dispatched,
                                                     moebius_stream stream,
                                                     moebius_pending* pending) {
  return guarded([&] {
    moebius_pending& place = expect_out(pending, "pending");
    const Using<HighThroughputObject> used(transport);
    const moebius_combine_input given = read_struct(input, "input");
    const auto from = find_dispatch(dispatched, "dispatched", *used);
    const Stream on = read_stream(stream);
    const CombineCall call = read_input(given, on);
    place =
        make_handle<PendingObject>(std::make_shared<PendingResult<CombineResult, CombineOutput>>(
            used->transport->combine_async(call.input, from->handle(), on, call.into),
            used.object()));
  });
}

moebius_status moebius_high_throughput_set_sms(moebius_high_throughput transport,
                                               int32_t dispatch_sms,
                                               int32_t combine_sms) {
  return guarded([&] {
    Using<HighThroughputObject>(transport)->transport->set_configs({.num_sms = dispatch_sms},
                                                                   {.num_sms = combine_sms});
  });
}

moebius_status moebius_high_throughput_bytes(moebius_high_throughput transport, int64_t* bytes) {
  return guarded([&] {
    expect_out(bytes, "bytes") = Using<HighThroughputObject>(transport)->transport->bytes();
  });
}

moebius_status moebius_high_throughput_statistics(moebius_high_throughput transport,
                                                  moebius_transport_statistics* statistics) {
  return guarded([&] {
    write_statistics(statistics, Using<HighThroughputObject>(transport)->transport->statistics());
  });
}

moebius_status moebius_high_throughput_trim(moebius_high_throughput transport) {
  return guarded([&] { Using<HighThroughputObject>(transport)->transport->trim(); });
}

moebius_status moebius_high_throughput_destroy(moebius_high_throughput transport) {
  return guarded([&] { destroy_handle<HighThroughputObject>(transport); });
}
