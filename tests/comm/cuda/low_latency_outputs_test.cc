// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: what callers may say of a call beside its rows, and what they are told of
// it.  All inputs are known to every rank, so what must come is computed here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "comm/low_latency/logfmt.h"
#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

constexpr uint64_t kSeed = 5;

// Calls visit(source, token, local expert, row) for every row that `rank` receives.
template <typename Visit>
void for_each_row(const Problem& p, int rank, const Visit& visit) {
  const ExpertPlacement placement = p.routing.placement();
  std::vector<int64_t> next(static_cast<size_t>(p.num_local(rank)), 0);
  for (int s = 0; s < p.routing.num_ranks; ++s) {
    const Input in = make_input(p, s, kSeed);
    for (int64_t i = 0; i < in.ids.numel(); ++i) {
      const int32_t id = in.ids.data<int32_t>()[i];
      if (id >= 0 && placement.rank_of(id) == rank) {
        const int64_t local = placement.local_index(id);
        visit(s, i / p.routing.topk, local, next[static_cast<size_t>(local)]++);
      }
    }
  }
}

Tensor down(const Rank& r, const Tensor& t) {
  return to_device(t, Device::cpu(), r.stream);
}

// Sources, ranges and counts of a call with so much room; rows are compared as bytes.
void expect_rows(const Rank& r,
                 const LowLatencyDispatchOutput& got,
                 int64_t room,
                 const std::function<Tensor(int source)>& rows_of) {
  const int rank = r.group.rank();
  const int num_ranks = r.group.size();
  const int64_t num_local = r.p.num_local(rank);
  ASSERT_EQ(got.x.dim(1), room * num_ranks);
  const Tensor x = down(r, got.x);
  const Tensor tokens = down(r, got.source_token);
  const Tensor ranges = down(r, got.source_ranges);
  const Tensor counts = down(r, got.expert_num_tokens);
  std::vector<Tensor> sent;
  for (int s = 0; s < num_ranks; ++s) {
    sent.push_back(rows_of(s));
  }
  std::vector<int64_t> from(static_cast<size_t>(num_local * num_ranks), 0);
  const int64_t bytes = row_bytes(x.dtype(), x.dim(2));
  for_each_row(r.p, rank, [&](int source, int64_t token, int64_t local, int64_t row) {
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    ++from[static_cast<size_t>(local * num_ranks + source)];
    ASSERT_EQ(tokens[local].data<int32_t>()[row], token) << "expert " << local << " row " << row;
    ASSERT_EQ(std::memcmp(x[local].bytes() + row * bytes,
                          sent[static_cast<size_t>(source)].bytes() + token * bytes,
                          static_cast<size_t>(bytes)),
              0)
        << "expert " << local << " row " << row;
  });
  for (int64_t l = 0; l < num_local; ++l) {
    int64_t begin = 0;
    for (int s = 0; s < num_ranks; ++s) {
      const int64_t i = l * num_ranks + s;
      ASSERT_EQ(ranges.data<int64_t>()[i], begin << 32 | from[static_cast<size_t>(i)]);
      begin += from[static_cast<size_t>(i)];
    }
    ASSERT_EQ(counts.data<int32_t>()[l], begin);
  }
}

TEST_P(LowLatencyCuda, CallsHaveSourcesAndTheirOwnRoom) {
  for (const int64_t hidden : {1152, 45}) {
    const Problem p = make_problem(9, 3, hidden);
    run_ranks(p, [&](Rank& r) {
      const Input in = make_input(p, r.group.rank(), kSeed);
      const DeviceInput there = put(r, in);
      const Tensor received = Tensor::zeros({p.num_local(r.group.rank())}, DType::kI32, r.device);
      int calls = 0;
      for (const int64_t room : {int64_t{40}, p.max_tokens, int64_t{33}}) {
        for (const bool is_wide : {false, true}) {
          const Tensor ids = is_wide ? r.up(convert(in.ids, DType::kI64)) : there.ids;
          const auto got = r.gpu.dispatch({.x = there.x,
                                           .topk_ids = ids,
                                           .row_tags = there.tags,
                                           .max_tokens = room,
                                           .received = received},
                                          r.stream);
          ++calls;
          r.finish();
          expect_rows(r, got, room, [&](int s) { return make_input(p, s, kSeed).x; });
          const Tensor total = down(r, received);
          const Tensor counts = down(r, got.expert_num_tokens);
          for (int64_t l = 0; l < counts.numel(); ++l) {
            EXPECT_EQ(total.data<int32_t>()[l], calls * counts.data<int32_t>()[l]);
          }
          // Rows go back as they came, by the library's buffer and by another one.
          const Tensor buffer = r.gpu.combine_buffer(*got.handle);
          ASSERT_EQ(buffer.shape(), got.x.shape());
          copy(got.x, buffer, r.stream);
          const Tensor a = r.gpu.combine({buffer, ids, there.weights}, *got.handle, r.stream).x;
          const auto again = r.gpu.dispatch(
              {.x = there.x, .topk_ids = ids, .row_tags = there.tags, .max_tokens = room},
              r.stream);
          const Tensor b = r.gpu.combine({again.x, ids, there.weights}, *again.handle, r.stream).x;
          r.finish();
          EXPECT_TRUE(same_bytes(down(r, a), down(r, b)));
        }
      }
      EXPECT_THROW(
          r.gpu.dispatch({.x = there.x, .topk_ids = there.ids, .max_tokens = 32}, r.stream),
          InvalidArgument);
    });
  }
}

