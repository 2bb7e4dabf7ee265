// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of runtime.h, and of public headers, in a build without CUDA.
#include "core/cuda/runtime.h"
#include "moebius/error.h"
#include "moebius/row_arrivals.h"

namespace moebius::cuda {

namespace {

[[noreturn]] void refuse(int index) {
  throw Unsupported(to_string(Device::cuda(index)) + ": built without CUDA");
}

}  // namespace

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
std::shared_ptr<void> allocate(int64_t, int index) {
  refuse(index);
}
std::shared_ptr<void> allocate_on(int64_t, void*, int index) {
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

}  // namespace moebius::cuda

// Rows come all at once.
void moebius::RowArrivals::await_ids(const Stream&) const {}
