// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The gate is packed once into panels of 16 experts each, in its own dtype, so that the inner loop
// reads it in order and converts in registers; panels of bf16 have the layout that AMX needs.  A
// task of logits() is a block of tokens times a range of panels.  Without AMX a task goes through H
// in steps that are small enough for the tokens, widened to f32, to stay in cache.
#include "router/cpu/cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ceil_div.h"
#include "core/cpu_features.h"
#include "core/parallel.h"
#include "router/cpu/simd.h"
#include "router/logit_sum.h"
#include "router/scoring.h"

namespace moebius::router {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kMaxExperts = 1024;  // select() has rows of this size on the stack
constexpr int64_t kTokenBlock = 48;
constexpr int64_t kDepthStep = 256;  // 48 x 256 x 4 bytes = 48 KiB of hidden states, for L2
// Panels that are used once are read in longer steps, as far as there is room for hidden states.
constexpr int64_t depth_step(int64_t num_tokens) {
  return num_tokens <= kMaxTileRows ? kTokenBlock / num_tokens * kDepthStep : kDepthStep;
}
static_assert(kDepthStep % kChainDepth == 0 && kDepthBlock == kChainDepth);
constexpr int64_t kAmxPanels = 8;     // x 32 x 16 x 4 bytes = 16 KiB of sums on the stack
constexpr int64_t kSelectGrain = 32;  // tokens, about 30 us

// Packs the gate as TileArgs describes; zeros pad the depth to whole chains.
template <typename Element>
void pack_panels(const Tensor& gate, bool interleaves, const Tensor& panels) {
  const int64_t num_experts = gate.dim(0), depth = gate.dim(1);
  const int64_t panel_size = panels.dim(1) * panels.dim(2);
  const auto* from = reinterpret_cast<const Element*>(gate.bytes());
  auto* to = reinterpret_cast<Element*>(panels.bytes());
  for (int64_t e = 0; e < num_experts; ++e) {
    Element* panel = to + e / kPanelWidth * panel_size;
    const int64_t lane = e % kPanelWidth;
    for (int64_t h = 0; h < depth; ++h) {
      const int64_t place = interleaves ? 2 * lane + h % 2 : h % 2 * kPanelWidth + lane;
      panel[h / 2 * kPanelRow + place] = from[e * depth + h];
    }
  }
}

class Cpu final : public Impl {
 public:
  Cpu(const Model& model, const SimdOps& ops, AmxLogits amx)
      : model_(model), config_(model.config), ops_(ops), amx_(amx) {
    key_bias_ = model.correction_bias;
    key_bias_.resize(static_cast<size_t>(config_.num_experts), 0.0f);
    key_bias_.resize(static_cast<size_t>(padded()), kNegInf);
    if (model.gate) {
      const int64_t depth = ceil_div(model.gate.dim(1), kChainDepth) * kChainDepth;
      panels_ = Tensor::zeros({padded() / kPanelWidth, depth / 2, kPanelRow}, model.gate.dtype());
      const bool interleaves = model.gate.dtype() == DType::kBF16;
      model.gate.dtype() == DType::kF32 ? pack_panels<uint32_t>(model.gate, interleaves, panels_)
                                        : pack_panels<uint16_t>(model.gate, interleaves, panels_);
    }
  }

  void logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const override {
    const bool by_amx = amx_ != nullptr && hidden.dtype() == DType::kBF16;
    const int64_t block = by_amx ? kAmxTokens : kTokenBlock;
    const int64_t num_tokens = hidden.dim(0), num_panels = panels_.dim(0);
    const int64_t num_blocks = ceil_div(num_tokens, block);
    if (num_blocks == 0) {
      return;
    }
    // With few tokens the panels are split as well, so that every thread has work.
    const int64_t wanted = ceil_div(2 * stream.num_threads(), num_blocks);
    const int64_t task_panels = ceil_div(num_panels, std::min(wanted, num_panels));
    const int64_t num_ranges = ceil_div(num_panels, task_panels);
    parallel_tasks(stream, num_blocks * num_ranges, [&](int64_t task, int) {
      const int64_t token = task / num_ranges * block;
      const int64_t token_end = std::min(num_tokens, token + block);
      const int64_t panel = task % num_ranges * task_panels;
      const int64_t panel_end = std::min(num_panels, panel + task_panels);
      if (by_amx) {
        logits_by_amx(hidden, token, token_end, panel, panel_end, out.data<float>());
      } else {
        logits_block(hidden, token, token_end, panel, panel_end, out.data<float>());
      }
    });
  }