TEST_P(LowLatencyCuda, ScalesComeInRowsInColumnsAndPacked) {
  const Problem p = make_problem(9, 3, 1664);  // 13 groups: the last word of a packed row has one
  run_ranks(p, [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), kSeed));
    const auto dispatch = [&](LowLatencyScales scales) {
      return r.gpu.dispatch(
          {.x = in.x, .topk_ids = in.ids, .cast = LowLatencyCast::kFp8Ue8m0, .scales = scales},
          r.stream);
    };
    Tensor rows;
    Tensor columns;
    Tensor packed;
    {
      const auto got = dispatch(LowLatencyScales::kRows);
      rows = down(r, got.x_scale);
    }
    {
      const auto got = dispatch(LowLatencyScales::kColumns);
      columns = down(r, got.x_scale);
    }
    {
      const auto got = dispatch(LowLatencyScales::kPackedColumns);
      packed = down(r, got.x_scale);
    }
    r.finish();
    const int64_t max_rows = p.max_rows();
    ASSERT_EQ(columns.shape(), Shape({rows.dim(0), 13, max_rows}));
    ASSERT_EQ(packed.shape(), Shape({rows.dim(0), 4, max_rows}));
    for_each_row(p, r.group.rank(), [&](int, int64_t, int64_t local, int64_t row) {
      for (int64_t g = 0; g < 16; ++g) {
        const float scale = g < 13 ? rows[local].data<float>()[row * 13 + g] : 0.0f;
        if (g < 13) {
          ASSERT_EQ(columns[local].data<float>()[g * max_rows + row], scale);
        }
        const auto word =
            static_cast<uint32_t>(packed[local].data<int32_t>()[g / 4 * max_rows + row]);
        const auto exponent = static_cast<int>(word >> 8 * (g % 4) & 0xff);
        ASSERT_EQ(g < 13 ? std::ldexp(1.0f, exponent - 127) : static_cast<float>(exponent), scale);
      }
    });
  });
}

Tensor codes_of(const Problem& p, int rank, int64_t bytes, uint32_t salt) {
  const Tensor codes = Tensor::empty({p.routing.num_tokens(rank), bytes}, DType::kU8);
  for (int64_t i = 0; i < codes.numel(); ++i) {
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(
        (static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * salt) >> 13);
  }
  return codes;
}

