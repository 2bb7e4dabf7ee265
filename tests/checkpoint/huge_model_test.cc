// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A layer of a model of 302 GB is loaded in the time and the memory of the layer.
#include "tests/checkpoint/huge_model.h"

#include <sys/stat.h>

#include <chrono>

#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/process_memory.h"

namespace moebius::testing {
namespace {

int64_t bytes_on_disk(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return int64_t{info.st_blocks} * 512;
}

TEST(HugeModel, TouchesOnlyTheLayerThatIsAskedFor) {
  setenv("MOEBIUS_THREADS", "2", 1);  // each thread holds a tensor while it copies
  const TempDir dir;
  if (const auto reason = HugeModel::write(dir.path())) {
    GTEST_SKIP() << *reason;
  }
  EXPECT_GT(HugeModel::kDataBytes, int64_t{300'000'000'000});
  if (bytes_on_disk(dir / "model.safetensors") > 2 * HugeModel::kLayerBytes) {
    GTEST_SKIP() << "the file system stores holes as zeros";
  }
  const bool measures_memory = reset_peak();
  const int64_t before = status_bytes("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint(dir.path());
  const MoeLayerWeights weights = checkpoint.load_layer(HugeModel::kRealLayer);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  EXPECT_EQ(checkpoint.tensors().bytes_read(), HugeModel::kLayerBytes);
  const int64_t gate = HugeModel::kExperts * HugeModel::kHidden;
  const auto* w1 = static_cast<const uint16_t*>(weights.experts.w1.raw());
  for (int64_t i = 0; i < weights.experts.w1.numel(); i += 997) {
    ASSERT_EQ(w1[i], HugeModel::value(gate + i)) << i;
  }
  // The header has 4 MB, and reading it is most of the time.  A loader that looked at all layers
  // would read for minutes.
  EXPECT_LT(seconds.count(), 20.0);
  if (measures_memory) {
    const int64_t peak = status_bytes("VmHWM") - before;
    RecordProperty("peak_bytes", std::to_string(peak));
    EXPECT_LT(peak, 2 * HugeModel::kLayerBytes + (48 << 20));  // weights, pages, header, threads
  }
}

}  // namespace
}  // namespace moebius::testing