  void select(const Tensor& logits,
              const Tensor& ids,
              const Tensor& weights,
              const Stream& stream) const override {
    const float* rows = logits.data<float>();
    int32_t* id_rows = ids.data<int32_t>();
    float* weight_rows = weights.data<float>();
    parallel_for(stream, logits.dim(0), kSelectGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        select_row(rows + t * config_.num_experts, id_rows + t * config_.topk,
                   weight_rows + t * config_.topk);
      }
    });
  }

 private:
  int64_t padded() const { return ceil_div(config_.num_experts, kPanelWidth) * kPanelWidth; }

  int64_t panel_size() const { return panels_.dim(1) * kPanelRow; }

  const std::byte* panel_bytes(int64_t panel, int64_t h) const {
    return panels_.bytes() + (panel * panel_size() + h / 2 * kPanelRow) * bits(panels_.dtype()) / 8;
  }

  // Tokens [token, token_end) times panels [panel, panel_end).
  void logits_block(const Tensor& hidden,
                    int64_t token,
                    int64_t token_end,
                    int64_t panel,
                    int64_t panel_end,
                    float* out) const {
    alignas(64) float x[kTokenBlock * kDepthStep];
    alignas(64) float sums[kMaxTilePanels * kMaxTileRows * kPanelWidth];
    const int64_t depth = hidden.dim(1);
    const int64_t num_tokens = token_end - token;
    // A panel that is used for many rows should stay in L1; a few rows are best in a wide tile.
    const int64_t step = num_tokens > kMaxTileRows ? kMaxTilePanels / 2 : kMaxTilePanels;
    const int64_t x_stride = depth_step(num_tokens);
    for (int64_t h = 0; h < depth; h += x_stride) {
      const int64_t n = std::min(x_stride, depth - h);
      const int64_t padded_n = ceil_div(n, kChainDepth) * kChainDepth;
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t offset = ((token + t) * depth + h) * bits(hidden.dtype()) / 8;
        float* row = x + t * x_stride;
        ops_.widen(hidden.bytes() + offset, hidden.dtype(), n, row);
        std::fill(row + n, row + padded_n, 0.0f);
      }
      for (int64_t p = panel; p < panel_end; p += step) {
        for (int64_t t = 0; t < num_tokens; t += kMaxTileRows) {
          TileArgs args;
          args.x = x + t * x_stride;
          args.x_stride = x_stride;
          args.rows = static_cast<int>(std::min<int64_t>(kMaxTileRows, num_tokens - t));
          args.panels = panel_bytes(p, h);
          args.type = panels_.dtype();
          args.panel_stride = panel_size();
          args.num_panels = static_cast<int>(std::min(step, panel_end - p));
          args.depth = padded_n;
          args.out = sums;
          const TileSums tile = {sums, token + t, args.rows, args.rows, p, args.num_panels};
          std::fill(sums, sums + args.num_panels * args.rows * kPanelWidth, 0.0f);
          if (h > 0) {
            for_each_row(tile, out, [](float* sum, const float* row, int64_t lanes, int64_t) {
              std::copy(row, row + lanes, sum);
            });
          }
          ops_.tile(args);
          h + n == depth
              ? store_logits(tile, out)
              : for_each_row(tile, out, [](float* sum, float* row, int64_t lanes, int64_t) {
                  std::copy(sum, sum + lanes, row);
                });
        }
      }
    }
  }

  // The same with AMX, for bf16 times bf16.
  void logits_by_amx(const Tensor& hidden,
                     int64_t token,
                     int64_t token_end,
                     int64_t panel,
                     int64_t panel_end,
                     float* out) const {
    alignas(64) float sums[kAmxPanels * kAmxTokens * kPanelWidth];
    for (int64_t p = panel; p < panel_end; p += kAmxPanels) {
      AmxArgs args;
      args.depth = args.x_stride = hidden.dim(1);
      args.x = reinterpret_cast<const uint16_t*>(hidden.bytes()) + token * args.x_stride;
      args.num_tokens = static_cast<int>(token_end - token);
      args.panels = panel_bytes(p, 0);
      args.panel_stride = panel_size();
      args.num_panels = static_cast<int>(std::min(kAmxPanels, panel_end - p));
      args.out = sums;
      amx_(args);
      store_logits({sums, token, args.num_tokens, kAmxTokens, p, args.num_panels}, out);
    }
  }

  // The sums of a block of logits: [num_panels, panel_rows, kPanelWidth].
  struct TileSums {
    float* sums;
    int64_t token;
    int64_t num_tokens;
    int64_t panel_rows;
    int64_t panel;
    int64_t num_panels;
  };

  // Calls fn(sums of a token in a panel, their place in out, how many exist, the first expert).
  template <typename Fn>
  void for_each_row(const TileSums& tile, float* out, const Fn& fn) const {
    for (int64_t p = 0; p < tile.num_panels; ++p) {
      const int64_t expert = (tile.panel + p) * kPanelWidth;
      const int64_t lanes = std::min<int64_t>(kPanelWidth, config_.num_experts - expert);
      for (int64_t r = 0; r < tile.num_tokens; ++r) {
        fn(tile.sums + (p * tile.panel_rows + r) * kPanelWidth,
           out + (tile.token + r) * config_.num_experts + expert, lanes, expert);
      }
    }
  }

  void store_logits(const TileSums& tile, float* out) const {
    for_each_row(tile, out, [this](const float* sum, float* row, int64_t lanes, int64_t expert) {
      for (int64_t i = 0; i < lanes; ++i) {
        row[i] = sum[i] + model_.bias[static_cast<size_t>(expert + i)];
      }
    });
  }

  void select_row(const float* logits, int32_t* ids, float* weights) const {
    if (config_.scoring == Scoring::kSparseMixer) {
      mix_sparsely(config_, model_.expert_scale, logits, ids, weights);
      return;
    }
    alignas(64) float s[kMaxExperts];
    alignas(64) float keys[kMaxExperts];
    const int64_t n = padded();
    std::copy_n(logits, config_.num_experts, s);
    std::fill(s + config_.num_experts, s + n, kNegInf);
    if (!config_.score_after_topk) {
      score_row(s, n);
    }
    for (int64_t e = 0; e < n; ++e) {
      const float c = s[e] + key_bias_[static_cast<size_t>(e)];
      keys[e] = c == c ? c : kNegInf;  // NaN is never chosen
    }
    if (config_.num_groups > 1) {
      mask_groups(keys);
    }
    const int64_t found = ops_.topk(keys, n, config_.topk, ids);
    // Without groups the row is one group, and its score, the best c, must be finite.
    if (found == 0 || !std::isfinite(s[ids[0]] + key_bias_[static_cast<size_t>(ids[0])])) {
      weigh_evenly(config_.topk, ids, weights);
      return;
    }
    append_unused(found, config_.topk, ids);
    weigh(config_, model_.expert_scale, s, ids, found, weights);
  }

  void score_row(float* s, int64_t n) const {
    switch (config_.scoring) {
      case Scoring::kSoftmax:
        return ops_.softmax(s, n);
      case Scoring::kSigmoid:
        return ops_.sigmoid(s, n);
      case Scoring::kSqrtSoftplus:
      case Scoring::kSparseMixer:
        return score(config_.scoring, s, config_.num_experts);
    }
  }

  // Sets the keys of all but the topk_groups best groups with a finite score to -inf.
  void mask_groups(float* keys) const {
    float group_score[kMaxExperts];
    const int64_t size = config_.num_experts / config_.num_groups;
    const bool is_sum_of_two = !model_.correction_bias.empty();
    for (int64_t g = 0; g < config_.num_groups; ++g) {
      float best = kNegInf, second = kNegInf;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        second = std::max(second, std::min(best, keys[e]));
        best = std::max(best, keys[e]);
      }
      const float total = is_sum_of_two ? best + second : best;
      group_score[g] = std::isfinite(total) ? total : kNegInf;
    }
    bool is_kept[kMaxExperts] = {};
    for (int64_t i = 0; i < config_.topk_groups; ++i) {
      const float* best = std::max_element(group_score, group_score + config_.num_groups);
      const int64_t g = best - group_score;
      is_kept[g] = is_kept[g] || *best > kNegInf;
      group_score[g] = kNegInf;
    }
    for (int64_t g = 0; g < config_.num_groups; ++g) {
      if (!is_kept[g]) {
        std::fill(keys + g * size, keys + (g + 1) * size, kNegInf);
      }
    }
  }

  const Model& model_;
  const RouterConfig& config_;
  const SimdOps& ops_;
  AmxLogits amx_;                // null when AMX is not used
  Tensor panels_;                // [ceil(E / 16), H / 2, 32]; padding is zeros
  std::vector<float> key_bias_;  // correction bias or zeros, then -inf up to padded()
};

}  // namespace

Support cpu_supports(const Model& model, bool has_isa, const char* isa) {
  if (!has_isa) {
    return Support::no(fmt::format("this processor has no {}", isa));
  }
  if (model.config.num_experts > kMaxExperts) {
    return Support::no(
        fmt::format("num_experts {} is more than {}", model.config.num_experts, kMaxExperts));
  }
  return Support::yes();
}

Support cpu_amx_supports(const Model& model) {
  if (model.gate && model.gate.dtype() != DType::kBF16) {
    return Support::no(fmt::format("the gate is {}, expected bf16", name(model.gate.dtype())));
  }
  return cpu_supports(model, cpu_features().amx_bf16, "AMX bf16");
}

std::unique_ptr<Impl> make_cpu(const Model& model, const SimdOps& ops, AmxLogits amx) {
  return std::make_unique<Cpu>(model, ops, amx);
}

}  // namespace moebius::router