// Calls with and without a cast come between them, so that flags of other parts are used again.
TEST_P(LowLatencyCuda, RowsThatWereQuantizedBeforeArriveAsTheyAre) {
  struct Kind {
    DType values;
    int64_t num_scales;
    DType scale;
  };
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Problem p = make_problem(9, 3, 3200);
    p.dtype = dtype;
    run_ranks(p, [&](Rank& r) {
      const int rank = r.group.rank();
      const DeviceInput in = put(r, make_input(p, rank, kSeed));
      const int64_t num_tokens = p.routing.num_tokens(rank);
      for (int round = 0; round < 3; ++round) {
        for (const Kind& kind :
             {Kind{DType::kF8E4M3, 1, DType::kF32}, Kind{DType::kF8E4M3, 100, DType::kE8M0},
              Kind{DType::kF4E2M1, 200, DType::kF8E4M3}, Kind{DType::kF4E2M1, 25, DType::kE8M0},
              Kind{DType::kI8, 0, DType::kF32}}) {
          const int64_t value_bytes = row_bytes(kind.values, 3200);
          const int64_t scale_bytes = row_bytes(kind.scale, kind.num_scales);
          LowLatencyDispatchInput input{.topk_ids = in.ids};
          input.x =
              r.up(codes_of(p, rank, value_bytes, 7)).reinterpret(kind.values, {num_tokens, 3200});
          if (kind.num_scales > 0) {
            input.x_scale = r.up(codes_of(p, rank, scale_bytes, 11))
                                .reinterpret(kind.scale, {num_tokens, kind.num_scales});
          }
          {
            const auto got = r.gpu.dispatch(input, r.stream);
            r.finish();
            expect_rows(r, got, p.max_tokens,
                        [&](int s) { return codes_of(p, s, value_bytes, 7); });
            if (kind.num_scales > 0) {
              const Tensor scales = down(r, got.x_scale);
              for_each_row(p, rank, [&](int source, int64_t token, int64_t local, int64_t row) {
                ASSERT_EQ(std::memcmp(scales[local].bytes() + row * scale_bytes,
                                      codes_of(p, source, scale_bytes, 11)[token].bytes(),
                                      static_cast<size_t>(scale_bytes)),
                          0);
              });
            }
          }
          const auto plain = r.gpu.dispatch({.x = in.x, .topk_ids = in.ids}, r.stream);
          r.finish();
          expect_rows(r, plain, p.max_tokens, [&](int s) { return make_input(p, s, kSeed).x; });
        }
      }
    });
  }
}

TEST_P(LowLatencyCudaOneNode, WaitsAreAddedToTheCallersTensors) {
  const Problem p = make_problem(9, 3, 1152);
  run_ranks(p, [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), kSeed));
    const int late = r.group.size() - 1;
    const Tensor waits[] = {Tensor::zeros({r.group.size()}, DType::kI64, r.device),
                            Tensor::zeros({r.group.size()}, DType::kI64, r.device)};
    const auto fall_behind = [&] {
      r.finish();
      r.group.barrier("together");
      if (r.group.rank() == late) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
      }
    };
    fall_behind();
    const auto got = r.gpu.dispatch({.x = in.x, .topk_ids = in.ids, .wait_us = waits[0]}, r.stream);
    fall_behind();
    r.gpu.combine({.x = got.x, .topk_ids = in.ids, .topk_weights = in.weights, .wait_us = waits[1]},
                  *got.handle, r.stream);
    r.finish();
    for (const Tensor& there : waits) {
      const Tensor wait_us = down(r, there);
      for (int s = 0; s < r.group.size(); ++s) {
        const int64_t us = wait_us.data<int64_t>()[s];
        EXPECT_GE(us, 0);
        EXPECT_LT(us, 10'000'000);
        if (s == late && r.group.rank() != late) {
          EXPECT_GE(us, 30'000) << "rank " << r.group.rank();
        }
      }
    }
  });
}

// The sums have the bits of rows that were coded and decoded on the CPU.
TEST_P(LowLatencyCuda, RowsOfTenBitsComeBackWithTheBitsOfTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Problem p = make_problem(9, 3, 1664);
    p.dtype = dtype;
    run_ranks(p, [&](Rank& r) {
      const Input in = make_input(p, r.group.rank(), kSeed);
      const DeviceInput there = put(r, in);
      for (int call = 0; call < 3; ++call) {
        const auto got = r.gpu.dispatch({.x = there.x, .topk_ids = there.ids}, r.stream);
        LowLatencyCombineInput back{got.x, there.ids, there.weights};
        back.coding = LowLatencyCoding::kLogFmt10;
        const auto sums = call % 2 == 0 ? r.gpu.combine(back, *got.handle, r.stream)
                                        : r.gpu.combine_async(back, *got.handle, r.stream).finish();
        r.finish();
        const Tensor x = down(r, sums.x);
        std::vector<std::byte> coded(static_cast<size_t>(logfmt::row_bytes(1664)));
        std::vector<float> row(1664);
        for (int64_t t = 0; t < x.dim(0); ++t) {
          logfmt::encode_row(dtype, in.x[t].bytes(), 1664, coded.data());
          logfmt::decode_row(coded.data(), 1664, row.data());
          std::vector<float> sum(1664, 0.0f);
          for (int64_t k = 0; k < 3; ++k) {
            if (in.ids.data<int32_t>()[3 * t + k] >= 0) {
              const float weight = in.weights.data<float>()[3 * t + k];
              for (size_t h = 0; h < sum.size(); ++h) {
                sum[h] += weight * row[h];
              }
            }
          }
          const Tensor expected = Tensor::empty({1664}, dtype);
          for (size_t h = 0; h < sum.size(); ++h) {
            set_float(expected, static_cast<int64_t>(h), sum[h]);
          }
          ASSERT_TRUE(same_bytes(x[t], expected)) << "token " << t;
        }
      }
    });
  }
}

