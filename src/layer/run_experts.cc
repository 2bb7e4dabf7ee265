// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/run_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/router.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

// Runs the experts in one pass.  They write to a workspace if there is no output.
Tensor run_once(const Experts& experts,
                const ExpertsInput& input,
                int64_t rows,
                Tensor output,
                const CallContext& context) {
  const ExpertsWorkspace need = experts.workspace(rows);
  const Tensor intermediate =
      context.get(WorkspaceSlot::kIntermediate, need.intermediate, need.dtype);
  const Tensor scratch = context.get(WorkspaceSlot::kScratch, {need.scratch_bytes}, DType::kU8);
  if (output.defined()) {
    expect_shape(output, need.output, "output of the experts for these rows");
  } else {
    output = context.get(WorkspaceSlot::kFusedOutput, need.output, need.dtype);
  }
  experts.apply(input, output, intermediate, scratch, context.stream);
  return output;
}

Tensor run_chunks(const Experts& experts,
                  const ExpertsInput& input,
                  int64_t chunk_tokens,
                  const CallContext& context,
                  Tensor output) {
  expect_eq(input.parts.count, 1, "parts of an output in chunks");
  const int64_t rows = input.x.dim(0);
  const ExpertsWorkspace whole = experts.workspace(rows);
  expect(whole.output.size() > 0 && whole.output[0] % rows == 0, [&] {
    return fmt::format("output {} of {} cannot be split by {} rows", to_string(whole.output),
                       experts.name(), rows);
  });
  const int64_t factor = whole.output[0] / rows;  // rows of the output per row of the input
  const auto [fused, counts] =
      context.get(WorkspaceSlot::kFusedOutput, {{output ? Shape{0} : whole.output, whole.dtype},
                                                {{experts.desc().num_local_experts}, DType::kI32}});
  output = output ? output : fused;

  for (int64_t begin = 0; begin < rows; begin += chunk_tokens) {
    const int64_t end = std::min(begin + chunk_tokens, rows);
    ExpertsInput chunk = input;
    chunk.x = input.x.slice(begin, end);
    chunk.x_scale = slice_scale(input.x_scale, begin, end);
    chunk.topk_ids = input.topk_ids.slice(begin, end);
    chunk.topk_weights = input.topk_weights.slice(begin, end);
    chunk.lora_ids = input.lora_ids ? input.lora_ids.slice(begin, end) : Tensor();
    chunk.a2_scale = input.a2_scale ? input.a2_scale.slice(begin, end) : Tensor();
    if (input.expert_num_tokens) {  // it counts all rows, and a chunk needs its own counts
      chunk.expert_num_tokens = counts;
      count_expert_tokens(chunk.topk_ids, input.expert_map, chunk.expert_num_tokens,
                          context.stream);
    }
    run_once(experts, chunk, end - begin, output.slice(begin * factor, end * factor), context);
  }
  return output;
}

}  // namespace

int64_t default_chunk_tokens() {
  return setting_int("MOEBIUS_CHUNK_TOKENS").value_or(32768);
}

Tensor slice_scale(const Tensor& scale, int64_t begin, int64_t end) {
  return !scale.defined() || scale.numel() == 1 ? scale : scale.slice(begin, end);
}

bool runs_once(const Experts& experts, int64_t rows, int64_t chunk_tokens) {
  return rows > 0 && (!experts.traits().supports_chunking || rows <= chunk_tokens);
}

Tensor run_experts(const Experts& experts,
                   const ExpertsInput& input,
                   int64_t chunk_tokens,
                   const CallContext& context,
                   const Tensor& output) {
  const bool is_batched = experts.desc().format == ActivationFormat::kBatched;
  const int64_t rows = input.x.dim(is_batched ? 1 : 0);
  if (rows == 0) {  // no rank has sent a token here
    if (output) {
      return output;
    }
    const ExpertsWorkspace none = experts.workspace(0);
    return context.get(WorkspaceSlot::kFusedOutput, none.output, none.dtype);
  }
  const bool is_cut = !runs_once(experts, rows, chunk_tokens);
  if (input.arrivals && (is_cut || !experts.traits().takes_arriving_rows)) {
    context.stream.wait(input.arrivals.complete);
    ExpertsInput all = input;
    all.arrivals = {};
    return run_experts(experts, all, chunk_tokens, context, output);
  }
  return is_cut ? run_chunks(experts, input, chunk_tokens, context, output)
                : run_once(experts, input, rows, output, context);
}

}  // namespace moebius
