// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what the modular kernel refuses, and that its messages name both sides.
#include <gtest/gtest.h>

#include "tests/layer/fakes.h"

namespace moebius::testing {
namespace {

constexpr auto kStandard = ActivationFormat::kStandard;
constexpr auto kBatched = ActivationFormat::kBatched;

// The message of composing a fake prepare/finalize with fake experts.
std::string compose(FakePrepareFinalize::Options pf,
                    FakeExperts::Options experts = {},
                    ActivationFormat experts_format = kStandard) {
  return message_of<Error>([&] {
    ModularKernel(
        std::make_unique<FakePrepareFinalize>(std::move(pf)),
        std::make_unique<FakeExperts>(fake_desc(4, 2, 8, experts_format), std::move(experts)));
  });
}

TEST(ModularKernelErrors, FormatsMustMatch) {
  expect_mentions(compose({.format = kBatched, .max_tokens = 4}),
                  {"fake_pf", "batched", "fake", "standard"});
  expect_mentions(compose({}, {}, kBatched), {"fake_pf", "standard", "batched"});
  EXPECT_EQ(compose({.format = kBatched, .max_tokens = 4}, {}, kBatched), "no error");
}

TEST(ModularKernelErrors, OnlyBatchedFormatsHaveARowLimit) {
  expect_mentions(compose({.format = kBatched}, {}, kBatched),
                  {"fake_pf", "batched", "no row limit"});
  expect_mentions(compose({.max_tokens = 4}), {"fake_pf", "standard", "a row limit"});
}

TEST(ModularKernelErrors, MonolithicNeedsARouter) {
  expect_mentions(compose({.is_monolithic = true}), {"fake_pf", "monolithic", "router"});
}

TEST(ModularKernelErrors, PartsMustBeAccepted) {
  expect_mentions(compose({.reduce = Support::no("weights go with combine")},
                          {.kind = WeightAndReduceKind::kNoOp}),
                  {"fake_pf", "no-op", "fake", "weights go with combine"});
  expect_mentions(compose({.quant = Support::no("rows travel as bf16")}),
                  {"fake_pf", "fake", "rows travel as bf16"});
  QuantTensors tensors = weight_scales(4);
  tensors.a1_gscale = filled({1}, DType::kF32, {1});
  FakeExperts::Options blocks;  // they have 16 elements, and hidden is 8
  blocks.quant = QuantConfig::nvfp4(tensors);
  expect_mentions(compose({}, blocks), {"nvfp4", "8", "16"});
  blocks.expects_unquantized_inputs = true;
  EXPECT_EQ(compose({}, blocks), "no error");
}

TEST(ModularKernelErrors, RouterAndSharedExpertsMustFit) {
  const auto expect_misfit = [](Parts parts, std::shared_ptr<const SharedExperts> shared,
                                std::shared_ptr<const Router> router) {
    expect_error(parts, [&] {
      ModularKernel(make_no_ep(), std::make_unique<FakeExperts>(fake_desc(4, 2, 8)), shared,
                    router);
    });
  };
  expect_misfit({"router", "5", "4"}, nullptr, gateless_router(5, 2));
  expect_misfit({"topk of the router", "3", "2"}, nullptr, gateless_router(4, 3));
  const auto shared = [](int64_t hidden, DType dtype) {
    return std::make_shared<SharedExperts>(
        std::make_unique<FakeExperts>(fake_desc(1, 1, hidden, kBatched, dtype)), Tensor());
  };
  expect_misfit({"hidden of the shared experts", "9", "8"}, shared(9, DType::kF32), nullptr);
  expect_misfit({"shared experts", "bf16", "f32"}, shared(8, DType::kBF16), nullptr);
}

TEST(ModularKernelErrors, MissingPartsAndNegativeChunks) {
  expect_error({"prepare_finalize is missing"},
               [] { ModularKernel(nullptr, std::make_unique<FakeExperts>(fake_desc(4, 2, 8))); });
  expect_error({"experts are missing"}, [] { ModularKernel(make_no_ep(), nullptr); });
  expect_error({"chunk_tokens is -3"}, [] {
    ModularKernel(make_no_ep(), std::make_unique<FakeExperts>(fake_desc(4, 2, 8)), nullptr, nullptr,
                  KernelOptions{-3});
  });
}

// A valid call of 4 tokens, top-2 of 5 experts, hidden 8, that a test then spoils.
struct Call {
  KernelInput input;
  Tensor output = Tensor::empty({4, 8}, DType::kF32);
  Tensor shared_output;
  WorkspacePool pool;
  CallContext context;
};

// The message of the spoiled call.  No part may have been called before the error, except a prepare
// that spoils its result.
template <typename Spoil>
std::string refusal(Spoil&& spoil,
                    FakePrepareFinalize::Options pf = {},
                    FakeExperts::Options experts = {},
                    bool has_shared = false,
                    int64_t topk = 2) {
  Journal journal;
  pf.journal = &journal;
  experts.journal = &journal;
  std::shared_ptr<const SharedExperts> shared;
  if (has_shared) {
    shared = std::make_shared<SharedExperts>(
        std::make_unique<FakeExperts>(fake_desc(1, 1, 8, kBatched)), Tensor());
  }
  ModularKernel kernel(std::make_unique<FakePrepareFinalize>(pf),
                       std::make_unique<FakeExperts>(fake_desc(5, topk, 8, pf.format), experts),
                       shared, pf.is_monolithic ? gateless_router(5, topk) : nullptr);
  Call call;
  call.context.workspaces = &call.pool;
  call.input = random_input(fake_desc(5, topk, 8), 4);
  if (has_shared) {
    call.shared_output = Tensor::empty({4, 8}, DType::kF32);
  }
  spoil(call);
  const std::string message = message_of<Error>(
      [&] { kernel.forward(call.input, call.output, call.shared_output, call.context); });
  if (message != "no error") {
    EXPECT_EQ(journal, pf.spoil ? Journal{"prepare"} : Journal{}) << message;
  }
  return message;
}

template <typename Spoil>
void expect_refusal(Parts parts,
                    Spoil&& spoil,
                    FakePrepareFinalize::Options pf = {},
                    FakeExperts::Options experts = {},
                    bool has_shared = false,
                    int64_t topk = 2) {
  expect_mentions(refusal(spoil, std::move(pf), std::move(experts), has_shared, topk), parts);
}

TEST(ModularKernelErrors, TheCallItselfIsValid) {
  EXPECT_EQ(refusal([](Call&) {}), "no error");
  EXPECT_EQ(refusal([](Call&) {}, {}, {}, true), "no error");
  EXPECT_EQ(refusal([](Call& c) { c.input.num_experts = -1; }), "no error");
  EXPECT_EQ(refusal([](Call& c) { c.output = c.input.hidden; }), "no error");
  EXPECT_EQ(refusal([](Call& c) { c.input.own_load = Tensor::zeros({5}, DType::kI32); }),
            "no error");
}

TEST(ModularKernelErrors, ShapesAndDtypes) {
  expect_refusal({"hidden is missing"}, [](Call& c) { c.input.hidden = {}; });
  expect_refusal({"hidden.dim(1) is 9", "8"}, [](Call& c) {
    c.input.hidden = random_tensor({4, 9}, DType::kF32, 1);
  });
  expect_refusal({"hidden", "bf16", "f32"}, [](Call& c) {
    c.input.hidden = random_tensor({4, 8}, DType::kBF16, 1);
  });
  expect_refusal({"topk_ids", "[3, 2]", "[4, 2]"},
                 [](Call& c) { c.input.topk_ids = random_ids(3, 2, 5, 1); });
  expect_refusal({"topk_ids", "[4, 3]", "[4, 2]"},
                 [](Call& c) { c.input.topk_ids = random_ids(4, 3, 5, 1); });
  expect_refusal({"topk_weights is missing"}, [](Call& c) { c.input.topk_weights = {}; });
  expect_refusal({"topk_weights", "bf16", "f32"}, [](Call& c) {
    c.input.topk_weights = random_tensor({4, 2}, DType::kBF16, 1);
  });
  expect_refusal({"output", "[5, 8]", "[4, 8]"}, [](Call& c) {
    c.output = Tensor::empty({5, 8}, DType::kF32);
  });
  expect_refusal({"output", "bf16", "f32"}, [](Call& c) {
    c.output = Tensor::empty({4, 8}, DType::kBF16);
  });
  expect_refusal({"lora_ids", "[3]", "[4]"}, [](Call& c) {
    c.input.lora_ids = ids_of({3}, {0, 0, 0});
  });
  expect_refusal({"workspaces"}, [](Call& c) { c.context.workspaces = nullptr; });
}

TEST(ModularKernelErrors, OwnLoadCountsIdsOfEveryExpert) {
  expect_refusal({"own_load", "i64", "i32"},
                 [](Call& c) { c.input.own_load = Tensor::zeros({5}, DType::kI64); });
  expect_refusal({"own_load", "[4]", "[5]"},
                 [](Call& c) { c.input.own_load = Tensor::zeros({4}, DType::kI32); });
  expect_refusal({"topk_ids is missing"},
                 [](Call& c) {
                   c.input.router_logits = random_tensor({4, 5}, DType::kF32, 1);
                   c.input.own_load = Tensor::zeros({5}, DType::kI32);
                   c.input.topk_ids = {};
                 },
                 {.is_monolithic = true});
}

// Spoils the result of prepare.  The experts must not be called.
void expect_rows_refused(Parts parts, std::function<void(PrepareResult&)> spoil) {
  expect_refusal(parts, [](Call&) {}, {.spoil = std::move(spoil)});
}

TEST(ModularKernelErrors, RowsFromPrepare) {
  expect_rows_refused({"x from prepare"}, [](PrepareResult& r) { r.x = {}; });
  expect_rows_refused({"x from prepare", "[3, 8]", "[4, 8]"},
                      [](PrepareResult& r) { r.x = r.x.slice(0, 3); });
  expect_rows_refused({"x from prepare", "[4, 9]", "[4, 8]"}, [](PrepareResult& r) {
    r.x = Tensor::zeros({4, 9}, DType::kF32);
  });
  expect_rows_refused({"topk_ids from prepare", "f32", "i32 or i64"}, [](PrepareResult& r) {
    r.topk_ids = Tensor::zeros({4, 2}, DType::kF32);
  });
  expect_rows_refused({"dimensions of topk_ids from prepare", "1", "2"},
                      [](PrepareResult& r) { r.topk_ids = Tensor::zeros({8}, DType::kI32); });
  expect_rows_refused({"topk_weights from prepare", "[4, 3]", "[4, 2]"}, [](PrepareResult& r) {
    r.topk_weights = Tensor::zeros({4, 3}, DType::kF32);
  });
  expect_rows_refused({"expert_num_tokens from prepare", "i64", "i32"}, [](PrepareResult& r) {
    r.expert_num_tokens = Tensor::zeros({5}, DType::kI64);
  });
  expect_rows_refused({"expert_num_tokens from prepare", "[6]", "[5]"}, [](PrepareResult& r) {
    r.expert_num_tokens = Tensor::zeros({6}, DType::kI32);
  });
}

TEST(ModularKernelErrors, BatchedRowsFromPrepare) {
  const auto refusal_of = [](const Shape& x, bool has_counts) {
    return refusal([](Call&) {}, {.format = kBatched, .max_tokens = 4, .spoil = [&](auto& result) {
                                    result.x = Tensor::zeros(x, DType::kF32);
                                    if (has_counts) {
                                      result.expert_num_tokens = Tensor::zeros({5}, DType::kI32);
                                    }
                                  }});
  };
  expect_mentions(refusal_of({4, 8}, true), {"dimensions of x from prepare", "2", "3"});
  expect_mentions(refusal_of({6, 4, 8}, true), {"x from prepare", "[6, 4, 8]", "[5, 4, 8]"});
  expect_mentions(refusal_of({5, 4, 9}, true), {"x from prepare", "[5, 4, 9]", "[5, 4, 8]"});
  expect_mentions(refusal_of({5, 4, 8}, false), {"expert_num_tokens from prepare"});
}

TEST(ModularKernelErrors, ExpertIds) {
  expect_refusal({"topk_ids of token 2, slot 1 is 5", "-1 to 4"},
                 [](Call& c) { c.input.topk_ids.data<int32_t>()[5] = 5; });
  expect_refusal({"topk_ids of token 0, slot 0 is -2"},
                 [](Call& c) { c.input.topk_ids.data<int32_t>()[0] = -2; });
  expect_refusal({"num_experts is 6", "5"}, [](Call& c) { c.input.num_experts = 6; });
  expect_refusal({"expert_map", "[4]", "[5]"}, [](Call& c) {
    c.input.expert_map = ids_of({4}, {0, 1, 2, 3});
  });
  expect_refusal({"expert_map[3] is 5", "4"}, [](Call& c) {
    c.input.expert_map = ids_of({5}, {0, 1, 2, 5, -1});
  });
}

TEST(ModularKernelErrors, WeightOnInputNeedsTopOne) {
  const auto on_input = [](Call& c) { c.input.apply_router_weight_on_input = true; };
  expect_refusal({"apply_router_weight_on_input", "2", "1"}, on_input);
  EXPECT_EQ(refusal(on_input, {}, {}, false, /*topk=*/1), "no error");
}

TEST(ModularKernelErrors, TooManyTokensForABatchedFormat) {
  expect_refusal({"fake_pf", "4", "3"}, [](Call&) {}, {.format = kBatched, .max_tokens = 3});
}

TEST(ModularKernelErrors, AliasesOfHidden) {
  const auto in_place = [](Call& c) { c.output = c.input.hidden; };
  expect_refusal({"output", "hidden", "shared"}, in_place, {}, {}, /*has_shared=*/true);
  expect_refusal({"output overlaps hidden"}, [](Call& c) {
    const Tensor both = random_tensor({6, 8}, DType::kF32, 1);
    c.input.hidden = both.slice(0, 4);
    c.output = both.slice(2, 6);
  });
  expect_refusal(
      {"shared_output overlaps output"}, [](Call& c) { c.shared_output = c.output; }, {}, {}, true);
}

TEST(ModularKernelErrors, SharedOutputGoesWithSharedExperts) {
  expect_refusal(
      {"shared_output is missing", "some"}, [](Call& c) { c.shared_output = {}; }, {}, {}, true);
  expect_refusal({"shared_output is given", "no shared"}, [](Call& c) {
    c.shared_output = Tensor::empty({4, 8}, DType::kF32);
  });
  expect_refusal({"add_shared", "no shared"}, [](Call& c) { c.input.add_shared = true; });
}

TEST(ModularKernelErrors, MonolithicInput) {
  const FakePrepareFinalize::Options monolithic{.is_monolithic = true};
  expect_refusal(
      {"router_logits is missing"}, [](Call&) {}, monolithic);
  expect_refusal(
      {"router_logits", "[4, 6]", "[4, 5]"},
      [](Call& c) {
        c.input.router_logits = random_tensor({4, 6}, DType::kF32, 1);
      },
      monolithic);
  expect_refusal(
      {"monolithic", "router weight"},
      [](Call& c) {
        c.input.router_logits = random_tensor({4, 5}, DType::kF32, 1);
        c.input.apply_router_weight_on_input = true;
      },
      monolithic, {}, false, 1);
}

}  // namespace
}  // namespace moebius::testing
