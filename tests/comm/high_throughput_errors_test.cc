// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what high throughput on CPUs refuses, on every rank and before anything is sent.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "moebius/dispatch.h"
#include "tests/comm/group_runner.h"

namespace moebius::testing {
namespace {

// `x_of` and `weights_of` make what the last of three ranks on two nodes brings to a combine. Every
// rank must say what is wrong with it, and the next combine must be right.
void expect_combine_refused(const std::string& why,
                            const std::function<Tensor(const Tensor& x)>& x_of,
                            const std::function<Tensor(const Tensor& w)>& weights_of) {
  for (const int ranks_per_node : {0, 2}) {
    run_thread_ranks({.num_ranks = 3, .ranks_per_node = ranks_per_node}, [&](Group& group) {
      HighThroughput transport(group, ExpertPlacement::linear(6, 3));
      const Stream stream = Stream::cpu(1);
      const Tensor ids = Tensor::empty({4, 6}, DType::kI32);
      for (int64_t i = 0; i < ids.numel(); ++i) {
        ids.data<int32_t>()[i] = static_cast<int32_t>(i % 6);
      }
      const DispatchInput request{{Tensor::zeros({4, 32}, DType::kF32)},
                                  ids,
                                  Tensor::zeros(ids.shape(), DType::kF32),
                                  1,
                                  {}};
      const DispatchOutput rows = transport.dispatch(request, stream);
      const CombineInput right{rows.payloads[0], rows.topk_weights, {}, {}};
      CombineInput wrong = right;
      if (group.rank() == 2) {
        wrong.x = x_of(right.x);
        wrong.topk_weights = weights_of(right.topk_weights);
      }
      try {
        transport.combine(wrong, *rows.handle, stream);
        ADD_FAILURE() << "rank " << group.rank() << " has summed rows of two kinds";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()), why);
      }
      EXPECT_NO_THROW(transport.combine(right, *rows.handle, stream));
    });
  }
}

TEST(HighThroughputErrors, RowsOfACombineMustBeOfOneKind) {
  const auto same = [](const Tensor& t) { return t; };
  expect_combine_refused(
      "combine: rank 2 brings rows of 8 f32 with 6 weights, rank 0 rows of 32 f32 with 6 weights",
      [](const Tensor& x) {
        return Tensor::zeros({x.dim(0), 8}, DType::kF32);
      },
      same);
  expect_combine_refused(
      "combine: rank 2 brings rows of 32 bf16 with 6 weights, rank 0 rows of 32 f32 with 6 weights",
      [](const Tensor& x) { return convert(x, DType::kBF16); }, same);
  expect_combine_refused(
      "combine: rank 2 brings rows of 32 f32 with 0 weights, rank 0 rows of 32 f32 with 6 weights",
      same, [](const Tensor&) { return Tensor(); });
}

// An operand that claims to be on a GPU is never read.
TEST(HighThroughputErrors, OperandsElsewhereAreRefused) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    const Stream stream = Stream::cpu(1);
    const auto elsewhere = [](const Tensor& t) {
      return Tensor::borrow(t.raw(), t.shape(), t.dtype(), Device::cuda(0));
    };
    const Tensor x = Tensor::zeros({3, 16}, DType::kF32);
    const Tensor ids = Tensor::zeros({3, 2}, DType::kI32);
    const Tensor weights = Tensor::zeros(ids.shape(), DType::kF32);
    EXPECT_THROW(transport.layout(elsewhere(ids), stream), InvalidArgument);
    const auto dispatch = [&](const Tensor& rows, const Tensor& slots, const Tensor& w) {
      return transport.dispatch({{rows}, slots, w, 1, {}}, stream);
    };
    EXPECT_THROW(dispatch(elsewhere(x), ids, weights), InvalidArgument);
    EXPECT_THROW(dispatch(x, elsewhere(ids), weights), InvalidArgument);
    EXPECT_THROW(dispatch(x, ids, elsewhere(weights)), InvalidArgument);
    const DispatchOutput rows = dispatch(x, ids, weights);
    const auto combine = [&](const CombineInput& input, const Tensor& out) {
      transport.combine(input, *rows.handle, stream, out);
    };
    const Tensor y = rows.payloads[0];
    const Tensor w = rows.topk_weights;
    EXPECT_THROW(combine({elsewhere(y), w, {}, {}}, {}), InvalidArgument);
    EXPECT_THROW(combine({y, elsewhere(w), {}, {}}, {}), InvalidArgument);
    EXPECT_THROW(combine({y, w, {elsewhere(x), Tensor()}, {}}, {}), InvalidArgument);
    EXPECT_THROW(combine({y, w, {}, {}}, elsewhere(x)), InvalidArgument);
    EXPECT_NO_THROW(combine({y, w, {x, Tensor()}, {}}, x.clone()));
  });
}

TEST(HighThroughputErrors, AlignmentsThatCountsCannotHaveAreRefused) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    const Stream stream = Stream::cpu(1);
    const Tensor x = Tensor::zeros({3, 16}, DType::kF32);
    const auto dispatch = [&](int64_t alignment) {
      return transport.dispatch({{x}, Tensor::zeros({3, 1}, DType::kI32), {}, alignment, {}},
                                stream);
    };
    const DispatchOutput rows = dispatch(65536);
    EXPECT_EQ(rows.expert_num_tokens.data<int32_t>()[0], 65536);
    for (const int64_t alignment :
         {int64_t{-1}, int64_t{0}, int64_t{65537}, int64_t{2147483647}, int64_t{4294967296}}) {
      EXPECT_THROW(dispatch(alignment), InvalidArgument) << alignment;
      EXPECT_THROW(transport.expert_order(rows, alignment, stream), InvalidArgument) << alignment;
    }
    try {
      dispatch(4294967296);
      ADD_FAILURE() << "accepted an alignment of 2^32";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(
          std::string(error.what()).find("expert_alignment is 4294967296, expected at most 65536"),
          std::string::npos)
          << error.what();
    }
  });
}

TEST(HighThroughputErrors, CpusHaveNoCapacity) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    DispatchInput request{
        {Tensor::zeros({3, 16}, DType::kF32)}, Tensor::zeros({3, 1}, DType::kI32), {}, 1, {}};
    request.capacity = 2;
    EXPECT_THROW(transport.dispatch(request, Stream::cpu(1)), Unsupported);
    request.capacity = -1;
    EXPECT_THROW(transport.dispatch(request, Stream::cpu(1)), InvalidArgument);
  });
}

// What an i64 has above 32 bits is not dropped.
TEST(HighThroughputErrors, IdsBeyond32BitsAreRefused) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    const Tensor ids = Tensor::zeros({3, 2}, DType::kI64);
    for (const int64_t id : {int64_t{1} << 32, -(int64_t{1} << 32), int64_t{0xffffffff}}) {
      ids.data<int64_t>()[3] = id;
      try {
        transport.layout(ids, Stream::cpu(1));
        ADD_FAILURE() << "accepted id " << id << " of 8 experts";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()),
                  "topk_ids of token 1, slot 1 is " + std::to_string(id) + ", expected -1 to 7");
      }
    }
    EXPECT_THROW(transport.layout(Tensor::zeros({3, 2}, DType::kF32), Stream::cpu(1)),
                 InvalidArgument);
  });
}

TEST(HighThroughputErrors, IdsOutOfRangeNameTokenAndSlot) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    const Tensor ids = Tensor::zeros({3, 2}, DType::kI32);
    ids.data<int32_t>()[5] = 8;
    try {
      transport.layout(ids, Stream::cpu(1));
      ADD_FAILURE() << "accepted id 8 of 8 experts";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("token 2, slot 1 is 8"), std::string::npos)
          << error.what();
    }
  });
}

TEST(HighThroughputErrors, LayoutsAndIdsMustBelongTogether) {
  run_thread_ranks({}, [](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(8, 1));
    const Stream stream = Stream::cpu(1);
    const Tensor ids = Tensor::zeros({3, 2}, DType::kI32);
    const DispatchInput right{.payloads = {Tensor::zeros({3, 16}, DType::kF32)},
                              .layout = transport.layout(ids, stream)};
    EXPECT_NO_THROW(transport.dispatch(right, stream));
    const auto refuses = [&](const std::string& what, const auto& change) {
      DispatchInput wrong = right;
      change(wrong);
      try {
        transport.dispatch(wrong, stream);
        ADD_FAILURE() << "accepted: " << what;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      }
    };
    refuses("topk_ids is missing", [](DispatchInput& in) { in.layout = {}; });
    refuses("topk_weights without topk_ids", [](DispatchInput& in) {
      in.topk_weights = Tensor::zeros({3, 2}, DType::kF32);
    });
    refuses("tokens_per_expert is missing",
            [](DispatchInput& in) { in.layout.tokens_per_expert = {}; });
    refuses("shape of is_token_in_rank is [3, 1], expected [4, 1]", [](DispatchInput& in) {
      in.topk_ids = Tensor::zeros({4, 2}, DType::kI32);
    });
    refuses("rows of payload 0 is 3, expected 4", [](DispatchInput& in) {
      in.layout.is_token_in_rank = Tensor::zeros({4, 1}, DType::kBool);
    });
  });
}

}  // namespace
}  // namespace moebius::testing
