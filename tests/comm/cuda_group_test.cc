// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/host_memory.h"
#include "tests/comm/cuda_group_kernels.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

constexpr int64_t kPatienceNs = 5'000'000'000;

TEST(CudaRanks, DevicesAreCheckedBeforeAnyRankStarts) {
  bool has_run = false;
  const auto refusal_of = [&](int num_ranks, std::vector<Device> devices) {
    ThreadGroupOptions options;
    options.num_ranks = num_ranks;
    options.devices = std::move(devices);
    return testing::message_of<Error>(
        [&] { run_thread_ranks(options, [&](Group&) { has_run = true; }); });
  };
  using testing::expect_mentions;
  const int count = cuda_device_count();
  expect_mentions(refusal_of(2, {Device::cuda(0)}), "devices of the ranks is 1, expected 2");
  expect_mentions(refusal_of(1, {Device::cpu()}), "expected a GPU");
  expect_mentions(refusal_of(1, {Device::cuda(count)}), "cuda:" + std::to_string(count));
  EXPECT_FALSE(has_run);
}

Tensor on_host(const std::byte* data, int64_t bytes, const Stream& stream) {
  return to_device(
      Tensor::borrow(const_cast<std::byte*>(data), {bytes}, DType::kU8, stream.device()),
      Device::cpu(), stream);
}

class CudaGroupTest : public GpuRanksTest {};

TEST_P(CudaGroupTest, WindowsAreZeroAndNamedAlikeOnHostAndDevice) {
  run([](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    EXPECT_TRUE(group.device().is_cuda());
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1} << 22}) {
      const auto window = group.make_window("window", bytes);
      EXPECT_EQ(window->bytes(), bytes);
      EXPECT_EQ(window->local(), window->peer(group.rank()));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(window->local()) % 256, 0u);
      const Tensor own = on_host(window->local(), bytes, stream);
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(own.data<uint8_t>()[i], 0) << i;
      }
      const auto* table = reinterpret_cast<const std::byte*>(window->device_peers());
      const Tensor peers = on_host(table, group.size() * 8, stream);
      for (int peer = 0; peer < group.size(); ++peer) {
        EXPECT_EQ(reinterpret_cast<std::byte* const*>(peers.raw())[peer], window->peer(peer));
      }
      // This leaves dirt for the next window, which may get the same memory.
      std::vector<std::byte> dirt(static_cast<size_t>(bytes), std::byte{0x5a});
      if (bytes > 0) {
        copy(Tensor::borrow(dirt.data(), {bytes}, DType::kU8),
             Tensor::borrow(window->local(), {bytes}, DType::kU8, group.device()), stream);
      }
      stream.synchronize();
      group.barrier("next window");
    }
  });
}

