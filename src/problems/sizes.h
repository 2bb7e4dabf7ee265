// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The problem sizes that tests and benchmarks share.
#pragma once

#include <cstdint>
#include <string_view>

namespace moebius {

struct Problem {
  std::string_view name;
  int64_t num_tokens;
  int64_t num_experts;  // all local
  int64_t topk;
  int64_t hidden;
  int64_t intermediate;
};

// Sizes for tests, which take seconds on one core even under sanitizers.  Dimensions are multiples
// of 32, which every quantization format accepts.  In k_blocks the last block of 128 columns is not
// full.
inline constexpr Problem kTiny = {"tiny", 33, 6, 3, 96, 64};
inline constexpr Problem kTopk1 = {"topk1", 21, 4, 1, 64, 96};
inline constexpr Problem kTopkAll = {"topk_all", 9, 5, 5, 64, 32};
inline constexpr Problem kKBlocks = {"k_blocks", 19, 3, 2, 320, 160};
inline constexpr Problem kOneToken = {"one_token", 1, 8, 4, 160, 96};
inline constexpr Problem kTestProblems[] = {kTiny, kTopk1, kTopkAll, kKBlocks, kOneToken};

// Sizes for benchmarks: one layer of published models, with the tokens of a decode step or a
// prefill chunk.
inline constexpr Problem kBenchProblems[] = {
    {"mixtral_decode", 1, 8, 2, 4096, 14336},
    {"mixtral_prefill", 256, 8, 2, 4096, 14336},
    {"qwen3_decode", 1, 128, 8, 2048, 768},
    {"qwen3_decode32", 32, 128, 8, 2048, 768},
    {"qwen3_prefill", 1024, 128, 8, 2048, 768},
    {"gptoss_decode", 1, 128, 4, 2880, 2880},
    {"gptoss_prefill", 512, 128, 4, 2880, 2880},
    // 32 of the 256 experts, as on one rank of eight.
    {"dsv3_decode", 1, 32, 8, 7168, 2048},
    {"dsv3_prefill", 256, 32, 8, 7168, 2048},
};

}  // namespace moebius
