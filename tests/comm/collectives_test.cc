// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The collectives on tensors, for every kind of group.  Results are compared bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "tests/comm/group_runner.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

class CollectivesTest : public ::testing::TestWithParam<GroupShape> {
 protected:
  size_t num_ranks() const { return static_cast<size_t>(GetParam().num_ranks); }
  void run(const std::function<void(Group&)>& body) { run_ranks(GetParam(), body); }
};

// Uneven numbers of rows per rank, some of them 0; they are the same on every rank.
std::vector<int64_t> uneven_counts(size_t num_ranks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> counts(num_ranks);
  for (int64_t& count : counts) {
    count = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 9);
  }
  return counts;
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Reproducible noise in [-4, 4) that rounds in every format.
float noise(int source, int64_t i) {
  std::minstd_rand random(static_cast<uint32_t>(source * 1'000'003 + i + 1));
  random.discard(2);
  return static_cast<float>(random() % 0x1000000) * 0x1p-21f - 4.0f;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0);
}

TEST_P(CollectivesTest, GathersUnevenRows) {
  run([&](Group& group) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF4E2M1, DType::kI64}) {
      for (uint32_t seed = 0; seed < 6; ++seed) {
        const auto counts = uneven_counts(num_ranks(), seed);
        constexpr int64_t kColumns = 6;
        Tensor expected = Tensor::zeros({sum(counts), kColumns}, dtype);
        int64_t first = 0;
        for (int source = 0; source < group.rank(); ++source) {
          first += counts[static_cast<size_t>(source)];
        }
        for (int64_t i = 0; i < expected.numel(); ++i) {
          set_float(expected, i, static_cast<float>(i % 7));
        }
        const int64_t own = counts[static_cast<size_t>(group.rank())];
        const Tensor in = expected.slice(first, first + own).clone();
        const Tensor out = Tensor::zeros({sum(counts), kColumns}, dtype);
        all_gatherv(group, "gather", in, counts, out, Stream());
        EXPECT_TRUE(same_bytes(out, expected)) << name(dtype) << ", seed " << seed;
      }
    }
  });
}

TEST_P(CollectivesTest, GathersRowsOfAnyShape) {
  run([&](Group& group) {
    const std::vector<int64_t> counts(num_ranks(), 2);
    for (const Shape& shape : {Shape{2}, Shape{2, 3, 5}, Shape{2, 2, 2, 2}, Shape{2, 0}}) {
      std::vector<int64_t> all_dims;
      for (int i = 0; i < shape.size(); ++i) {
        all_dims.push_back(shape[i]);
      }
      all_dims[0] = 2 * group.size();
      const Tensor in = Tensor::zeros(shape, DType::kI32);
      std::fill_n(in.data<int32_t>(), in.numel(), group.rank());
      const Tensor out = Tensor::zeros(Shape(all_dims), DType::kI32);
      all_gatherv(group, "gather", in, counts, out, Stream());
      for (int64_t i = 0, n = out.numel(); i < n; ++i) {
        ASSERT_EQ(out.data<int32_t>()[i], i / in.numel()) << to_string(shape) << " at " << i;
      }
    }
  });
}

TEST_P(CollectivesTest, ReducesInRankOrderAndRoundsOnce) {
  run([&](Group& group) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        const auto counts = uneven_counts(num_ranks(), seed);
        constexpr int64_t kColumns = 33;
        const int64_t own = counts[static_cast<size_t>(group.rank())];
        const int64_t first =
            std::accumulate(counts.begin(), counts.begin() + group.rank(), int64_t{0});
        // Rows [begin, end) of a rank's input.
        const auto rows_of = [&](int source, int64_t begin, int64_t end) {
          const Tensor rows = Tensor::zeros({end - begin, kColumns}, dtype);
          for (int64_t i = 0, n = rows.numel(); i < n; ++i) {
            set_float(rows, i, noise(source, begin * kColumns + i));
          }
          return rows;
        };
        std::vector<float> sums(static_cast<size_t>(own * kColumns), 0.0f);
        for (int source = 0; source < group.size(); ++source) {
          const Tensor rows = rows_of(source, first, first + own);
          for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += get_float(rows, static_cast<int64_t>(i));
          }
        }
        const Tensor expected = Tensor::zeros({own, kColumns}, dtype);
        for (size_t i = 0; i < sums.size(); ++i) {
          set_float(expected, static_cast<int64_t>(i), sums[i]);
        }
        const Tensor in = rows_of(group.rank(), 0, sum(counts));
        for (const int threads : {1, 3}) {
          const Tensor out = Tensor::zeros({own, kColumns}, dtype);
          reduce_scatterv(group, "reduce", in, counts, out, Stream::cpu(threads));
          EXPECT_TRUE(same_bytes(out, expected))
              << name(dtype) << ", seed " << seed << ", " << threads << " threads";
        }
      }
    }
  });
}