class LowLatencyCudaPeers : public LowLatencyCudaOneNode {
 protected:
  void SetUp() override {
    LowLatencyCudaOneNode::SetUp();
    if (!IsSkipped() && num_ranks() == 1) {
      GTEST_SKIP() << "skipped: needs a second rank";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, LowLatencyCudaPeers, on_gpu_ranks(), gpu_ranks_name);

TEST_P(LowLatencyCudaPeers, AnotherRoomOnOneRankIsAnError) {
  const Problem p = make_problem(9, 3, 1152);
  run_ranks(p, [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), kSeed));
    const int64_t room = r.group.rank() == 0 ? 40 : 41;
    r.gpu.dispatch({.x = in.x, .topk_ids = in.ids, .max_tokens = room}, r.stream);
    r.stream.synchronize();
    try {
      r.gpu.check();
      ADD_FAILURE() << "rank " << r.group.rank() << " has taken rows for another room";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("has another room"), std::string::npos)
          << error.what();
    }
    r.group.barrier("all have seen it");
  });
}

TEST_P(LowLatencyCudaPeers, AnotherCastOnOneRankIsAnErrorOfBothSizes) {
  const Problem p = make_problem(9, 3, 1152);
  run_ranks(p, [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), kSeed));
    const bool is_cast = r.group.rank() == 0;
    r.gpu.dispatch({.x = in.x,
                    .topk_ids = in.ids,
                    .cast = is_cast ? LowLatencyCast::kFp8 : LowLatencyCast::kNone},
                   r.stream);
    r.stream.synchronize();
    try {
      r.gpu.check();
      ADD_FAILURE() << "rank " << r.group.rank() << " has taken rows of another kind";
    } catch (const CommError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rows of another size"), std::string::npos) << text;
      // The row of fp8 has 1152 bytes, that of bf16 2304.
      EXPECT_TRUE(
          text.find("found by") != std::string::npos ||
          (text.find("1152") != std::string::npos && text.find("2304") != std::string::npos))
          << text;
    }
    r.group.barrier("all have seen it");
  });
}

TEST_P(LowLatencyCuda, AnotherCodingOnOneRankIsAnError) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "skipped: needs a second rank";
  }
  const Problem p = make_problem(9, 3, 1152);
  run_gpu_ranks(GetParam(), [&](Group& group) {
    Rank r(group, p);
    const DeviceInput in = put(r, make_input(p, group.rank(), kSeed));
    const auto got = r.gpu.dispatch({.x = in.x, .topk_ids = in.ids}, r.stream);
    LowLatencyCombineInput back{got.x, in.ids, in.weights};
    back.coding = group.rank() == 0 ? LowLatencyCoding::kLogFmt10 : LowLatencyCoding::kNone;
    comm_error_of(
        [&] {
          r.gpu.combine(back, *got.handle, r.stream);
          r.stream.synchronize();
          r.gpu.check();
          // A rank that has no rows of rank 0 is told by its next call.
          r.gpu.dispatch({.x = in.x, .topk_ids = in.ids}, r.stream);
          r.stream.synchronize();
          r.gpu.check();
        },
        -1);
    if (is_one_node()) {  // over nodes the error has ended the group
      group.barrier("all have seen it");
    }
  });
}

TEST_P(LowLatencyCudaOneNode, AResultThatOnlyAStreamUsesGivesItsPlaceToTheNextCall) {
  const Problem p = make_problem(9, 3, 1152);
  run_ranks(p, [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), kSeed));
    const Stream reader = Stream::cuda(r.stream.device().index);
    for (int call = 0; call < 8; ++call) {
      LowLatencyDispatchOutput got = r.gpu.dispatch({.x = in.x, .topk_ids = in.ids}, r.stream);
      reader.wait(r.stream.record());
      got.x.record_stream(reader);  // dropped here, while the work is under way
    }
    r.finish();
  });
}

}  // namespace
}  // namespace moebius::testing
