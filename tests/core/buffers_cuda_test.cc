// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory, streams and events on a GPU that belong to the caller.
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/host_memory.h"
#include "core/dlpack_abi.h"
#include "core/ordered_lease.h"
#include "moebius/allocator.h"
#include "moebius/dlpack.h"
#include "moebius/graph.h"
#include "tests/core/cuda_kernels.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

// Memory of the device's default pool, counted.
class CountingGpuAllocator final : public Allocator {
 public:
  void* allocate(int64_t bytes, int64_t, Device device, void* stream) override {
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, device.index);
    if (is_full) {
      return nullptr;
    }
    void* data = nullptr;
    EXPECT_EQ(cudaMallocAsync(&data, static_cast<size_t>(bytes), cuda::as_stream(stream)),
              cudaSuccess);
    ++num_allocations;
    now += bytes;
    return data;
  }
  void deallocate(void* data, int64_t bytes, Device, void* stream) noexcept override {
    now -= bytes;
    EXPECT_EQ(cudaFreeAsync(data, cuda::as_stream(stream)), cudaSuccess);
  }
  std::atomic<bool> is_full{false};
  std::atomic<int64_t> num_allocations{0};
  std::atomic<int64_t> now{0};
};

class GpuBuffers : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    set_allocator(device, allocator);
  }
  void TearDown() override { set_allocator(device, nullptr); }

  const Device device = Device::cuda(0);
  const std::shared_ptr<CountingGpuAllocator> allocator = std::make_shared<CountingGpuAllocator>();
};

Tensor numbers(int64_t count) {
  const Tensor tensor = Tensor::empty({count}, DType::kF32);
  std::iota(tensor.data<float>(), tensor.data<float>() + count, 0.0f);
  return tensor;
}

TEST_F(GpuBuffers, TensorsAndScratchComeFromTheAllocator) {
  const MemoryStatistics before = memory_statistics(device);
  {
    const Stream stream = Stream::cuda(0);
    const Tensor t = Tensor::zeros({1000}, DType::kF32, device);
    EXPECT_EQ(allocator->now, 4000);
    auto scratch = allocate_on(5000, stream);
    const void* first = scratch.get();
    EXPECT_EQ(allocator->num_allocations, 2);
    scratch.reset();
    scratch = allocate_on(5000, stream);  // the stream has kept it
    EXPECT_EQ(scratch.get(), first);
    const auto more = allocate_on(5000, stream);
    EXPECT_NE(more.get(), first);
    EXPECT_EQ(allocator->num_allocations, 3);
    EXPECT_EQ(memory_statistics(device).num_allocations, before.num_allocations + 3);
    scratch.reset();
    const int64_t held = allocator->now;
    trim_memory(device);
    EXPECT_LT(allocator->now, held);
    EXPECT_EQ(memory_statistics(device).bytes, before.bytes + allocator->now);
  }
  EXPECT_EQ(allocator->now, 0);
  EXPECT_EQ(memory_statistics(device).bytes, before.bytes);
}

TEST_F(GpuBuffers, AFullAllocatorIsAnError) {
  allocator->is_full = true;
  expect_mentions(message_of<Error>([&] { Tensor::empty({1000}, DType::kF32, device); }),
                  {"out of memory", "4000 bytes", "cuda:0"});
  const Stream stream = Stream::cuda(0);
  expect_mentions(message_of<Error>([&] { allocate_on(1 << 20, stream); }), {"cuda:0", "bytes"});
  allocator->is_full = false;
  EXPECT_NO_THROW(Tensor::empty({1000}, DType::kF32, device));
}

TEST_F(GpuBuffers, ARecordedStreamDelaysTheRelease) {
  const Stream consumer = Stream::cuda(0);
  const cuda::MappedMemory flags(2 * sizeof(int), 0);
  auto* const started = flags.host_as<std::atomic<int>>();
  auto* const flag = started + 1;
  Tensor t = Tensor::zeros({1000}, DType::kF32, device);
  const Tensor part = t.slice(0, 10);  // made before, so it says nothing of the stream
  t.record_stream(consumer);
  launch_wait_for_flag(consumer, flags.device_as<int>(), flags.device_as<int>() + 1);
  t = Tensor();
  EXPECT_EQ(allocator->now, 4000);
  Tensor other = Tensor::zeros({10}, DType::kF32, device);  // looks for what is done
  EXPECT_EQ(allocator->now, 4040);
  flag->store(1);
  consumer.synchronize();
  EXPECT_EQ(flag->load(), 2);
  other = Tensor::zeros({10}, DType::kF32, device);
  EXPECT_EQ(allocator->now, 4040);  // `part` still has it
}