TEST_P(CollectivesTest, ReducesManyElementsWithSeveralThreads) {
  run([&](Group& group) {
    // These are several tasks of the parallel loop per rank.
    const int64_t rows = group.size() > 8 ? 20 : 50;
    const std::vector<int64_t> counts(num_ranks(), rows);
    const Tensor in = Tensor::empty({rows * group.size(), 1024}, DType::kF32);
    for (int64_t i = 0, n = in.numel(); i < n; ++i) {
      in.data<float>()[i] = static_cast<float>((i % 1000) * (group.rank() + 1));
    }
    const Tensor out = Tensor::empty({rows, 1024}, DType::kF32);
    reduce_scatterv(group, "reduce", in, counts, out, Stream::cpu(3));
    const int64_t first = group.rank() * out.numel();
    const int ranks_sum = group.size() * (group.size() + 1) / 2;
    for (int64_t i = 0, n = out.numel(); i < n; ++i) {
      ASSERT_EQ(out.data<float>()[i], static_cast<float>((first + i) % 1000 * ranks_sum)) << i;
    }
  });
}

TEST_P(CollectivesTest, SendsRowsFromAllToAll) {
  run([&](Group& group) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      const auto count = [&](int from, int to) {
        return uneven_counts(num_ranks(),
                             seed * 1000 + static_cast<uint32_t>(from))[static_cast<size_t>(to)];
      };
      std::vector<int64_t> send_counts, recv_counts;
      std::vector<int32_t> sent, expected;
      const auto append = [](std::vector<int32_t>& rows, int from, int to, int64_t n) {
        for (int64_t row = 0; row < n; ++row) {
          rows.insert(rows.end(), {from, to, static_cast<int32_t>(row)});
        }
      };
      for (int peer = 0; peer < group.size(); ++peer) {
        send_counts.push_back(count(group.rank(), peer));
        recv_counts.push_back(count(peer, group.rank()));
        append(sent, group.rank(), peer, send_counts.back());
        append(expected, peer, group.rank(), recv_counts.back());
      }
      std::vector<int32_t> received(expected.size(), -1);
      all_to_allv(group, "shuffle", Tensor::borrow(sent.data(), {sum(send_counts), 3}, DType::kI32),
                  send_counts, recv_counts,
                  Tensor::borrow(received.data(), {sum(recv_counts), 3}, DType::kI32), Stream());
      EXPECT_EQ(received, expected) << "seed " << seed;
    }
  });
}

TEST_P(CollectivesTest, SumsAndTakesTheLargest) {
  run([&](Group& group) {
    const int64_t n = group.size();
    std::vector<int64_t> values = {1, group.rank(), -group.rank(), int64_t{1} << 40};
    all_reduce_sum(group, "sum", values);
    EXPECT_EQ(values, (std::vector<int64_t>{n, n * (n - 1) / 2, -n * (n - 1) / 2, n << 40}));
    all_reduce_sum(group, "nothing", {});
    EXPECT_EQ(all_reduce_max(group, "max", -group.rank()), 0);
    EXPECT_EQ(all_reduce_max(group, "max", group.rank() == 0 ? -7 : -9), -7);
  });
}

TEST_P(CollectivesTest, WrongSizesAreRefusedWithBothValues) {
  run([&](Group& group) {
    const std::vector<int64_t> counts(num_ranks(), 2);
    const std::vector<int64_t> too_many(num_ranks() + 1, 2);
    const std::vector<int64_t> negative(num_ranks(), -2);
    const int64_t all = 2 * group.size();
    const Tensor in = Tensor::zeros({2, 4}, DType::kF32);
    const Tensor out = Tensor::zeros({all, 4}, DType::kF32);
    const auto refusal = [&](const Tensor& from, std::span<const int64_t> n, const Tensor& to) {
      return message_of([&] { all_gatherv(group, "gather", from, n, to, Stream()); });
    };
    expect_mentions(refusal(in, too_many, out),
                    {"gather", "number of counts is", std::to_string(group.size() + 1)});
    expect_mentions(refusal(in, negative, out), "counts[0] is -2");
    expect_mentions(refusal(Tensor::zeros({3, 4}, DType::kF32), counts, out),
                    "in.dim(0) is 3, expected 2");
    expect_mentions(
        refusal(in, counts, Tensor::zeros({all + 1, 4}, DType::kF32)),
        {"out.dim(0) is " + std::to_string(all + 1), "expected " + std::to_string(all)});
    expect_mentions(refusal(in, counts, Tensor::zeros({all, 5}, DType::kF32)), {"[5]", "[4]"});
    expect_mentions(refusal(in, counts, Tensor::zeros({all, 4}, DType::kBF16)), {"bf16", "f32"});
    expect_mentions(refusal(Tensor(), counts, out), "in");
    expect_mentions(message_of([&] {
                      reduce_scatterv(group, "reduce", Tensor::zeros({all, 4}, DType::kI32), counts,
                                      Tensor::zeros({2, 4}, DType::kI32), Stream::cpu(1));
                    }),
                    {"i32", "expected f32, bf16 or f16"});
    EXPECT_EQ(group.epoch(), 0);
    group.barrier("still usable");
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, CollectivesTest, on_group_shapes(), shape_name);

}  // namespace
}  // namespace moebius::testing
