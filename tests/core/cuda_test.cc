// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/host_memory.h"
#include "core/cuda/words.h"
#include "moebius/deadline.h"
#include "moebius/graph.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "tests/core/cuda_kernels.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

// Uses a device that does not exist: the first if there are none, else the one past the last.
TEST(Cuda, AMissingGpuIsNamed) {
  const int count = cuda_device_count();
  const std::string name = "cuda:" + std::to_string(count) + ": ";
  const std::string reason =
      count == 0 ? name + "no GPU here" : name + "no such GPU, this machine has ";
  expect_mentions(message_of<Error>([&] { expect_usable(Device::cuda(count)); }), {reason});
  expect_mentions(message_of<Error>([&] { cuda_device_info(count); }), {reason});
  expect_mentions(message_of<Error>([&] { Stream::cuda(count); }), {reason});
  expect_mentions(message_of<Error>([&] { Tensor::empty({4}, DType::kF32, Device::cuda(count)); }),
                  {reason});
  EXPECT_THROW(expect_usable(Device::cuda(count)), Unsupported);
  EXPECT_NO_THROW(expect_usable(Device::cpu()));
}

TEST(Cuda, FailedCallsNameCallReasonAndPlace) {
  const auto fail = [] { cuda::check_cuda(cudaErrorInvalidValue, "cudaMemcpyAsync of 7 bytes"); };
  EXPECT_THROW(fail(), CudaError);
  expect_mentions(message_of<Error>(fail), {"cudaMemcpyAsync of 7 bytes", "invalid argument",
                                            "cudaErrorInvalidValue", "cuda_test.cc:"});
  EXPECT_THROW(cuda::check_cuda(cudaErrorMemoryAllocation, "cudaMalloc of 7 bytes"), OutOfMemory);
  EXPECT_NO_THROW(cuda::check_cuda(cudaSuccess, "cudaFree"));
}

using CudaTest = GpuTest;
using CudaPairTest = MultiGpuTest;

// A pattern without a period, so that a shifted or swapped copy differs.
Tensor pattern(int64_t bytes) {
  Tensor tensor = Tensor::empty({bytes}, DType::kU8);
  for (int64_t i = 0; i < bytes; ++i) {
    tensor.data<uint8_t>()[i] = static_cast<uint8_t>((i * i + i / 251) % 256);
  }
  return tensor;
}

void expect_same_bytes(const Tensor& actual, const Tensor& expected) {
  ASSERT_TRUE(actual.device().is_cpu());
  ASSERT_EQ(actual.nbytes(), expected.nbytes());
  EXPECT_EQ(std::memcmp(actual.raw(), expected.raw(), static_cast<size_t>(expected.nbytes())), 0);
}

TEST_F(CudaTest, WordsAreFilledAndCopiedAndNoOthers) {
  const Stream stream = Stream::cuda(0);
  for (const int64_t num_words : {0, 1, 255, 300'000}) {
    const int64_t bytes = 4 * (num_words + 2);  // one word before and one after
    const Tensor from = pattern(bytes);
    const Tensor before = pattern(bytes + 1).slice(1, bytes + 1);
    const Tensor source = to_device(from, Device::cuda(0), stream);
    const Tensor copied = to_device(before.clone(), Device::cuda(0), stream);
    const Tensor filled = to_device(before.clone(), Device::cuda(0), stream);
    cuda::copy_words(copied.bytes() + 4, source.bytes() + 4, num_words, stream.native_handle(), 0);
    cuda::fill_words(filled.bytes() + 4, num_words, 0x01020304u, stream.native_handle(), 0);
    Tensor expected = before.clone();
    std::memcpy(expected.bytes() + 4, from.bytes() + 4, static_cast<size_t>(4 * num_words));
    expect_same_bytes(to_device(copied, Device::cpu(), stream), expected);
    for (int64_t i = 4; i < 4 * (num_words + 1); ++i) {
      expected.data<uint8_t>()[i] = static_cast<uint8_t>(4 - i % 4);
    }
    expect_same_bytes(to_device(filled, Device::cpu(), stream), expected);
  }
}

TEST_F(CudaTest, DeviceIsDescribed) {
  const CudaDeviceInfo info = cuda_device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.major, 9);
  EXPECT_EQ(info.num_sms, cuda::num_sms(0));
  EXPECT_GT(info.memory_bytes, int64_t{8} << 30);
  EXPECT_GE(info.shared_bytes_per_block, 200 * 1024);
  EXPECT_NO_THROW(expect_usable(Device::cuda(0)));
}

TEST_F(CudaTest, CopiesThereAndBackKeepEveryByte) {
  const Stream stream = Stream::cuda(0);
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{4097}, int64_t{3} << 20}) {
    const Tensor host = pattern(bytes);
    const Tensor device = to_device(host, Device::cuda(0), stream);
    EXPECT_EQ(device.device(), Device::cuda(0));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device.raw()) % 256, 0u);
    expect_same_bytes(to_device(device, Device::cpu(), stream), host);
    // Copies a part to an odd address.
    if (bytes > 200) {
      const Tensor moved = Tensor::empty({bytes}, DType::kU8, Device::cuda(0));
      copy(device.slice(7, 107), moved.slice(101, 201), stream);
      expect_same_bytes(to_device(moved.slice(101, 201), Device::cpu(), stream),
                        host.slice(7, 107));
    }
    stream.synchronize();
    expect_same_bytes(to_device(device.clone(), Device::cpu(), stream), host);
  }
}

