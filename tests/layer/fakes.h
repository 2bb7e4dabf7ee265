// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Fake parts that record how the modular kernel calls them.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moebius/modular_kernel.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {

// The order of calls, shared by several fakes.
using Journal = std::vector<std::string>;

// Experts that give y = (id + 1) * x for every selection, where id is the local index.
// They poison their workspaces first, which shows if one is too small or still in use.
class FakeExperts : public Experts {
 public:
  struct Call {
    int64_t rows;
    const std::byte* output;
    const std::byte* intermediate;
    Shape intermediate_shape;
    int64_t scale_numel;  // -1: no scale
    std::vector<int32_t> counts;
    bool has_map;
    int max_sms;
    int later_parts_sms;
  };
  struct Options {
    bool supports_chunking = true;
    bool expects_unquantized_inputs = false;
    WeightAndReduceKind kind = WeightAndReduceKind::kDelegate;
    bool flat_output = false;  // [M * K, H] instead of [M, K, H]
    bool gives_parts = false;
    QuantConfig quant = {};
    Journal* journal = nullptr;
  };

  explicit FakeExperts(ExpertsDesc desc) : FakeExperts(desc, Options()) {}
  FakeExperts(ExpertsDesc desc, Options options)
      : Experts({.name = "fake",
                 .weight_and_reduce = options.kind,
                 .supports_chunking =
                     options.supports_chunking && desc.format == ActivationFormat::kStandard,
                 .expects_unquantized_inputs = options.expects_unquantized_inputs,
                 .gives_parts = options.gives_parts}),
        desc_(desc),
        options_(std::move(options)) {}

  const ExpertsDesc& desc() const override { return desc_; }
  const QuantConfig& quant() const override { return options_.quant; }

  ExpertsWorkspace workspace(int64_t rows) const override {
    const int64_t topk = desc_.topk;
    ExpertsWorkspace need;
    need.dtype = desc_.in_dtype;
    need.scratch_bytes = 64;
    if (desc_.format == ActivationFormat::kBatched) {
      need.intermediate = {desc_.num_local_experts, rows, desc_.intermediate};
      need.output = {desc_.num_local_experts, rows, desc_.hidden};
      return need;
    }
    need.intermediate = {rows, topk, desc_.intermediate};
    need.output = is_final()             ? Shape{rows, desc_.hidden}
                  : options_.flat_output ? Shape{rows * topk, desc_.hidden}
                                         : Shape{rows, topk, desc_.hidden};
    return need;
  }

  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream&) const override {
    const bool batched = desc_.format == ActivationFormat::kBatched;
    const int64_t rows = input.x.dim(batched ? 1 : 0);
    calls.push_back(
        {rows, output.bytes(), intermediate.bytes(), intermediate.shape(),
         input.x_scale ? input.x_scale.numel() : -1,
         input.expert_num_tokens ? ints(input.expert_num_tokens) : std::vector<int32_t>{},
         input.expert_map.defined(), input.max_sms, input.parts.max_sms});
    if (options_.journal != nullptr) {
      options_.journal->push_back("experts");
    }
    const ExpertsWorkspace need = workspace(rows);
    expect_shape(output, need.output, "output");
    expect_shape(intermediate, need.intermediate, "intermediate");
    expect_ge(scratch.nbytes(), need.scratch_bytes, "scratch");
    for (const Tensor& space : {intermediate, scratch, output}) {
      poison(space);
    }
    batched      ? apply_batched(input, output)
    : is_final() ? apply_final(input, output)
                 : apply_standard(input, output);
  }

  mutable std::vector<Call> calls;

 private:
  void apply_standard(const ExpertsInput& input, const Tensor& output) const {
    for (int64_t i = 0; i < input.topk_ids.numel(); ++i) {
      int32_t id = input.topk_ids.data<int32_t>()[i];
      if (id >= 0 && input.expert_map) {
        id = input.expert_map.data<int32_t>()[id];
      }
      write_row(input, i / desc_.topk, id, output, i);
    }
  }
  bool is_final() const { return options_.kind == WeightAndReduceKind::kNoOp; }
  void apply_final(const ExpertsInput& input, const Tensor& output) const {
    const int64_t width = desc_.hidden / input.parts.count;
    for (int64_t to = 0; to < output.numel(); ++to) {
      const int64_t part = to / width / output.dim(0);
      const int64_t i = to / width % output.dim(0) * desc_.hidden + part * width + to % width;
      float sum = 0;
      for (int64_t s = i / desc_.hidden * desc_.topk; s < (i / desc_.hidden + 1) * desc_.topk;
           ++s) {
        sum += get_float(input.x, i) * static_cast<float>(input.topk_ids.data<int32_t>()[s] + 1) *
               input.topk_weights.data<float>()[s];
      }
      set_float(output, to, sum);
      if (input.parts.count > 1 && (to + 1) % (width * output.dim(0)) == 0) {
        input.parts.made(static_cast<int>(part));
      }
    }
  }
  void apply_batched(const ExpertsInput& input, const Tensor& output) const {
    const int64_t max_rows = input.x.dim(1);
    for (int64_t e = 0; e < desc_.num_local_experts; ++e) {
      for (int64_t r = 0; r < input.expert_num_tokens.data<int32_t>()[e]; ++r) {
        const int64_t row = e * max_rows + r;
        write_row(input, row, static_cast<int32_t>(e), output, row);
      }
    }
  }
  void write_row(
      const ExpertsInput& input, int64_t from, int32_t id, const Tensor& output, int64_t to) const {
    for (int64_t h = 0; h < desc_.hidden; ++h) {
      const float x = get_float(input.x, from * desc_.hidden + h);
      set_float(output, to * desc_.hidden + h, id < 0 ? 0.0f : x * static_cast<float>(id + 1));
    }
  }

  ExpertsDesc desc_;
  Options options_;
};

