// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Replaces functions that need CUDA or NCCL in a build without them, if other code calls them.  All
// but a few throw Unsupported.  Only this file knows what several stages lack; its object belongs
// to core, which every program links.
#include "comm/device/meeting.h"
#include "comm/device/sum_parts.h"
#include "comm/group/cuda/cuda_group.h"
#include "comm/high_throughput/cuda/make_transport.h"
#include "comm/low_latency/cuda/make_transport.h"
#include "core/cuda/runtime.h"
#include "core/cuda/slot_order.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/rows/permute.h"
#include "experts/cuda/rows/weighted_sum.h"
#include "layer/rows/cuda/rows.h"
#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/row_arrivals.h"
#include "quant/cuda/batched.h"
#include "router/cuda/count.h"

namespace moebius {

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&&, Device, void*) {
  throw Unsupported("group nccl: " + why_no_nccl());
}
std::unique_ptr<Group> make_nccl_group(void*, std::chrono::milliseconds) {
  throw Unsupported("group nccl: " + why_no_nccl());
}
std::string why_no_nccl() {
  return "built without NCCL";
}

#ifndef MOEBIUS_HAVE_CUDA

namespace {

[[noreturn]] void refuse(int index) {
  throw Unsupported(to_string(Device::cuda(index)) + ": built without CUDA");
}
[[noreturn]] void refuse(const Tensor& tensor) {
  refuse(tensor.device().index);
}

}  // namespace

namespace comm {

std::unique_ptr<DeviceProvider> make_ipc_access(Group&, Device device) {
  refuse(device.index);
}

int64_t Meeting::window_bytes(int) {
  return 0;
}
Meeting::Meeting(Group&, Device device, std::unique_ptr<Window>) {
  refuse(device.index);
}
Meeting::~Meeting() = default;
void Meeting::enqueue(const Stream& stream) {
  refuse(stream.device().index);
}
bool Meeting::has_failed() const {
  return false;
}

}  // namespace comm

namespace cuda {

int device_count() {
  return 0;
}
CudaDeviceInfo device_info(int index) {
  refuse(index);
}
void expect_usable(int index) {
  refuse(index);
}
void prepare_for_shared_gpus() {}
int hardware_queues() {
  return 0;
}
void make_current(int index) {
  refuse(index);
}
std::shared_ptr<Allocator> pool_allocator(int index) {
  refuse(index);
}
std::shared_ptr<void> allocate_from_allocator(int64_t, int index) {
  refuse(index);
}
std::shared_ptr<void> allocate_in_graph(int64_t, void*, int index) {
  refuse(index);
}
void on_device(int index, const std::function<void()>&) {
  refuse(index);
}
void give_back_after(void*, int index) {
  refuse(index);
}
std::shared_ptr<void> allocate_shared(int64_t, int index, std::span<const int>) {
  refuse(index);
}
void give_back_unused_memory(int index) {
  refuse(index);
}
void copy(void*, const void*, int64_t, void*, int index) {
  refuse(index);
}
void copy_between(void*, int, const void*, int, int64_t, void*, int index) {
  refuse(index);
}
void copy_rows(void*, const void*, int64_t, int64_t, int64_t, void*, int index) {
  refuse(index);
}
void fill_zero(void*, int64_t, void*, int index) {
  refuse(index);
}
void copy_now(void*, const void*, int64_t, int index) {
  refuse(index);
}
void fill_zero_now(void*, int64_t, int index) {
  refuse(index);
}
std::shared_ptr<void> make_stream(int index) {
  refuse(index);
}
void synchronize_stream(void*, int index) {
  refuse(index);
}
std::shared_ptr<void> record_event(void*, int index, bool) {
  refuse(index);
}
void wait_event(void*, int index, void*) {
  refuse(index);
}
void synchronize_event(void*) {
  refuse(0);
}
bool is_event_complete(void*) {
  refuse(0);
}
std::chrono::nanoseconds elapsed(void*, void*) {
  refuse(0);
}
std::shared_ptr<void> capture(void*, int index, const std::function<void()>&) {
  refuse(index);
}
void launch_graph(void*, void*, int index) {
  refuse(index);
}
uint64_t capture_id(void*, int index) {
  refuse(index);
}
void activate(
    const ActivationSpec&, const RowGroups&, const Tensor& input, const Tensor&, const Stream&) {
  refuse(input);
}

}  // namespace cuda

// Without CUDA there are no waves, so there is nothing to wait for.
void RowArrivals::await_ids(const Stream&) const {}

namespace quant {

void cuda_quantize_batched(const BatchedQuantize& args, const Stream&) {
  refuse(args.x);
}

}  // namespace quant

namespace router {

void cuda_count_expert_tokens(const Tensor& ids, const Tensor&, const Tensor&, const Stream&) {
  refuse(ids);
}

}  // namespace router

namespace comm {

void launch_sum_parts(const RankParts&, const Tensor&, const Stream&) {
  throw Unsupported("sum of the ranks' parts on a GPU: built without CUDA");
}

std::unique_ptr<HighThroughput::State> make_cuda_high_throughput(Group&,
                                                                 ExpertPlacement,
                                                                 const DispatchConfig&,
                                                                 const DispatchConfig&) {
  throw Unsupported("high throughput on a GPU: built without CUDA");
}

}  // namespace comm

int64_t cuda_low_latency_bytes(const LowLatencyOptions&, int, int64_t) {
  throw Unsupported("low latency on GPUs: built without CUDA");
}

std::unique_ptr<LowLatency::State> make_cuda_low_latency(Group&,
                                                         ExpertPlacement,
                                                         const LowLatencyOptions&,
                                                         std::unique_ptr<Window>) {
  throw Unsupported("low latency on a GPU: built without CUDA");
}

void cuda_order_slots(const CudaOrderArgs& args, const Stream&) {
  refuse(args.ids);
}
void cuda_permute_rows(const CudaPermuteArgs& args, const Stream&) {
  refuse(args.x);
}
void cuda_weighted_sum(const CudaSumArgs& args, const Stream&) {
  refuse(args.rows);
}
void cuda_batched_sum(const CudaSumArgs& args, int64_t, const Stream&) {
  refuse(args.rows);
}
void cuda_copy_rows(const Tensor&, const Tensor& out, const Stream&) {
  refuse(out);
}
void cuda_add_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  refuse(out);
}
void cuda_scale_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  refuse(out);
}
void cuda_gate_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  refuse(out);
}
void cuda_clear_rows_after(const Tensor& rows, const Tensor&, const Stream&) {
  refuse(rows);
}
void cuda_fill(const Tensor& tensor, uint32_t, const Stream&) {
  refuse(tensor);
}
void cuda_fill(const Tensor& tensor, const Tensor&, const Stream&) {
  refuse(tensor);
}
void cuda_copy_counts(const Tensor& from, const Tensor&, const Stream&) {
  refuse(from);
}
void cuda_map_ids(const Tensor& ids, const Tensor&, const Tensor&, const Stream&) {
  refuse(ids);
}
void cuda_count_rows(const Tensor& row_of_slot, int64_t, const Tensor&, const Stream&) {
  refuse(row_of_slot);
}
void cuda_join_row_scales(const Quantized&, const Tensor& joined, const Stream&) {
  refuse(joined);
}
void cuda_count_selections(const Tensor& ids, const Tensor&, const Stream&) {
  refuse(ids);
}
void cuda_add_counts(const Tensor& counts, const Tensor&, const Stream&) {
  refuse(counts);
}

#endif

}  // namespace moebius
