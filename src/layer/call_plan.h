// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CallPlan: everything that a call of the modular kernel decides about itself.  It is computed once
// from the options and the facts below, before anything is enqueued, and is only read afterwards.
#pragma once

#include <cstdint>

#include "moebius/modular_kernel.h"

namespace moebius {

// What a plan depends on besides the options: this call, and what the kernel's parts can do.
struct CallFacts {
  int64_t num_tokens = 0;     // tokens that this rank brings
  int64_t fewest_tokens = 0;  // the smallest number of any rank; see asks_for_fewest_tokens()
  Device device;
  int max_sms = 0;       // GPUs: CallContext::max_sms; 0: the caller sets no limit
  int num_sms = 0;       // GPUs: the SMs of the device
  int comm_sms = 0;      // see PrepareFinalizeTraits
  int finalize_sms = 0;  // see PrepareFinalizeTraits
  int num_ranks = 1;     // ranks that send rows here
  int64_t num_experts = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  DType dtype = DType::kBF16;
  bool has_shared = false;         // there are shared experts
  bool takes_addend = false;       // see PrepareFinalizeTraits
  bool takes_columns = false;      // see PrepareFinalizeTraits: results may return in parts
  bool gives_parts = false;        // the experts can make results in parts
  bool can_come_in_waves = false;  // prepare/finalize and experts can handle waves in this call
  // The caller drives the call step by step, so that its own work can hide the transfers, and other
  // layers may have rows on their way.
  bool in_steps = false;
};

struct CallPlan {
  int num_microbatches = 1;
  // Rows come in waves if the rank that receives most rows gets at least so many; 0: never.
  int64_t early_rows = 0;
  // Micro-batches, waves, parts and calls in steps travel on a stream beside the call's.
  bool transfers_beside = false;
  // The kernels that count loads run on a stream beside the call's and are enqueued last, since
  // nothing in the call waits for them and each would delay it by 2 us.  Loads that the experts
  // count themselves (ExpertsTraits::counts_rows) need none.  With several micro-batches
  // they run on the call's stream, since one micro-batch's rows and counts may lie where those of
  // the next arrive; so they do in steps, where the next may be of another layer.
  bool counts_beside = false;

  // Shared experts run on a stream beside the call's instead of in line on the host.
  bool shared_beside = false;
  // A single micro-batch computes its shared experts during prepare instead of during finalize.
  bool shared_first = false;
  // finalize adds the shared experts' results where they are done before it.
  bool finalize_adds_shared = false;

  // The most SMs that GEMMs may take; 0: all.
  int gemm_sms = 0;             // on the call's stream
  int sms_beside_prepare = 0;   // while rows travel to the experts
  int sms_beside_finalize = 0;  // while results travel back

  // Whether this micro-batch computes its shared experts during prepare.  The first half of the
  // micro-batches do, and the others compute theirs while results travel back, because at either
  // end of a call there is nothing else to compute.
  bool shares_early(int microbatch) const {
    return num_microbatches == 1 ? shared_first : 2 * microbatch + 1 < num_microbatches;
  }
  // The number of parts by columns in which results return if the rank with most rows has
  // `most_rows`.  All ranks know the same number and have the same options, so they agree.
  int combine_parts(int64_t most_rows) const;

  // combine_parts() reads these.
  KernelOptions options;
  CallFacts facts;
};

// Whether the plan needs CallFacts::fewest_tokens, which takes a collective call to find.
bool asks_for_fewest_tokens(const KernelOptions& options);

// REQUIRES: options that ModularKernel accepts, with chunk_tokens > 0.
CallPlan plan_call(const KernelOptions& options, const CallFacts& facts);

}  // namespace moebius
