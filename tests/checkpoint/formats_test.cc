// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loads a checkpoint in every stored format, of two families, and compares all its weights with
// what tests/checkpoint/make_format_fixtures.py says they are; that script has definitions of its
// own.  Then it computes with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "checkpoint/weight_scheme.h"
#include "tests/checkpoint/format_layers.h"
#include "tests/checkpoint/stored_weights.h"

namespace moebius::testing {
namespace {

class Formats : public ::testing::TestWithParam<std::string> {
 protected:
  Formats() : expected_(formats_folder() / GetParam() / "expected.safetensors") {}

  Checkpoint open(const std::string& family) const {
    return Checkpoint(formats_folder() / GetParam() / family);
  }

  // Compares the rows of an expert's weight with rows of the expected one.  A rank's slice has the
  // rows `rows` and the columns from `first_col` on.
  void expect_rows(const Tensor& w,
                   const QuantDesc& desc,
                   const QuantDesc& activation,
                   int64_t gate_rows,
                   const Tensor& expected,
                   const std::vector<int64_t>& rows,
                   int64_t first_col) const {
    // The factors of nvfp4 are multiplied in another order.
    const float relative = desc.format == QuantFormat::kNvfp4 ? 1e-6f : 0.0f;
    ASSERT_EQ(w.dim(0), expected.dim(0));
    ASSERT_EQ(w.dim(1), static_cast<int64_t>(rows.size()));
    for (int64_t e = 0; e < w.dim(0); ++e) {
      for (int64_t n = 0; n < w.dim(1); ++n) {
        const std::vector<float> row = loaded_row(w, desc, activation, e, n, gate_rows);
        const Tensor values = expected[e][rows[static_cast<size_t>(n)]];
        for (int64_t k = 0; k < w.dim(2); ++k) {
          const float value = values.data<float>()[first_col + k];
          ASSERT_NEAR(row[static_cast<size_t>(k)], value, relative * std::fabs(value))
              << "expert " << e << " row " << n << " column " << k;
        }
      }
    }
  }

  Safetensors expected_;
};

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> result;
  for (int64_t i = begin; i < end; ++i) {
    result.push_back(i);
  }
  return result;
}

TEST_P(Formats, EveryWeightIsWhatItsDefinitionMakesIt) {
  for (const char* family : kFormatFamilies) {
    for (const char* quant : {"auto", "none"}) {
      SCOPED_TRACE(std::string(family) + " " + quant);
      const Checkpoint checkpoint = open(family);
      const ExpertWeights experts = checkpoint.load_layer(0, {.quant = quant}).experts;
      const QuantConfig& q = experts.quant;
      EXPECT_TRUE(q.w1.format && q.w2.format);
      EXPECT_NE(checkpoint.info().quant_method, "none");
      if (std::string_view(quant) == "none") {
        EXPECT_FALSE(q.a1.format || q.a2.format);
      }
      const int64_t size = checkpoint.info().intermediate;
      expect_rows(experts.w1, q.w1, q.a1, size, expected_.tensor("w1"), range(0, 2 * size), 0);
      expect_rows(experts.w2, q.w2, q.a2, experts.w2.dim(1), expected_.tensor("w2"),
                  range(0, experts.w2.dim(1)), 0);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_P(Formats, ASliceIsAPartOfTheWhole) {
  const Checkpoint checkpoint = open("qwen3_moe");
  const int64_t size = checkpoint.info().intermediate;
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    ExpertWeights experts;
    try {
      experts = checkpoint.load_layer(0, {.tp_size = 2, .tp_rank = rank}).experts;
    } catch (const InvalidArgument& error) {  // 32 columns of w2 may be one group
      expect_mentions(error.what(), {"of 32 cuts through blocks of "});
      return;
    }
    const int64_t begin = rank * size / 2;
    const int64_t end = begin + size / 2;
    std::vector<int64_t> rows = range(begin, end);
    for (const int64_t row : range(size + begin, size + end)) {
      rows.push_back(row);
    }
    const QuantConfig& q = experts.quant;
    expect_rows(experts.w1, q.w1, q.a1, size / 2, expected_.tensor("w1"), rows, 0);
    expect_rows(experts.w2, q.w2, q.a2, experts.w2.dim(1), expected_.tensor("w2"),
                range(0, experts.w2.dim(1)), begin);
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST_P(Formats, ALayerComputesWithThem) {
  for (const char* family : kFormatFamilies) {
    for (const char* quant : {"auto", "none"}) {
      expect_layer_computes(GetParam(), family, quant, Stream::cpu());
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Formats);
INSTANTIATE_TEST_SUITE_P(Stored,
                         Formats,
                         ::testing::ValuesIn(format_names()),
                         [](const auto& test) { return test.param; });

TEST(FormatTable, TheDocumentationHasTheLoadersTable) {
  std::ifstream file("docs/formats.md");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  const std::vector<std::string> table = checkpoint::stored_formats_table();
  const auto at = std::search(lines.begin(), lines.end(), table.begin(), table.end());
  std::string text;
  for (const std::string& line : table) {
    text += line + "\n";
  }
  EXPECT_NE(at, lines.end()) << "docs/formats.md lacks these lines:\n" << text;
}

}  // namespace
}  // namespace moebius::testing
