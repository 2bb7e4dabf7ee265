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
#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/stored_weights.h"

namespace moebius::testing {
namespace {

constexpr const char* kFamilies[] = {"mixtral", "qwen3_moe"};

// Tests run from the project root.
fs::path formats_folder() {
  return "tests/fixtures/formats";
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  std::error_code none;  // elsewhere there are no cases
  for (const auto& entry : fs::directory_iterator(formats_folder(), none)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

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
  for (const char* family : kFamilies) {
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

// silu(gate) * up through the expected weights of one expert, in double.
std::vector<double> expert_output(const Tensor& w1, const Tensor& w2, const Tensor& x) {
  const auto dot = [](const float* row, const std::vector<double>& in) {
    double sum = 0;
    for (size_t k = 0; k < in.size(); ++k) {
      sum += static_cast<double>(row[k]) * in[k];
    }
    return sum;
  };
  std::vector<double> in;
  for (int64_t k = 0; k < x.numel(); ++k) {
    in.push_back(get_float(x, k));
  }
  const int64_t size = w2.dim(1);
  std::vector<double> hidden;
  for (int64_t i = 0; i < size; ++i) {
    const double gate = dot(w1[i].data<float>(), in);
    const double up = dot(w1[size + i].data<float>(), in);
    hidden.push_back(up * gate / (1.0 + std::exp(-gate)));
  }
  std::vector<double> out;
  for (int64_t n = 0; n < w2.dim(0); ++n) {
    out.push_back(dot(w2[n].data<float>(), hidden));
  }
  return out;
}

TEST_P(Formats, ALayerComputesWithThem) {
  constexpr int64_t kTokens = 6;
  for (const char* family : kFamilies) {
    for (const char* quant : {"auto", "none"}) {
      SCOPED_TRACE(std::string(family) + " " + quant);
      const Checkpoint checkpoint = open(family);
      MoeLayerWeights weights = checkpoint.load_layer(0, {.quant = quant});
      const double tolerance = layer_tolerance(weights.experts.quant);
      const int64_t hidden = checkpoint.info().hidden;
      const Tensor x = Tensor::empty({kTokens, hidden}, DType::kBF16);
      for (int64_t i = 0; i < x.numel(); ++i) {
        set_float(x, i, 0.05f * std::sin(0.37f * static_cast<float>(i * (i % 61))));
      }
      const Router router(weights.router_config, weights.router);
      const Tensor logits = Tensor::empty({kTokens, weights.config.num_experts}, DType::kF32);
      const Tensor ids = Tensor::empty({kTokens, 1}, DType::kI32);
      const Tensor scores = Tensor::empty({kTokens, 1}, DType::kF32);
      router.logits(x, logits, Stream::cpu());
      router.select(logits, ids, scores, Stream::cpu());
      MoeLayer layer(std::move(weights), MoeLayerOptions(), Stream::cpu());
      WorkspacePool workspaces;
      CallContext context;
      context.workspaces = &workspaces;
      const Tensor y = Tensor::empty({kTokens, hidden}, DType::kF32);
      layer.forward(x, y, context);
      RelativeError error;
      for (int64_t t = 0; t < kTokens; ++t) {
        const int64_t e = ids.data<int32_t>()[t];
        const std::vector<double> expected =
            expert_output(expected_.tensor("w1")[e], expected_.tensor("w2")[e], x[t]);
        for (int64_t n = 0; n < hidden; ++n) {
          const double reference =
              expected[static_cast<size_t>(n)] * static_cast<double>(scores.data<float>()[t]);
          error.add(get_float(y[t], n), static_cast<float>(reference));
        }
      }
      // The table's bounds are those of layers of usual sizes; these have 64 and 32 columns.
      EXPECT_LT(error.value(), 1.5 * tolerance);
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