TEST_F(GpuBuffers, ARecordedTensorIsReleasedWhenItsStreamsAreDone) {
  const Stream one = Stream::cuda(0);
  const Stream two = Stream::cuda(0);
  Tensor t = Tensor::zeros({1000}, DType::kF32, device);
  const cuda::MappedMemory flags(4 * sizeof(int), 0);
  auto* const words = flags.host_as<std::atomic<int>>();
  t.record_stream(one);
  t.record_stream(two);
  launch_wait_for_flag(one, flags.device_as<int>(), flags.device_as<int>() + 1);
  launch_wait_for_flag(two, flags.device_as<int>() + 2, flags.device_as<int>() + 3);
  t = Tensor();
  words[1].store(1);
  one.synchronize();
  trim_memory(device);
  EXPECT_EQ(allocator->now, 4000);
  words[3].store(1);
  two.synchronize();
  trim_memory(device);  // releases what held on for one, then for the other
  trim_memory(device);
  EXPECT_EQ(allocator->now, 0);
}

// Two streams that use memory which was lent for calls on the first one.
TEST_F(GpuBuffers, LentMemoryIsUsedAgainInTheOrderOfItsStream) {
  const Stream one = Stream::cuda(0);
  const Stream two = Stream::cuda(0);
  const cuda::MappedMemory flags(4 * sizeof(int), 0);
  auto* const words = flags.host_as<std::atomic<int>>();
  const auto memory = std::make_shared<Tensor>(Tensor::zeros({1000}, DType::kF32, device));
  OrderedLease lease(memory);
  const auto lend = [&](const Stream& stream) {
    return Tensor::share(lease.lend(stream), memory->raw(), {1000}, DType::kF32, device);
  };
  Tensor t = lend(one);
  t.record_stream(one);
  launch_wait_for_flag(one, flags.device_as<int>(), flags.device_as<int>() + 1);
  t = Tensor();
  EXPECT_FALSE(lease.is_taken());
  EXPECT_FALSE(lease.is_done());
  t = lend(one);  // waits for nothing
  t.record_stream(one);
  t = Tensor();
  t = lend(two);  // waits for the work of the first stream
  const Event after = two.record();
  EXPECT_FALSE(after.is_complete());
  words[1].store(1);
  after.synchronize();
  EXPECT_EQ(words[1].load(), 2);
  // Tensors that another stream uses are given back after its work.
  Tensor same = t;
  t.record_stream(one);
  same.record_stream(one);
  launch_wait_for_flag(one, flags.device_as<int>() + 2, flags.device_as<int>() + 3);
  t = Tensor();
  same = Tensor();
  EXPECT_TRUE(lease.is_taken());
  words[3].store(1);
  one.synchronize();
  trim_memory(device);
  EXPECT_FALSE(lease.is_taken());
}

TEST_F(GpuBuffers, MemoryOfTheHostWaitsForAStreamToo) {
  const Stream stream = Stream::cuda(0);
  bool is_released = false;
  std::vector<float> data(100, 2.0f);
  Tensor t = Tensor::share(std::shared_ptr<void>(data.data(), [&](void*) { is_released = true; }),
                           data.data(), {100}, DType::kF32);
  const cuda::MappedMemory flags(2 * sizeof(int), 0);
  auto* const words = flags.host_as<std::atomic<int>>();
  launch_wait_for_flag(stream, flags.device_as<int>(), flags.device_as<int>() + 1);
  t.record_stream(stream);
  t = Tensor();
  EXPECT_FALSE(is_released);
  words[1].store(1);
  stream.synchronize();
  trim_memory(Device::cpu());
  EXPECT_TRUE(is_released);
}

