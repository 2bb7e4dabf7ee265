// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups over a communicator of NCCL that the caller has made.
#include <gtest/gtest.h>

#include <vector>

#include "comm/group/nccl/library.h"
#include "core/cuda/runtime.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

class AdoptedNccl : public GpuTest {
 protected:
  // A blocking communicator of this process alone, as a program without us makes it.
  void SetUp() override {
    need_gpus(1);
    if (IsSkipped()) {
      return;
    }
    if (!why_no_nccl().empty()) {
      GTEST_SKIP() << "skipped: " << why_no_nccl();
    }
    const comm::NcclLibrary& nccl = comm::nccl_library();
    cuda::make_current(0);
    ncclUniqueId id{};
    ASSERT_EQ(nccl.get_unique_id(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ASSERT_EQ(nccl.comm_init_rank_config(&comm_, 1, id, 0, &config), ncclSuccess);
  }
  void TearDown() override {
    if (comm_ != nullptr) {
      EXPECT_EQ(comm::nccl_library().comm_destroy(comm_), ncclSuccess);
    }
  }

  ncclComm_t comm_ = nullptr;
};

void expect_to_work(Group& group) {
  EXPECT_EQ(group.name(), "nccl");
  const auto window = group.make_window("window", 4096);
  EXPECT_EQ(window->peer(0), window->local());
  const Stream stream = Stream::cuda(0);
  const Tensor in = to_device(Tensor::zeros({3, 5}, DType::kF32), group.device(), stream);
  const Tensor out = Tensor::empty({3, 5}, DType::kF32, group.device());
  const std::vector<int64_t> counts = {3};
  all_gatherv(group, "gather", in, counts, out, stream);
  EXPECT_EQ(get_float(to_device(out, Device::cpu(), stream), 14), 0.0f);
}

TEST_F(AdoptedNccl, ServesAGroupAndStaysTheCallers) {
  expect_to_work(*make_nccl_group(comm_, std::chrono::seconds(20)));
  expect_to_work(*make_nccl_group(std::move(make_thread_groups(1)[0]), Device::cuda(0), comm_));
}

TEST_F(AdoptedNccl, OfOtherRanksIsRefused) {
  auto groups = make_thread_groups(2);
  expect_mentions(message_of<InvalidArgument>(
                      [&] { make_nccl_group(std::move(groups[0]), Device::cuda(0), comm_); }),
                  "ranks of the NCCL communicator is 1, expected 2");
  EXPECT_NE(groups[0], nullptr);  // it is still the caller's
}

}  // namespace
}  // namespace moebius::testing
