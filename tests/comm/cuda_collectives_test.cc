// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives on tensors of GPUs give the bytes that they give on the CPU.
#include <numeric>
#include <string>
#include <vector>

#include "tests/comm/gpu_ranks.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

constexpr int64_t kColumns = 70;

class CudaCollectivesTest : public GpuRanksTest {};

// Uneven numbers of rows per rank, some of them 0.
std::vector<int64_t> uneven_counts(int num_ranks, int seed) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < num_ranks; ++rank) {
    counts.push_back((rank * 7 + seed * 5) % 4 == 1 ? 0 : (rank * 31 + seed * 17) % 90);
  }
  return counts;
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Values whose sums depend on order and rounding.
Tensor noise(int64_t rows, DType dtype, int rank, int seed) {
  const Tensor tensor = Tensor::empty({rows, kColumns}, dtype);
  uint32_t state = static_cast<uint32_t>(rank * 7919 + seed * 104729 + 1);
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(state)) / 1.0e9f;
    set_float(tensor, i, i % 5 == 0 ? value * 300.0f : value);
  }
  return tensor;
}

void expect_same(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.nbytes(), expected.nbytes()) << what;
  const int64_t size = actual.nbytes();
  for (int64_t i = 0; i < size; ++i) {
    ASSERT_EQ(actual.bytes()[i], expected.bytes()[i]) << what << ", byte " << i;
  }
}

// Makes the collective call with tensors of the CPU and with tensors of the GPU, and compares.
template <typename Call>
void expect_as_on_cpu(
    const Group& group, const Tensor& in, int64_t rows_out, int seed, const Call& call) {
  const Stream stream = Stream::cuda(group.device().index);
  const Tensor expected = Tensor::empty({rows_out, kColumns}, in.dtype());
  call(in, expected, Stream::cpu(1));
  const Tensor out = Tensor::empty(expected.shape(), in.dtype(), group.device());
  call(to_device(in, group.device(), stream), out, stream);
  expect_same(to_device(out, Device::cpu(), stream), expected,
              std::string(name(in.dtype())) + ", seed " + std::to_string(seed));
}

TEST_P(CudaCollectivesTest, GatherAsOnTheCpu) {
  run([](Group& group) {
    for (int seed = 0; seed < 4; ++seed) {
      const auto counts = uneven_counts(group.size(), seed);
      const int64_t own = counts[static_cast<size_t>(group.rank())];
      expect_as_on_cpu(group, noise(own, DType::kBF16, group.rank(), seed), sum(counts), seed,
                       [&](const Tensor& in, const Tensor& out, const Stream& stream) {
                         all_gatherv(group, "gather", in, counts, out, stream);
                       });
    }
    group.barrier("end");
  });
}

TEST_P(CudaCollectivesTest, ReduceInRankOrderAndRoundOnceAsOnTheCpu) {
  run([](Group& group) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (int seed = 0; seed < 3; ++seed) {
        const auto counts = uneven_counts(group.size(), seed);
        const int64_t own = counts[static_cast<size_t>(group.rank())];
        expect_as_on_cpu(group, noise(sum(counts), dtype, group.rank(), seed), own, seed,
                         [&](const Tensor& in, const Tensor& out, const Stream& stream) {
                           reduce_scatterv(group, "reduce", in, counts, out, stream);
                         });
      }
    }
    group.barrier("end");
  });
}

TEST_P(CudaCollectivesTest, SendFromAllToAllAsOnTheCpu) {
  run([](Group& group) {
    for (int seed = 0; seed < 4; ++seed) {
      std::vector<int64_t> send_counts, recv_counts;
      for (int peer = 0; peer < group.size(); ++peer) {
        const auto count = [&](int from, int to) {
          return uneven_counts(group.size(), seed + from)[static_cast<size_t>(to)];
        };
        send_counts.push_back(count(group.rank(), peer));
        recv_counts.push_back(count(peer, group.rank()));
      }
      expect_as_on_cpu(group, noise(sum(send_counts), DType::kF32, group.rank(), seed),
                       sum(recv_counts), seed,
                       [&](const Tensor& in, const Tensor& out, const Stream& stream) {
                         all_to_allv(group, "shuffle", in, send_counts, recv_counts, out, stream);
                       });
    }
    group.barrier("end");
  });
}

// A tensor that has been sent may be written again in the stream's order, without a wait of the
// host.
TEST_P(CudaCollectivesTest, CallsFollowEachOtherOnTheStream) {
  run([](Group& group) {
    constexpr int kRounds = 10;
    constexpr int64_t kRows = 500;
    const Stream stream = Stream::cuda(group.device().index);
    const std::vector<int64_t> counts(static_cast<size_t>(group.size()), kRows);
    std::vector<Tensor> inputs, outputs;
    for (int round = 0; round < kRounds; ++round) {
      inputs.push_back(
          to_device(noise(kRows, DType::kF32, group.rank(), round), group.device(), stream));
      outputs.push_back(
          Tensor::empty({group.size() * kRows, kColumns}, DType::kF32, group.device()));
    }
    const Tensor shared = Tensor::empty({kRows, kColumns}, DType::kF32, group.device());
    for (int round = 0; round < kRounds; ++round) {
      const auto r = static_cast<size_t>(round);
      copy(inputs[r], shared, stream);
      all_gatherv(group, "gather", shared, counts, outputs[r], stream);
    }
    for (int round = 0; round < kRounds; ++round) {
      const Tensor got = to_device(outputs[static_cast<size_t>(round)], Device::cpu(), stream);
      for (int source = 0; source < group.size(); ++source) {
        expect_same(got.slice(source * kRows, (source + 1) * kRows),
                    noise(kRows, DType::kF32, source, round), "round " + std::to_string(round));
      }
    }
    group.barrier("end");
  });
}

TEST_P(CudaCollectivesTest, BlocksThatDoNotMatchAreAnErrorAndNoHang) {
  if (GetParam().num_ranks < 2) {
    GTEST_SKIP() << "needs a peer";
  }
  std::vector<std::string> errors;
  EXPECT_THROW(run_thread_ranks(
                   thread_options(GetParam()),
                   [](Group& group) {
                     const Stream stream = Stream::cuda(group.device().index);
                     const Tensor data = Tensor::zeros({64}, DType::kU8, group.device());
                     const int next = (group.rank() + 1) % group.size();
                     const int previous = (group.rank() + group.size() - 1) % group.size();
                     const int64_t sent = group.rank() == 0 ? 24 : 16;
                     const std::vector<SendBlock> sends = {{next, data.raw(), sent}};
                     const std::vector<RecvBlock> recvs = {{previous, data.bytes() + 32, 16}};
                     group.exchange_on(stream, "ring", sends, recvs);
                   },
                   &errors),
               CommError);
  testing::expect_mentions(errors[1], "rank 0 sends 24 bytes to rank 1, which expects 16");
}

TEST(CudaCollectives, AGroupWithoutGpusSaysSo) {
  run_thread_ranks({.num_ranks = 1}, [](Group& group) {
    testing::expect_mentions(
        testing::message_of<Unsupported>([&] { group.exchange_on(Stream(), "ring", {}, {}); }),
        "ranks of group threads have no GPU");
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaCollectivesTest, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius
