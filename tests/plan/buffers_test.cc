// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares planned buffers with those that the library allocates.
#include "plan/buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/make_model.h"
#include "comm/high_throughput/cpu/cpu_transport.h"
#include "comm/low_latency/cpu/cpu_transport.h"
#include "moebius/checkpoint.h"
#include "moebius/quantize.h"
#include "plan/traffic.h"
#include "tests/checkpoint/small_models.h"
#include "tests/plan/problems.h"
#include "tests/temp_dir.h"

namespace moebius::plan {
namespace {

// The buffers for the expected copies of `tokens` tokens of each rank.
Buffers expected_buffers(All2AllBackend backend, const Deployment& d, int64_t tokens) {
  const RoutingModel model(d.layer.routing);
  return buffers(backend, d, expected_copies(d, model, static_cast<double>(tokens)));
}

TEST(Buffers, LowLatencyWindowIsTheOneThatIsMade) {
  Deployment d = small_deployment(3, 0, 16);
  for (const auto sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    d.low_latency_sum = sum;
    run_thread_ranks({.num_ranks = 3}, [&](Group& group) {
      const CpuLowLatency made(
          group, ExpertPlacement::linear(16, 3),
          {.max_tokens = low_latency_tokens(), .hidden = 256, .topk = 4, .sum = sum}, nullptr);
      EXPECT_EQ(made.window->bytes(), low_latency_window_bytes(d));
    });
  }
}

TEST(Buffers, LowLatencyResultsAreThoseThatAreMade) {
  for (const char* quant : {"none", "fp8"}) {
    Deployment d = small_deployment(3, 0, 16);
    d.formats = find_formats(quant, d.layer);
    run_thread_ranks({.num_ranks = 3}, [&](Group& group) {
      CpuLowLatency made(group, ExpertPlacement::linear(16, 3),
                         {.max_tokens = low_latency_tokens(), .hidden = 256, .topk = 4}, nullptr);
      const auto cast = d.formats.activations ? LowLatencyCast::kFp8 : LowLatencyCast::kNone;
      int64_t bytes = 0;
      for (int call = 0; call < 2; ++call) {
        made.dispatch(
            {Tensor::zeros({0, 256}, DType::kBF16), Tensor::empty({0, 4}, DType::kI32), cast, {}},
            Stream());
      }
      for (const CpuLowLatency::Kept& kept : made.kept) {
        for (const Tensor& t : {kept.x, kept.x_scale, kept.row_words}) {
          bytes += t ? t.nbytes() : 0;
        }
      }
      if (group.rank() == 0) {  // it has 6 of 16 experts, the others have 5
        EXPECT_EQ(expected_buffers(All2AllBackend::kLowLatency, d, 16).outputs, bytes) << quant;
      }
    });
  }
}

// As src/comm/low_latency/cuda/cuda_transport.cc allocates them: rows as they travel, scales of 128
// elements, tags and tokens, for 32 experts with 8 x 256 rows.
TEST(Buffers, LowLatencyResultsOfGpusHaveOneForm) {
  for (const auto& [quant, row] : {std::pair("none", 2 * 7168), std::pair("fp8", 7168 + 4 * 56)}) {
    const Deployment d = preset_deployment("deepseek-v3", quant, 8);
    EXPECT_EQ(expected_buffers(All2AllBackend::kLowLatency, d, 128).outputs,
              int64_t{2} * 32 * 8 * 256 * (row + 8))
        << quant;
  }
}

// Rows that are not quantized are multiplied where they arrived.  Each place has room for the
// result of GEMM1, the activated row and the output.
TEST(Buffers, BatchedRowsAreNotCopied) {
  Deployment d = preset_deployment("deepseek-v3", "none", 8);
  d.tokens = 1;
  const int64_t layer = 4 * 256 + 8 * 8 + 2 * 7168;
  EXPECT_EQ(expected_buffers(All2AllBackend::kLowLatency, d, 1).workspaces,
            int64_t{32} * 8 * 256 * 2 * (4096 + 2048 + 7168) + layer);
}

// One kernel activates and quantizes rows of up to 8192 elements, and wider ones are stored first.
TEST(Buffers, WideActivatedRowsAreStoredBeforeTheyAreQuantized) {
  const auto workspaces = [](int64_t intermediate) {
    Deployment d = preset_deployment("deepseek-v3", "nvfp4", 8);
    d.layer.intermediate = intermediate;
    d.tokens = 1;
    return expected_buffers(All2AllBackend::kLowLatency, d, 1).workspaces;
  };
  const int64_t step = workspaces(8192) - workspaces(8160);
  EXPECT_EQ(workspaces(8224) - workspaces(8192), step + int64_t{32} * 8 * 256 * 2 * 8224);
}

// On GPUs the buffers include decoded weights and rows before their activation.
TEST(Buffers, WorkspacesFollowTheGemmOfTheExperts) {
  const auto workspaces = [](const char* quant, int64_t tokens = 17408, int experts = 128) {
    Deployment d = preset_deployment("qwen3-30b-a3b", quant, 1);
    d.layer.routing.num_experts = experts;
    d.tokens = tokens;
    return expected_buffers(All2AllBackend::kNone, d, tokens).workspaces;
  };
  // 512 MiB hold the w1 of 85 experts, or the w2 of all.
  const int64_t decoded =
      std::max(int64_t{85} * 1536 * (2 * 2048 + 4), int64_t{128} * 2048 * (2 * 768 + 4));
  EXPECT_EQ(workspaces("mxfp4_w4a16") - workspaces("none"), decoded);
  // With scales of 128 columns they hold the w1 of 83.  Of 84 experts with 2048 rows each they take
  // more than the result of GEMM1 that fewer rows store.
  const int64_t scaled = std::max(int64_t{83} * 1536 * (2 * 2048 + 4 + 4 * 16),
                                  int64_t{84} * 2048 * (2 * 768 + 4 + 4 * 6));
  EXPECT_EQ(workspaces("int4_w4a16", 21504, 84) - workspaces("none", 21504, 84), scaled);
  // If activations are quantized per token, activated rows are stored in bf16 and as codes.
  EXPECT_GT(workspaces("fp8_w8a8_channel"), workspaces("fp8_w8a8"));
  EXPECT_LT(workspaces("fp8_w8a8_channel"), workspaces("none") + decoded) << "none are decoded";
  // Few rows are multiplied by codes, and the result of GEMM1 is stored.
  const int64_t stored = workspaces("mxfp4_w4a16", 64) - workspaces("none", 64);
  EXPECT_GT(stored, 0);
  EXPECT_LT(stored, decoded / 10);
}

// With low latency every expert has room for all rows of all ranks, though it gets few of them.
TEST(Buffers, RoomIsNotWhatIsExpected) {
  const auto workspaces = [](const char* quant, int ranks) {
    const Deployment d = preset_deployment("deepseek-v3", quant, ranks);
    return expected_buffers(All2AllBackend::kLowLatency, d, d.tokens).workspaces;
  };
  EXPECT_EQ(workspaces("mxfp4_w4a16", 8), workspaces("none", 8));  // 64 of 2048 rows are expected
  EXPECT_GT(workspaces("mxfp4_w4a16", 256), workspaces("none", 256));  // 2048 of 65536
}

// The workspace must suffice for fewer rows, and where few rows are multiplied by codes, the
// result of GEMM1 is stored.
TEST(Buffers, WorkspacesDoForFewerRows) {
  constexpr int64_t kExperts = 16;
  constexpr int64_t kDecoded = 1280 * kExperts;  // rows from which weights in mxfp4 are decoded
  const auto workspaces = [](const char* quant) {
    Deployment d = preset_deployment("llama4-scout", quant, 1);
    d.layer.routing.num_experts = kExperts;
    d.tokens = kDecoded;
    return expected_buffers(All2AllBackend::kNone, d, d.tokens).workspaces;
  };
  const int64_t stored = (kDecoded - 1) * 2 * 8192 * 2;
  EXPECT_GT(stored, int64_t{3} * 2 * 8192 * (2 * 5120 + 4));  // decoded weights in 512 MiB
  EXPECT_EQ(workspaces("mxfp4_w4a16") - workspaces("none"), stored);
}

#ifdef MOEBIUS_HAVE_CUDA
TEST(Buffers, LowLatencyWindowOfGpusIsTheHint) {
  for (const int ranks : {2, 8, 64}) {
    Deployment d = preset_deployment("deepseek-v3", "none", ranks);
    d.ranks_per_node = 0;
    EXPECT_EQ(LowLatency::size_hint({.max_tokens = low_latency_tokens(), .hidden = 7168, .topk = 8},
                                    ranks, 256, Device::cuda(0)),
              low_latency_window_bytes(d));
  }
}
#endif

TEST(Buffers, WindowsOfHighThroughputAreThoseThatAreMade) {
  for (const char* quant : {"none", "fp8"}) {
    Deployment d = small_deployment(3, 0, 50);
    d.formats = find_formats(quant, d.layer);
    std::vector<std::vector<int32_t>> ids;
    for (uint64_t r = 0; r < 3; ++r) {
      ids.push_back(random_ids(d.layer.routing, d.tokens, r));
    }
    const Copies copies = counted_copies(d, ids);
    double most = 0;
    for (int r = 0; r < 3; ++r) {
      most = std::max(most, copies.received(r));
    }
    run_thread_ranks({.num_ranks = 3}, [&](Group& group) {
      CpuHighThroughput made(group, ExpertPlacement::linear(16, 3));
      DispatchInput input;
      input.payloads = {Tensor::zeros({50, 256}, DType::kBF16)};
      if (d.formats.activations) {
        input.payloads = {Tensor::zeros({50, 256}, DType::kF8E4M3),
                          Tensor::zeros({50, 2}, DType::kF32)};
      }
      input.topk_ids = Tensor::empty({50, 4}, DType::kI32);
      std::copy(ids[static_cast<size_t>(group.rank())].begin(),
                ids[static_cast<size_t>(group.rank())].end(), input.topk_ids.data<int32_t>());
      input.topk_weights = Tensor::zeros({50, 4}, DType::kF32);
      made.dispatch_async(input, Stream()).finish();
      EXPECT_EQ(made.bytes(),
                HighThroughput::size_hint(high_throughput_needs(d, static_cast<int64_t>(most), 1),
                                          made.placement));
      EXPECT_EQ(made.bytes(), buffers(All2AllBackend::kHighThroughput, d, copies).windows);
    });
  }
}

TEST(Buffers, WeightsAreThoseOfEveryScheme) {
  for (const char* preset : {"tiny", "tiny-deepseek-v3"}) {
    for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
      const LayerShape layer = layer_of_preset(preset);
      const Formats formats = find_formats(scheme.name, layer);
      for (const auto& [rows, cols] : {std::pair(layer.w1_rows(layer.intermediate), layer.hidden),
                                       std::pair(layer.hidden, layer.intermediate)}) {
        const Quantized made = allocate_quantized(*formats.weights, rows, cols);
        EXPECT_EQ(matrix_bytes(formats.weights, layer.dtype, rows, cols),
                  made.values.nbytes() + made.scale.nbytes())
            << scheme.name;
      }
    }
  }
}

// Checks every family and stored format with --quant auto and none.
TEST(Buffers, FormatsOfAFolderAreThoseOfItsLayers) {
  const TempDir folder;
  for (const testing::SmallModel& model : testing::small_models()) {
    SCOPED_TRACE(model.name);
    checkpoint::write_model(model.config, model.name, 1, folder / model.name, int64_t{1} << 40);
    const Checkpoint stored(folder / model.name);
    checkpoint::WeightScheme scheme;
    const LayerShape layer = layer_of_model((folder / model.name).string(), &scheme);
    for (const char* quant : {"auto", "none"}) {
      const ExpertWeights loaded =
          stored.load_layer(stored.info().moe_layers[0], {.quant = quant}).experts;
      const Formats formats = stored_formats(scheme, quant == std::string("auto"));
      EXPECT_EQ(formats.weights, weight_spec(loaded.quant.w1));
      EXPECT_EQ(formats.activations, activation_spec(loaded.quant.a1));
      // Plans leave out the zero points of int8, which a QuantizeSpec cannot tell of.
      if (loaded.quant.w1.zero_point && loaded.quant.w1.format == QuantFormat::kInt4) {
        std::optional<QuantizeSpec> symmetric = formats.weights;
        symmetric->asymmetric = false;
        const auto bytes = [&](const std::optional<QuantizeSpec>& spec) {
          return matrix_bytes(spec, layer.dtype, layer.w1_rows(layer.intermediate), layer.hidden);
        };
        EXPECT_EQ((bytes(formats.weights) - bytes(symmetric)) * layer.routing.num_experts,
                  loaded.quant.w1.zero_point.nbytes());
      }
    }
  }
}

TEST(Buffers, GrowWithRanksWhereTheyMust) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  d.tokens = 128;
  Buffers before;
  const std::vector<std::pair<int, int64_t>> totals = {
      {8, 87716018048}, {64, 16588859392}, {256, 10338039808}, {2048, 45020063744}};
  for (const auto& [ranks, total] : totals) {
    d.ranks = ranks;
    d.redundant_experts = std::max(0, ranks - 256);
    const Buffers now = expected_buffers(All2AllBackend::kLowLatency, d, 128);
    EXPECT_GT(now.windows, before.windows);
    EXPECT_EQ(now.total(58), total) << ranks << " ranks";
    if (before.weights > 0) {
      EXPECT_LE(now.weights, before.weights);
    }
    before = now;
  }
}

}  // namespace
}  // namespace moebius::plan