TEST_P(CudaGroupTest, KernelsStoreToEveryPeerAndReadWhatPeersStored) {
  constexpr int64_t kWords = 3001;
  constexpr int kRounds = 20;
  run([](Group& group) {
    const int device = group.device().index;
    const Stream stream = Stream::cuda(device);
    load_store_to_peers(device);
    const auto window = group.make_window("window", window_bytes(group.size(), kWords));
    const Tensor received =
        Tensor::empty({group.size(), kWords}, DType::kI32, Device::cuda(device));
    const cuda::MappedMemory missing(sizeof(int), device);
    group.barrier("begin");
    for (int round = 1; round <= kRounds; ++round) {
      // Another rank is late in each round.
      if (round % group.size() == group.rank()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      launch_store_to_peers(
          stream, {window->device_peers(), group.rank(), group.size(), round, kWords,
                   static_cast<uint32_t*>(received.raw()), missing.device_as<int>(), kPatienceNs});
      const Tensor host = to_device(received, Device::cpu(), stream);
      ASSERT_EQ(*missing.host_as<int>(), -1) << "round " << round << ", rank " << group.rank();
      for (int source = 0; source < group.size(); ++source) {
        for (int64_t i = 0; i < kWords; ++i) {
          ASSERT_EQ(static_cast<const uint32_t*>(host.raw())[source * kWords + i],
                    word_of(round, source, group.rank(), i))
              << "round " << round << ", source " << source << ", word " << i;
        }
      }
      group.barrier("next round");  // the words have been read
    }
  });
}

TEST_P(CudaGroupTest, AKernelWhosePeerDoesNotComeGivesUp) {
  if (GetParam().num_ranks < 2) {
    GTEST_SKIP() << "needs a peer";
  }
  run([](Group& group) {
    const int device = group.device().index;
    const Stream stream = Stream::cuda(device);
    const auto window = group.make_window("window", window_bytes(group.size(), 8));
    const Tensor received = Tensor::empty({group.size(), 8}, DType::kI32, Device::cuda(device));
    const cuda::MappedMemory missing(sizeof(int), device);
    if (group.rank() == 0) {
      constexpr int64_t kShortNs = 50'000'000;
      launch_store_to_peers(
          stream, {window->device_peers(), 0, group.size(), 1, 8,
                   static_cast<uint32_t*>(received.raw()), missing.device_as<int>(), kShortNs});
      stream.synchronize();
      EXPECT_GT(*missing.host_as<int>(), 0);
    }
    group.barrier("end");
  });
}

TEST_P(CudaGroupTest, MemoryOfAWindowStaysWhileAPeerHoldsIt) {
  run([](Group& group) {
    const int device = group.device().index;
    const Stream stream = Stream::cuda(device);
    constexpr int64_t kBytes = 1 << 20;
    const int writer = group.size() - 1;
    auto window = group.make_window("window", kBytes);
    if (group.rank() != writer) {
      window.reset();
    }
    group.barrier("given back");
    // If the memory were free, the next windows would get it, and the stores below would be seen.
    const auto next = group.make_window("next", kBytes);
    if (group.rank() == writer) {
      const Tensor ones = Tensor::empty({kBytes}, DType::kU8);
      std::fill_n(ones.data<uint8_t>(), kBytes, uint8_t{1});
      for (int peer = 0; peer < group.size(); ++peer) {
        copy(ones, Tensor::borrow(window->peer(peer), {kBytes}, DType::kU8, group.device()),
             stream);
      }
      stream.synchronize();
    }
    group.barrier("stored");
    const Tensor own = on_host(next->local(), kBytes, stream);
    for (int64_t i = 0; i < kBytes; ++i) {
      ASSERT_EQ(own.data<uint8_t>()[i], 0) << i;
    }
    group.barrier("end");
  });
}

TEST_P(CudaGroupTest, HostCallsAndFailuresAreThoseOfTheHostGroup) {
  run([](Group& group) {
    const int64_t before = group.epoch();
    EXPECT_EQ(all_reduce_max(group, "max", group.rank()), group.size() - 1);
    EXPECT_EQ(group.epoch(), before + 1);
    EXPECT_EQ(group.traffic().inter_node_bytes, 0);
    if (group.size() > 1) {
      EXPECT_GE(group.traffic().intra_node_bytes, 8 * (group.size() - 1));
      EXPECT_THROW(group.make_window("window", 100 + group.rank()), InvalidArgument);
    }
    group.barrier("end");
  });
  if (GetParam().num_ranks < 2) {
    return;
  }
  std::vector<std::string> errors;
  EXPECT_THROW(run_thread_ranks(
                   thread_options(GetParam()),
                   [](Group& group) {
                     if (group.rank() == 1) {
                       throw InvalidArgument("rank 1 has had enough");
                     }
                     group.make_window("window", 64);
                   },
                   &errors),
               InvalidArgument);
  testing::expect_mentions(errors[0], "rank 1 has had enough");
}

INSTANTIATE_TEST_SUITE_P(All, CudaGroupTest, on_gpu_ranks(), gpu_ranks_name);

class CudaNodesTest : public GpuRanksTest {};

TEST_P(CudaNodesTest, PeersOfOtherNodesHaveNoAddress) {
  run([](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    const auto window = group.make_window("window", 64);
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(window->peer(peer) != nullptr, peer / 2 == group.rank() / 2) << peer;
    }
    // The other rank of the node stores this rank's number.
    const int partner = group.rank() ^ 1;
    const auto mark = static_cast<uint8_t>(partner + 1);
    const Tensor marks = Tensor::empty({64}, DType::kU8);
    std::fill_n(marks.data<uint8_t>(), 64, mark);
    copy(marks, Tensor::borrow(window->peer(partner), {64}, DType::kU8, group.device()), stream);
    stream.synchronize();
    group.barrier("stored");
    const Tensor own = on_host(window->local(), 64, stream);
    for (int64_t i = 0; i < 64; ++i) {
      ASSERT_EQ(own.data<uint8_t>()[i], group.rank() + 1);
    }
    group.barrier("end");
  });
}

INSTANTIATE_TEST_SUITE_P(All,
                         CudaNodesTest,
                         ::testing::Values(GpuRanks{"peer", 4, 1, 2},
                                           GpuRanks{"peer", 4, 4, 2},
                                           GpuRanks{"nccl", 4, 4, 2}),
                         gpu_ranks_name);

}  // namespace
}  // namespace moebius