inline ExpertsDesc fake_desc(int64_t num_experts,
                             int64_t topk,
                             int64_t hidden,
                             ActivationFormat format = ActivationFormat::kStandard,
                             DType dtype = DType::kF32) {
  ExpertsDesc desc;
  desc.num_experts = num_experts;
  desc.num_local_experts = num_experts;
  desc.topk = topk;
  desc.hidden = hidden;
  desc.intermediate = 4;
  desc.in_dtype = dtype;
  desc.format = format;
  return desc;
}

// Experts that leave the work to others.  Tests change what they need.
class ForwardingExperts : public Experts {
 public:
  explicit ForwardingExperts(std::unique_ptr<Experts> inner)
      : Experts(inner->traits()), inner_(std::move(inner)) {}
  const ExpertsDesc& desc() const override { return inner_->desc(); }
  const QuantConfig& quant() const override { return inner_->quant(); }
  ExpertsWorkspace workspace(int64_t rows) const override { return inner_->workspace(rows); }
  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const override {
    note(input);
    inner_->apply(input, output, intermediate, scratch, stream);
  }

 private:
  virtual void note(const ExpertsInput& input) const = 0;

  std::unique_ptr<Experts> inner_;
};

// Experts that fail once, in call number `at`, counted from 0.
class FailingExperts final : public FakeExperts {
 public:
  FailingExperts(ExpertsDesc desc, int at) : FakeExperts(desc), at_(at) {}

  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const override {
    if (at_-- == 0) {
      throw Error("expert 7 is on fire");
    }
    FakeExperts::apply(input, output, intermediate, scratch, stream);
  }

 private:
  mutable int at_;
};

inline std::shared_ptr<const Router> gateless_router(int64_t num_experts, int64_t topk) {
  RouterConfig config;
  config.num_experts = num_experts;
  config.topk = topk;
  config.renormalize = true;
  return std::make_shared<const Router>(config, RouterWeights{});
}

