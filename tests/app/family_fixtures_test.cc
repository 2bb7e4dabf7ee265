// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the checkpoint of each family in tests/fixtures through the command: with published names
// and with those of save_pretrained(), on one rank and on four.  Nothing may be written to the
// error stream, so no tensor of the block is left unread.
#include "tests/app/family_fixtures.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/family.h"
#include "moebius/safetensors.h"

namespace moebius::test {
namespace {

class FamilyFixtures : public FamilyFixtureTest {};

TEST_P(FamilyFixtures, OneRank) {
  expect_output({});
}

TEST_P(FamilyFixtures, FourRanks) {
  expect_output("--ranks 4 --all2all high_throughput");
}

INSTANTIATE_TEST_SUITE_P(All, FamilyFixtures, testing::ValuesIn(family_cases()), family_case_name);

// A bias that the family does not have would be left out without a word.
TEST(FamilyFiles, TensorsThatNothingReadsAreNamed) {
  const fs::path folder = family_root() / "qwen3_moe";
  const Safetensors files(folder);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : files.names()) {
    tensors.emplace_back(name, files.tensor(name));
  }
  const std::string block = "model.layers.1.mlp.";
  for (const char* expert : {"0", "1"}) {
    tensors.emplace_back(block + "experts." + expert + ".up_proj.bias",
                         Tensor::zeros({16}, DType::kBF16));
  }
  tensors.emplace_back(block + "gate.extra", Tensor::zeros({8}, DType::kF32));
  tensors.emplace_back("model.layers.1.self_attn.q_proj.weight", Tensor::zeros({8}, DType::kF32));
  const ScratchFolder scratch;
  const fs::path copy = scratch / "model";
  fs::create_directories(copy);
  fs::copy(folder / "config.json", copy / "config.json");
  write_safetensors(copy / "model.safetensors", tensors);
  const CommandResult result =
      run_command("run --repeat 1 --tokens 4 --layer 1 --ranks 2 --model" + Words{copy.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string wanted = "nothing reads these tensors of layer 1: '" + block +
                             "experts.0.up_proj.bias', '" + block + "experts.1.up_proj.bias', '" +
                             block + "gate.extra'";
  const size_t at = result.err.find(wanted);
  EXPECT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("nothing reads", at + wanted.size()), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("q_proj"), std::string::npos) << result.err;
}

TEST(FamilyTable, EveryFamilyHasAFixture) {
  ASSERT_TRUE(fs::exists(family_root())) << "run tests from the project's root";
  EXPECT_GE(checkpoint::families().size(), 30u);
  for (const checkpoint::Family& family : checkpoint::families()) {
    const std::string name(family.model_type);
    EXPECT_TRUE(fs::exists(family_root() / name / "expected.safetensors")) << name;
  }
}

}  // namespace
}  // namespace moebius::test
