// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loading keeps one copy of the weights: the peak of the resident memory, which includes mapped
// pages of the file, stays near the size of the result.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "checkpoint/make_model.h"
#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/process_memory.h"

namespace moebius::testing {
namespace {

class LoadMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(LoadMemory, PeakIsOneCopyOfTheWeights) {
  setenv("MOEBIUS_THREADS", "2", 1);  // each thread holds a tensor while it copies
  const std::string quant = GetParam() == std::string_view("fp8_w8a8") ? GetParam() : "auto";
  nlohmann::json config = {{"hidden_size", 1024},           {"intermediate_size", 1024},
                           {"moe_intermediate_size", 1024}, {"num_experts_per_tok", 1},
                           {"num_hidden_layers", 1},        {"num_local_experts", 24},
                           {"dtype", "bfloat16"},           {"model_type", "qwen3_moe"}};
  if (GetParam() == std::string_view("transposed")) {
    config["model_type"] = "llama4_text";
  } else if (GetParam() == std::string_view("int8")) {
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", "int-quantized"},
        {"config_groups",
         {{"group_0", {{"weights", {{"num_bits", 8}, {"strategy", "channel"}}}}}}}};
  } else if (GetParam() == std::string_view("gptq") || GetParam() == std::string_view("awq")) {
    config["num_local_experts"] = 48;
    config["quantization_config"] = {
        {"quant_method", GetParam()}, {"bits", 4}, {"group_size", 128}, {"sym", false}};
  }
  const TempDir dir;
  checkpoint::write_model(config, "x", 1, dir.path(), int64_t{1} << 40);
  const Checkpoint checkpoint(dir.path());
  checkpoint.load_layer(0, {.quant = quant, .ep_size = 24});  // starts threads and fills tables
  if (!reset_peak()) {
    GTEST_SKIP() << "the peak of the resident memory cannot be reset here";
  }
  const int64_t before = status_bytes("VmRSS");
  const MoeLayerWeights weights = checkpoint.load_layer(0, {.quant = quant});
  const int64_t peak = status_bytes("VmHWM") - before;
  const int64_t size = weights.experts.w1.nbytes() + weights.experts.w2.nbytes();
  ASSERT_GT(size, 70'000'000);
  RecordProperty("weight_bytes", std::to_string(size));
  RecordProperty("peak_bytes", std::to_string(peak));
  EXPECT_GT(peak, size * 9 / 10);  // otherwise nothing was measured
  // Each thread may hold a tensor, and the kernel maps pages around those that are touched.
  EXPECT_LT(peak, size + size / 8 + (32 << 20)) << "weights are " << size;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LoadMemory,
    ::testing::Values("modules", "transposed", "int8", "gptq", "awq", "fp8_w8a8"),
    [](const auto& test) { return test.param; });

}  // namespace
}  // namespace moebius::testing