TEST_F(CudaTest, ZerosAreZeroOverMemoryUsedBefore) {
  const Stream stream = Stream::cuda(0);
  constexpr int64_t kBytes = 1 << 20;
  for (int round = 0; round < 3; ++round) {
    {
      const Tensor dirty = Tensor::empty({kBytes}, DType::kU8, Device::cuda(0));
      launch_fill(stream, dirty.data<uint8_t>(), kBytes, 0xa5);
      stream.synchronize();
    }
    const Tensor zeros = Tensor::zeros({kBytes}, DType::kU8, Device::cuda(0));
    expect_same_bytes(to_device(zeros, Device::cpu(), stream), Tensor::zeros({kBytes}, DType::kU8));
  }
}

TEST_F(CudaTest, ACopyOnTheWrongStreamIsRefused) {
  const Tensor host = pattern(16);
  const Tensor device = Tensor::empty({16}, DType::kU8, Device::cuda(0));
  expect_mentions(message_of<Error>([&] { copy(host, device, Stream::cpu()); }), {"cpu", "cuda:0"});
  expect_mentions(message_of<Error>([&] { copy(host, device.slice(0, 8), Stream::cuda(0)); }),
                  {"[8]", "[16]"});
}

TEST_F(CudaTest, TooLargeAnAllocationSaysSoAndHarmsNothing) {
  const auto fail = [] { Tensor::empty({int64_t{1} << 50}, DType::kU8, Device::cuda(0)); };
  EXPECT_THROW(fail(), OutOfMemory);
  expect_mentions(message_of<Error>(fail), {"1125899906842624 bytes", "cuda:0", "out of memory"});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const Stream stream = Stream::cuda(0);
  expect_same_bytes(
      to_device(to_device(pattern(99), Device::cuda(0), stream), Device::cpu(), stream),
      pattern(99));
}

// A kernel that runs until the host calls let_go().
struct HeldKernel {
  cuda::MappedMemory words{2 * sizeof(int), 0};
  volatile int& started() const { return words.host_as<int>()[0]; }
  volatile int& flag() const { return words.host_as<int>()[1]; }

  explicit HeldKernel(const Stream& stream) {
    launch_wait_for_flag(stream, words.device_as<int>(), words.device_as<int>() + 1);
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(kPatienceMs));
    while (started() == 0 && !deadline.expired()) {
    }
    EXPECT_EQ(started(), 1);
  }
  void let_go() const { flag() = 1; }
};

TEST_F(CudaTest, EventsOrderStreamsAndTellWhenDone) {
  const Stream first = Stream::cuda(0);
  const Stream second = Stream::cuda(0);
  EXPECT_TRUE(Event().is_complete());
  constexpr int64_t kBytes = 1000;
  const Tensor data = Tensor::zeros({kBytes}, DType::kU8, Device::cuda(0));
  const Tensor seen = Tensor::zeros({kBytes}, DType::kU8, Device::cuda(0));
  const HeldKernel held(first);
  launch_fill(first, data.data<uint8_t>(), kBytes, 7);
  const Event filled = first.record();
  second.wait(filled);
  copy(data, seen, second);
  const Event copied = second.record();
  EXPECT_FALSE(filled.is_complete());
  EXPECT_FALSE(copied.is_complete());
  held.let_go();
  Stream::cpu().wait(copied);
  EXPECT_TRUE(filled.is_complete());
  EXPECT_TRUE(copied.is_complete());
  EXPECT_EQ(held.flag(), 2);
  const Tensor host = to_device(seen, Device::cpu(), second);
  for (int64_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(host.data<uint8_t>()[i], 7) << i;
  }
}

// Events that nobody has a handle on any more are used again, also by other threads.
TEST_F(CudaTest, ThreadsRecordEventsWhileAnotherRecordsGraphs) {
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      const Stream streams[2] = {Stream::cuda(0), Stream::cuda(0)};
      while (!is_over) {
        streams[1].wait(streams[0].record());
      }
      streams[1].synchronize();
    });
  }
  const Stream stream = Stream::cuda(0);
  const Stream beside = Stream::cuda(0);
  const Tensor from = Tensor::zeros({64}, DType::kU8, Device::cuda(0));
  const Tensor to = Tensor::empty({64}, DType::kU8, Device::cuda(0));
  for (int i = 0; i < 500; ++i) {
    const Graph graph(stream, [&] {
      for (int fork = 0; fork < 8; ++fork) {
        beside.wait(stream.record());
        copy(from, to, beside);
        stream.wait(beside.record());
      }
    });
    graph.launch();
  }
  is_over = true;
  for (std::thread& other : others) {
    other.join();
  }
  stream.synchronize();
}

