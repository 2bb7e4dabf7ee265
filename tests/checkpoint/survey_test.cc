// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/survey.h"

#include <set>

#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {
namespace {

using checkpoint::BlockSurvey;
using checkpoint::ExpertBlock;

TEST(Survey, FindsBlocksOfExpertsByNamesAlone) {
  const std::vector<std::string> names = {
      "model.layers.10.mlp.experts.0.up_proj.weight",
      "model.layers.2.block_sparse_moe.experts.gate_up_proj",
      "model.layers.2.block_sparse_moe.experts.down_proj",
      "model.layers.3.experts.down_proj",
      "model.layers.4.mlp.shared_experts.up_proj.weight",
      "model.layers.5.mlp.experts_bias",
      "thinker.model.layers.2.mlp.experts.7.down_proj.weight",
      "experts.0.weight",
      "model.experts.0.weight",
      "model.layers.99999999999999999999.mlp.experts.0.w1",
      "model.layers.7.mlp.experts",
  };
  EXPECT_EQ(checkpoint::find_expert_blocks(names),
            (std::vector<ExpertBlock>{{2, "model.layers.2.block_sparse_moe"},
                                      {2, "thinker.model.layers.2.mlp"},
                                      {3, "model.layers.3"},
                                      {7, "model.layers.7.mlp"},
                                      {10, "model.layers.10.mlp"}}));
}

class SurveyOfFile : public ::testing::Test {
 protected:
  BlockSurvey survey(const std::string& prefix) {
    const fs::path path = dir_ / "x.safetensors";
    write_safetensors(path, tensors_);
    const Safetensors files(path);
    return checkpoint::survey_block(files, files.names(), prefix);
  }
  void add(const std::string& name, Shape shape, DType dtype) {
    tensors_.emplace_back(name, Tensor::zeros(shape, dtype));
  }
  void add_experts(const std::string& prefix, int num_experts) {
    for (int e = 0; e < num_experts; ++e) {
      add(prefix + ".experts." + std::to_string(e) + ".w.weight", {8, 4}, DType::kF8E4M3);
      add(prefix + ".experts." + std::to_string(e) + ".w.weight_scale", {8}, DType::kF32);
    }
  }

  TempDir dir_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

TEST_F(SurveyOfFile, CountsBytesExpertsAndDtypes) {
  add_experts("l.0.mlp", 5);
  add("l.0.mlp.gate.weight", {5, 4}, DType::kBF16);
  add("l.0.mlpx.weight", {100}, DType::kF32);
  const BlockSurvey block = survey("l.0.mlp");
  EXPECT_EQ(block.num_tensors, 11);
  EXPECT_EQ(block.bytes, 5 * (32 + 32) + 40);
  EXPECT_EQ(block.num_experts, 5);
  EXPECT_EQ(block.dtypes, "F32, F8_E4M3");
  EXPECT_TRUE(block.unlike.empty());
  EXPECT_EQ(block.problem, "");
}

TEST_F(SurveyOfFile, TakesTheFirstDimensionOfFusedTensorsForTheNumberOfExperts) {
  add("l.0.mlp.experts.gate_up_proj", {3, 4, 4}, DType::kBF16);
  EXPECT_EQ(survey("l.0.mlp").num_experts, 3);
}

TEST_F(SurveyOfFile, NamesExpertsThatAreUnlikeMost) {
  add_experts("l.0.mlp", 6);
  tensors_[2].second = Tensor::zeros({8, 4}, DType::kBF16);  // the weight of expert 1
  tensors_.erase(tensors_.begin() + 9);                      // the scale of expert 4
  const BlockSurvey block = survey("l.0.mlp");
  EXPECT_EQ(std::set<int64_t>(block.unlike.begin(), block.unlike.end()), (std::set<int64_t>{1, 4}));
}

TEST_F(SurveyOfFile, DigestsAreEqualForBlocksThatAreAlike) {
  add_experts("l.0.mlp", 2);
  add_experts("l.1.mlp", 2);
  add_experts("l.2.mlp", 3);
  EXPECT_EQ(survey("l.0.mlp").digest, survey("l.1.mlp").digest);
  EXPECT_NE(survey("l.0.mlp").digest, survey("l.2.mlp").digest);
}

TEST_F(SurveyOfFile, AHugeExpertNumberIsHarmless) {
  add("l.0.mlp.experts.9223372036854775807.w", {1}, DType::kF32);
  add("l.0.mlp.experts.99999999999999999999.w", {7}, DType::kF32);
  EXPECT_GT(survey("l.0.mlp").num_experts, 0);
}

}  // namespace
}  // namespace moebius::testing
