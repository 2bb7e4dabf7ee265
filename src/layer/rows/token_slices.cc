// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/token_slices.h"

#include <algorithm>
#include <vector>

namespace moebius {

TokenSlice token_slice(int64_t num_tokens, int parts, int part) {
  const int64_t base = num_tokens / parts;
  const int64_t extra = num_tokens % parts;
  const int64_t begin = part * base + std::min<int64_t>(part, extra);
  return {begin, begin + base + (part < extra ? 1 : 0)};
}

KernelInput slice_tokens(const KernelInput& input, const TokenSlice& slice) {
  KernelInput own = input;
  for (const auto part :
       {&KernelInput::hidden, &KernelInput::topk_ids, &KernelInput::topk_weights,
        &KernelInput::router_logits, &KernelInput::lora_ids, &KernelInput::a2_scale}) {
    own.*part = slice.of(input.*part);
  }
  own.order = nullptr;  // it is one of all slots
  return own;
}

int64_t agree_on_fewest(Group& group, int64_t num_tokens) {
  return -all_reduce_max(group, "fewest tokens", -num_tokens);
}

void tell_others(Group& group, std::string_view why) noexcept {
  if (group.size() > 1) {
    group.abort(why);
  }
}

void gather_slices(
    Group& group, const Tensor& rows, int first_rank, int num_ranks, const Stream& stream) {
  constexpr std::string_view kOp = "gather slices of tokens";
  const auto part = [&](int rank) {
    return token_slice(rows.dim(0), num_ranks, rank - first_rank).of(rows);
  };
  const Tensor mine = part(group.rank());
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int rank = first_rank; rank < first_rank + num_ranks; ++rank) {
    if (rank != group.rank()) {
      const Tensor theirs = part(rank);
      sends.push_back({rank, mine.raw(), mine.nbytes()});
      recvs.push_back({rank, theirs.raw(), theirs.nbytes()});
    }
  }
  if (rows.device().is_cuda()) {
    group.exchange_on(stream, kOp, sends, recvs);
  } else {
    group.exchange(kOp, sends, recvs);
  }
}

void sum_over_ranks(Group& group, const Tensor& partial, const Tensor& out, const Stream& stream) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) {
    counts.push_back(token_slice(partial.dim(0), group.size(), rank).size());
  }
  const TokenSlice mine = token_slice(out.dim(0), group.size(), group.rank());
  reduce_scatterv(group, "sum over ranks", partial, counts, mine.of(out), stream);
  gather_slices(group, out, 0, group.size(), stream);
}

}  // namespace moebius