TEST_F(CudaTest, AWrappedStreamIsTheCallers) {
  cudaStream_t mine = nullptr;
  cuda::check_cuda(cudaStreamCreate(&mine), "cudaStreamCreate");
  {
    const Stream stream = Stream::wrap_cuda(mine, 0);
    EXPECT_EQ(stream.native_handle(), mine);
    EXPECT_EQ(stream.device(), Device::cuda(0));
    expect_same_bytes(
        to_device(to_device(pattern(77), Device::cuda(0), stream), Device::cpu(), stream),
        pattern(77));
  }
  EXPECT_EQ(cudaStreamSynchronize(mine), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(mine), cudaSuccess);
}

// Ranks on one GPU rely on this: none of these calls waits for the kernel of another rank.
TEST_F(CudaTest, MemoryComesAndGoesWhileAKernelRuns) {
  const Stream held_stream = Stream::cuda(0);
  const Stream stream = Stream::cuda(0);
  cuda::MappedMemory mapped(sizeof(int), 0);
  mapped.host_as<int>()[0] = 7;
  const std::byte* used = mapped.host();
  const HeldKernel held(held_stream);
  mapped = {};
  mapped = cuda::MappedMemory(sizeof(int), 0);
  EXPECT_EQ(mapped.host(), used);
  EXPECT_EQ(mapped.host_as<int>()[0], 0);
  for (int round = 0; round < 3; ++round) {
    const Tensor small = Tensor::zeros({1000}, DType::kU8, Device::cuda(0));
    // More than the pool holds, so that the driver has to allocate and map memory.
    const Tensor large =
        Tensor::empty({(round + 1) * (int64_t{256} << 20)}, DType::kU8, Device::cuda(0));
    launch_fill(stream, large.data<uint8_t>(), 1000, 3);
    expect_same_bytes(to_device(small, Device::cpu(), stream), Tensor::zeros({1000}, DType::kU8));
  }
  held.let_go();
  held_stream.synchronize();
  EXPECT_EQ(held.flag(), 2) << "something above waited until the kernel gave up";
}

void expect_kernels_meet(bool is_cooperative) {
  const Stream streams[2] = {Stream::cuda(0), Stream::cuda(0)};
  const Tensor words = Tensor::zeros({4}, DType::kI32, Device::cuda(0));
  int* at = words.data<int>();
  launch_meet(streams[0], is_cooperative, at, at + 1, at + 2);
  launch_meet(streams[1], is_cooperative, at + 1, at, at + 3);
  streams[0].synchronize();
  streams[1].synchronize();
  const Tensor host = to_device(words, Device::cpu(), streams[0]);
  EXPECT_EQ(host.data<int32_t>()[2], 1);
  EXPECT_EQ(host.data<int32_t>()[3], 1);
}

TEST_F(CudaTest, KernelsOfTwoStreamsRunSideBySide) {
  expect_kernels_meet(false);
}

TEST_F(CudaTest, CooperativeKernelsOfTwoStreamsRunSideBySide) {
  expect_kernels_meet(true);
}

TEST_F(CudaTest, AMultiplyAndAnAddRoundTwice) {
  constexpr int64_t kCount = 4096;
  const Stream stream = Stream::cuda(0);
  Tensor in[3];
  Tensor device[3];
  for (int t = 0; t < 3; ++t) {
    in[t] = Tensor::empty({kCount}, DType::kF32);
    for (int64_t i = 0; i < kCount; ++i) {
      in[t].data<float>()[i] = 1.0f / static_cast<float>(3 + i * (t + 1)) - (t == 2 ? 0.1f : 0.0f);
    }
    device[t] = to_device(in[t], Device::cuda(0), stream);
  }
  const Tensor out = Tensor::empty({kCount}, DType::kF32, Device::cuda(0));
  launch_multiply_add(stream, device[0].data<float>(), device[1].data<float>(),
                      device[2].data<float>(), out.data<float>(), kCount);
  const Tensor host = to_device(out, Device::cpu(), stream);
  for (int64_t i = 0; i < kCount; ++i) {
    const float product = in[0].data<float>()[i] * in[1].data<float>()[i];
    ASSERT_EQ(host.data<float>()[i], product + in[2].data<float>()[i]) << i;
  }
}

TEST_F(CudaPairTest, CopiesBetweenGpusKeepEveryByte) {
  const Stream streams[2] = {Stream::cuda(0), Stream::cuda(1)};
  constexpr int64_t kBytes = (1 << 20) + 13;
  const Tensor host = pattern(kBytes);
  const Tensor first = to_device(host, Device::cuda(0), streams[0]);
  streams[0].synchronize();
  const Tensor second = to_device(first, Device::cuda(1), streams[1]);
  EXPECT_EQ(second.device(), Device::cuda(1));
  expect_same_bytes(to_device(second, Device::cpu(), streams[1]), host);
  // This copy is on the stream of the sender.
  const Tensor third = Tensor::zeros({kBytes}, DType::kU8, Device::cuda(1));
  copy(first, third, streams[0]);
  streams[0].synchronize();
  expect_same_bytes(to_device(third, Device::cpu(), streams[1]), host);
}

}  // namespace
}  // namespace moebius