TEST_F(GpuBuffers, ForeignStreamsAndEventsAreUsedAndLeftAlone) {
  cudaStream_t raw_stream = nullptr;
  cudaEvent_t raw_event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&raw_stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&raw_event, cudaEventDisableTiming), cudaSuccess);
  {
    const Stream foreign = Stream::wrap_cuda(raw_stream, 0);
    EXPECT_EQ(foreign.native_handle(), raw_stream);
    const Event event = Event::wrap_cuda(raw_event, 0);
    EXPECT_EQ(event.native_handle(), raw_event);
    EXPECT_TRUE(event.is_complete());  // never recorded
    const cuda::MappedMemory flags(2 * sizeof(int), 0);
    auto* const words = flags.host_as<std::atomic<int>>();
    launch_wait_for_flag(foreign, flags.device_as<int>(), flags.device_as<int>() + 1);
    ASSERT_EQ(cudaEventRecord(raw_event, raw_stream), cudaSuccess);
    EXPECT_FALSE(event.is_complete());
    const Stream ours = Stream::cuda(0);
    ours.wait(event);
    const Tensor t = Tensor::zeros({4}, DType::kU8, device);
    launch_fill(ours, t.data<uint8_t>(), 4, 7);
    const Event filled = ours.record();
    // And the other way: foreign code waits for an event of ours.
    ASSERT_EQ(cudaStreamWaitEvent(raw_stream, static_cast<cudaEvent_t>(filled.native_handle()), 0),
              cudaSuccess);
    EXPECT_FALSE(filled.is_complete());
    words[1].store(1);
    foreign.synchronize();
    event.synchronize();
    EXPECT_TRUE(filled.is_complete());
    EXPECT_EQ(to_device(t, Device::cpu(), foreign).data<uint8_t>()[3], 7);
  }
  EXPECT_EQ(cudaStreamQuery(raw_stream), cudaSuccess);  // both are still there
  EXPECT_EQ(cudaEventQuery(raw_event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(raw_event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(raw_stream), cudaSuccess);
  expect_mentions(message_of([] { Event::wrap_cuda(nullptr, 0); }), "null");
}

TEST_F(GpuBuffers, TheLegacyDefaultStreamIsNull) {
  const Stream legacy = Stream::wrap_cuda(nullptr, 0);
  EXPECT_TRUE(legacy.device().is_cuda());
  EXPECT_EQ(legacy.native_handle(), nullptr);
  const Tensor t = Tensor::zeros({100}, DType::kU8, device);
  launch_fill(legacy, t.data<uint8_t>(), 100, 9);
  const auto scratch = allocate_on(100, legacy);
  EXPECT_NE(scratch, nullptr);
  const Event event = legacy.record();
  event.synchronize();
  EXPECT_EQ(to_device(t, Device::cpu(), legacy).data<uint8_t>()[99], 9);
}

TEST_F(GpuBuffers, ScratchInsideAGraphIsTheGraphs) {
  const Stream stream = Stream::cuda(0);
  const Tensor t = Tensor::zeros({100}, DType::kU8, device);
  const auto work = [&] {
    const auto scratch = allocate_on(100, stream);
    launch_fill(stream, static_cast<uint8_t*>(scratch.get()), 100, 1);
    launch_fill(stream, t.data<uint8_t>(), 100, 5);
  };
  work();
  const int64_t before = allocator->num_allocations;
  const Graph graph(stream, work);
  EXPECT_EQ(allocator->num_allocations, before);
  graph.launch();
  graph.launch();
  EXPECT_EQ(to_device(t, Device::cpu(), stream).data<uint8_t>()[50], 5);
}

TEST_F(GpuBuffers, DLPackKeepsTensorsOnTheGpu) {
  const Stream stream = Stream::cuda(0);
  const Tensor t = to_device(numbers(24), device, stream);
  const Tensor back = from_dlpack(to_dlpack_versioned(t));
  EXPECT_EQ(back.raw(), t.raw());
  EXPECT_EQ(back.device(), device);

  // Two columns of six, and a transposed matrix: copies on a stream or at once.
  for (const bool has_stream : {true, false}) {
    for (const bool is_transposed : {true, false}) {
      int64_t shape[] = {is_transposed ? 6 : 4, is_transposed ? 4 : 2};
      int64_t strides[] = {is_transposed ? 1 : 6, is_transposed ? 6 : 1};
      DLManagedTensorVersioned managed{};
      managed.version = {1, 1};
      managed.dl_tensor.data = t.raw();
      managed.dl_tensor.device = {kDLCUDA, 0};
      managed.dl_tensor.ndim = 2;
      managed.dl_tensor.dtype = {kDLFloat, 32, 1};
      managed.dl_tensor.shape = shape;
      managed.dl_tensor.strides = strides;
      stream.synchronize();
      DLPackImport import;
      if (has_stream) {
        import.stream = stream;
      }
      const Tensor copied = from_dlpack(&managed, import);
      EXPECT_TRUE(copied.is_read_only());
      const Tensor here = to_device(copied, Device::cpu(), stream);
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) {
          EXPECT_EQ(here.data<float>()[i * shape[1] + j],
                    static_cast<float>(i * strides[0] + j * strides[1]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius
