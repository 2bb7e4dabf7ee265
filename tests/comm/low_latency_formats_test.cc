// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests how rows of low latency are coded on CPUs: casts and their scales, rows that were quantized
// before, and ten bits on the way back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/low_latency/logfmt.h"
#include "tests/comm/low_latency_calls.h"

namespace moebius::testing {
namespace {

// Every layout of the scales has the same scales.
TEST_P(LowLatencyTest, ScalesComeInRowsInColumnsAndPacked) {
  DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  p.hidden = 640;  // five groups, so that the second word of a packed row is not full
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    for (const LowLatencyCast cast : {LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0}) {
      const auto dispatch = [&](LowLatencyScales scales) {
        return r.transport.dispatch(
            {.x = r.in.x, .topk_ids = r.in.ids, .cast = cast, .scales = scales}, r.stream);
      };
      const Tensor scales = [&] {  // two results may be alive
        const auto rows = dispatch(LowLatencyScales::kRows);
        expect_dispatched(p, r.inputs, r.rank, rows, cast);
        return rows.x_scale.clone();
      }();
      const int64_t max_rows = scales.dim(1);
      {
        const auto columns = dispatch(LowLatencyScales::kColumns);
        ASSERT_EQ(columns.x_scale.shape(), Shape({scales.dim(0), 5, max_rows}));
        for_each_row(p, r.inputs, r.rank, [&](int, int64_t, int64_t local, int64_t row) {
          for (int64_t g = 0; g < 5; ++g) {
            ASSERT_EQ(columns.x_scale[local].data<float>()[g * max_rows + row],
                      scales[local].data<float>()[row * 5 + g]);
          }
        });
      }
      if (cast == LowLatencyCast::kFp8) {
        EXPECT_THROW(dispatch(LowLatencyScales::kPackedColumns), InvalidArgument);
        continue;
      }
      const auto packed = dispatch(LowLatencyScales::kPackedColumns);
      ASSERT_EQ(packed.x_scale.dtype(), DType::kI32);
      ASSERT_EQ(packed.x_scale.shape(), Shape({scales.dim(0), 2, max_rows}));
      for_each_row(p, r.inputs, r.rank, [&](int, int64_t, int64_t local, int64_t row) {
        for (int64_t g = 0; g < 8; ++g) {
          const auto word =
              static_cast<uint32_t>(packed.x_scale[local].data<int32_t>()[g / 4 * max_rows + row]);
          const int exponent = static_cast<int>(word >> 8 * (g % 4) & 0xff);
          if (g < 5) {
            ASSERT_EQ(std::ldexp(1.0f, exponent - 127), scales[local].data<float>()[row * 5 + g]);
          } else {
            ASSERT_EQ(exponent, 0);
          }
        }
      });
    }
  });
}

// The bytes of one dispatch: a message per copy to another rank of the node, and whole mailboxes to
// other nodes.
void expect_sent(const LowLatencyRank& r,
                 const Traffic& before,
                 const Traffic& after,
                 int64_t value_bytes,
                 int64_t scale_bytes) {
  const DispatchProblem& p = r.p;
  const auto align = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  const int64_t message = align(4 * (2 + p.topk)) + align(value_bytes) + align(scale_bytes);
  const Topology& topology = r.group.topology();
  const TransportStatistics sent = expected_sent(p, r.in, topology);
  int64_t own = 0;  // copies to the own rank are no traffic
  for (int64_t t = 0; t < r.in.ids.dim(0); ++t) {
    const auto* ids = r.in.ids.data<int32_t>() + t * p.topk;
    own += std::any_of(ids, ids + p.topk,
                       [&](int32_t id) { return id >= 0 && p.placement().rank_of(id) == r.rank; });
  }
  EXPECT_EQ(after.intra_node_bytes - before.intra_node_bytes,
            (sent.copies - sent.node_copies - own) * message);
  EXPECT_EQ(after.inter_node_bytes - before.inter_node_bytes,
            (topology.size - topology.node_size(topology.node())) * (64 + kMaxTokens * message));
}

// Rows that were quantized before are bytes to the transport, and so are their scales.
TEST_P(LowLatencyTest, QuantizedRowsTravelAtTheirOwnSize) {
  struct Kind {
    DType values;
    int64_t num_scales;
    DType scale;
  };
  DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  p.hidden = 256;
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    for (const Kind& kind :
         {Kind{DType::kF8E4M3, 1, DType::kF32}, Kind{DType::kF8E4M3, 8, DType::kE8M0},
          Kind{DType::kF4E2M1, 8, DType::kE8M0}, Kind{DType::kF4E2M1, 16, DType::kF8E4M3},
          Kind{DType::kI8, 1, DType::kF32}, Kind{DType::kI8, 0, DType::kF32}}) {
      const int64_t value_bytes = row_bytes(kind.values, p.hidden);
      const int64_t scale_bytes = row_bytes(kind.scale, kind.num_scales);
      const auto codes_of = [&](int rank, int64_t bytes, uint32_t salt) {
        const Tensor codes = Tensor::empty({p.num_tokens(rank), bytes}, DType::kU8);
        for (int64_t i = 0; i < codes.numel(); ++i) {
          codes.data<uint8_t>()[i] = static_cast<uint8_t>(
              (static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * salt) >> 13);
        }
        return codes;
      };
      const int64_t num_tokens = p.num_tokens(r.rank);
      LowLatencyDispatchInput input{.topk_ids = r.in.ids};
      input.x = codes_of(r.rank, value_bytes, 7).reinterpret(kind.values, {num_tokens, p.hidden});
      if (kind.num_scales > 0) {
        input.x_scale = codes_of(r.rank, scale_bytes, 11)
                            .reinterpret(kind.scale, {num_tokens, kind.num_scales});
      }
      const Traffic before = r.group.traffic();
      const auto got = r.transport.dispatch(input, r.stream);
      const Traffic after = r.group.traffic();
      ASSERT_EQ(got.x.dtype(), kind.values);
      for_each_row(p, r.inputs, r.rank,
                   [&](int source, int64_t selection, int64_t local, int64_t row) {
                     const int64_t token = selection / p.topk;
                     ASSERT_EQ(std::memcmp(got.x[local].bytes() + row * value_bytes,
                                           codes_of(source, value_bytes, 7)[token].bytes(),
                                           static_cast<size_t>(value_bytes)),
                               0);
                     ASSERT_TRUE(kind.num_scales == 0 ||
                                 std::memcmp(got.x_scale[local].bytes() + row * scale_bytes,
                                             codes_of(source, scale_bytes, 11)[token].bytes(),
                                             static_cast<size_t>(scale_bytes)) == 0);
                   });
      expect_sent(r, before, after, value_bytes, scale_bytes);
    }
    // Rows that are cast travel as codes, too.
    const Traffic before = r.group.traffic();
    r.dispatch(LowLatencyCast::kFp8);
    expect_sent(r, before, r.group.traffic(), p.hidden, 4 * (p.hidden / 128));
    LowLatencyDispatchInput wrong{.x = Tensor::zeros(r.in.x.shape(), DType::kF32),
                                  .topk_ids = r.in.ids};
    EXPECT_THROW(r.transport.dispatch(wrong, r.stream), InvalidArgument);  // rows are too long
    wrong.x = r.in.x;
    wrong.cast = LowLatencyCast::kFp8;
    wrong.x_scale = Tensor::zeros({r.in.x.dim(0), 2}, DType::kF32);
    EXPECT_THROW(r.transport.dispatch(wrong, r.stream), InvalidArgument);
  });
}

// Sums are those of rows that were coded and decoded, and near those of the rows themselves.
TEST_P(LowLatencyTest, RowsOfTenBitsComeBackWeighted) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    for (int call = 0; call < num_calls(); ++call) {
      const auto received = r.dispatch();
      LowLatencyCombineInput back{run_experts(p, r.rank, received), r.in.ids, r.in.weights};
      back.coding = LowLatencyCoding::kLogFmt10;
      const Tensor sums = r.transport.combine(back, *received.handle, r.stream).x;
      const Tensor plain = expected_combined(p, r.in);
      std::vector<std::byte> coded(static_cast<size_t>(logfmt::row_bytes(p.hidden)));
      std::vector<float> row(static_cast<size_t>(p.hidden));
      for (int64_t t = 0; t < sums.dim(0); ++t) {
        std::vector<float> sum(static_cast<size_t>(p.hidden), 0.0f);
        std::vector<float> bound(static_cast<size_t>(p.hidden), 0.0f);
        for (int64_t k = 0; k < p.topk; ++k) {
          const int32_t id = r.in.ids.data<int32_t>()[t * p.topk + k];
          if (id < 0) {
            continue;
          }
          const Tensor y = Tensor::empty({p.hidden}, DType::kBF16);
          for (int64_t h = 0; h < p.hidden; ++h) {
            set_float(y, h, get_float(r.in.x, t * p.hidden + h) * static_cast<float>(id + 1));
          }
          logfmt::encode_row(DType::kBF16, y.bytes(), p.hidden, coded.data());
          logfmt::decode_row(coded.data(), p.hidden, row.data());
          const float weight = r.in.weights.data<float>()[t * p.topk + k];
          for (size_t h = 0; h < sum.size(); ++h) {
            sum[h] += weight * row[h];
            bound[h] += weight * std::fabs(row[h]);
          }
        }
        for (int64_t h = 0; h < p.hidden; ++h) {
          const auto i = static_cast<size_t>(h);
          ASSERT_EQ(get_float(sums, t * p.hidden + h), static_cast<float>(BFloat16(sum[i])));
          ASSERT_NEAR(get_float(sums, t * p.hidden + h), get_float(plain, t * p.hidden + h),
                      0.03f * bound[i]);
        }
      }
    }
  });
}

// The infinity is not clipped, and the values beside it, which are lost, do not look like others.
TEST(LowLatencyCast, AnInfinityMakesTheScaleOfItsGroupInfinite) {
  run_thread_ranks({}, [](Group& group) {
    LowLatency transport(group, ExpertPlacement::linear(1, 1), {1, 256, 1, DType::kF32});
    const Tensor x = Tensor::zeros({1, 256}, DType::kF32);
    std::fill_n(x.data<float>(), x.numel(), 2.0f);
    x.data<float>()[0] = std::numeric_limits<float>::infinity();
    for (const LowLatencyCast cast : {LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0}) {
      const auto received =
          transport.dispatch({x, Tensor::zeros({1, 1}, DType::kI32), cast}, Stream::cpu(1));
      EXPECT_TRUE(std::isinf(get_float(received.x_scale, 0)));
      EXPECT_TRUE(std::isnan(get_float(received.x, 0)));
      EXPECT_EQ(get_float(received.x, 1), 0.0f);
      EXPECT_GT(get_float(received.x, 128), 0.0f);  // another group
      EXPECT_TRUE(std::isfinite(get_float(received.x_scale, 1)));
    }
  });
}

}  // namespace
}  // namespace moebius::testing