// Random tokens for experts with this description, all of which are local.
inline KernelInput random_input(const ExpertsDesc& desc, int64_t num_tokens) {
  return {.hidden = random_tensor({num_tokens, desc.hidden}, desc.in_dtype, 11),
          .topk_ids = random_ids(num_tokens, desc.topk, desc.num_experts, 12),
          .topk_weights = random_tensor({num_tokens, desc.topk}, DType::kF32, 13),
          .num_experts = desc.num_experts};
}

// no_ep with other traits and answers, and with asynchronous halves that record their calls.
class FakePrepareFinalize : public PrepareFinalize {
 public:
  struct Options {
    ActivationFormat format = ActivationFormat::kStandard;
    std::optional<int64_t> max_tokens = std::nullopt;
    bool is_async = false;
    bool is_monolithic = false;
    Support reduce = Support::yes();
    Support quant = Support::yes();
    bool with_counts = false;     // hands over expert_num_tokens, as dispatching backends do
    bool drops_all_rows = false;  // as on a rank whose experts no token chose
    int64_t most_rows = 0;        // reported by prepare; above 0: finalize takes columns
    std::function<void(PrepareResult&)> spoil = nullptr;  // changes the result of prepare
    Journal* journal = nullptr;
  };
  explicit FakePrepareFinalize(Options options)
      : PrepareFinalize({.name = "fake_pf",
                         .activation_format = options.format,
                         .max_tokens_per_rank = options.max_tokens,
                         .takes_columns = options.most_rows > 0,
                         .is_async = options.is_async,
                         .is_monolithic = options.is_monolithic}),
        options_(std::move(options)) {}

  Support accepts(WeightAndReduceKind) const override { return options_.reduce; }
  Support accepts(const QuantConfig&, bool) const override { return options_.quant; }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    note("prepare");
    PrepareResult result;
    if (options_.is_monolithic) {
      result.x = input.hidden;
      result.router_logits = input.router_logits;
      return result;
    }
    result = no_ep_->prepare(input, context);
    if (options_.with_counts) {
      result.expert_num_tokens = Tensor::zeros({input.num_experts}, DType::kI32);
      for (const int32_t id : ints(input.topk_ids)) {
        ++result.expert_num_tokens.data<int32_t>()[id];
      }
    }
    result.most_rows = options_.most_rows;
    if (options_.drops_all_rows) {
      result.x = result.x.slice(0, 0);
      result.topk_ids = input.topk_ids.slice(0, 0);
      result.topk_weights = input.topk_weights.slice(0, 0);
    }
    if (options_.spoil) {
      options_.spoil(result);
    }
    return result;
  }
  void finalize(const FinalizeInput& input, const CallContext& context) override {
    note("finalize");
    if (options_.drops_all_rows) {
      EXPECT_EQ(input.expert_output.numel(), 0);
      std::memset(input.output.raw(), 0, static_cast<size_t>(input.output.nbytes()));
      return;
    }
    if (options_.most_rows > 0 && input.expert_output.dim(1) < input.output.dim(1)) {
      note(("columns from " + std::to_string(input.first_column)).c_str());
      for (int64_t i = 0; i < input.expert_output.numel(); ++i) {
        const int64_t width = input.expert_output.dim(1);
        set_float(input.output, i / width * input.output.dim(1) + input.first_column + i % width,
                  get_float(input.expert_output, i));
      }
      return;
    }
    no_ep_->finalize(input, context);
  }
  Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                       const CallContext& context) override {
    note("prepare_async");
    return {[this] { note("prepare hook"); },
            [this, input, context] { return prepare(input, context); }};
  }
  Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context) override {
    note("finalize_async");
    return {[this] { note("finalize hook"); },
            [this, input, context] { finalize(input, context); }};
  }

 private:
  void note(const char* what) {
    if (options_.journal != nullptr) {
      options_.journal->push_back(what);
    }
  }
  Options options_;
  std::unique_ptr<PrepareFinalize> no_ep_ = make_no_ep();
};

}  // namespace moebius::testing
