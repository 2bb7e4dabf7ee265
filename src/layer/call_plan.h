// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CallPlan: all that a call of the modular kernel decides about itself.  It is computed once,
// before anything is enqueued, from the options and the facts below, and is only read afterwards.
#pragma once

#include <cstdint>

#include "moebius/modular_kernel.h"

namespace moebius {

// What a plan depends on besides the options: this call, and what the kernel's parts can do.
struct CallFacts {
  int64_t num_tokens = 0;     // that this rank brings
  int64_t fewest_tokens = 0;  // that any rank brings; see asks_for_fewest_tokens()
  Device device;
  int max_sms = 0;   // GPUs: CallContext::max_sms; 0: the caller sets no limit
  int num_sms = 0;   // GPUs: all of them
  int comm_sms = 0;  // PrepareFinalize::comm_sms()
  int finalize_sms = 0;
  int num_ranks = 1;  // that send rows here
  int64_t num_experts = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  DType dtype = DType::kBF16;
  bool has_shared = false;         // there are shared experts
  bool takes_addend = false;       // PrepareFinalize: of finalize
  bool takes_columns = false;      // PrepareFinalize: results may return in parts
  bool gives_parts = false;        // Experts: they can make results in parts
  bool can_come_in_waves = false;  // rows of this call: all parts can handle it
};

struct CallPlan {
  int num_microbatches = 1;
  // Rows come in waves where the rank with most of them gets at least so many; 0: never.
  int64_t early_rows = 0;
  // What is cut, into micro-batches, waves or parts, travels on a stream beside the call's.
  bool transfers_beside = false;
  // Loads are counted beside the rest of the call and enqueued after it: nothing in the call waits
  // for them, and their kernels would take 2 us each.  Several micro-batches count in line, since
  // the rows and counts of one may lie where the next one's come.
  bool counts_beside = false;

  // Shared experts run on a stream beside the call's, and not in line on the host.
  bool shared_beside = false;
  // A single micro-batch computes its shared experts during prepare, not during finalize.
  bool shared_first = false;
  // Where they are done before finalize, it adds their results.
  bool finalize_adds_shared = false;

  // SMs that GEMMs may take; 0: all.
  int gemm_sms = 0;             // on the call's stream
  int sms_beside_prepare = 0;   // while the rows of prepare travel
  int sms_beside_finalize = 0;  // while the results travel

  // Whether a micro-batch computes its shared experts during prepare.  Half of them do, and the
  // others compute theirs while the last results are on their way back: at either end of a call
  // nothing else is left to compute.
  bool shares_early(int microbatch) const {
    return num_microbatches == 1 ? shared_first : 2 * microbatch + 1 < num_microbatches;
  }
  // Parts by columns in which results return, where the rank with most rows has `most_rows`.  All
  // ranks know that number and the options alike, so they agree.
  int combine_parts(int64_t most_rows) const;

  // What combine_parts() goes by.
  KernelOptions options;
  CallFacts facts;
};

// Whether the plan needs CallFacts::fewest_tokens, which is a collective question.
bool asks_for_fewest_tokens(const KernelOptions& options);

// REQUIRES: options that ModularKernel accepts, with chunk_tokens > 0.
CallPlan plan_call(const KernelOptions& options, const CallFacts& facts);

}  // namespace moebius
