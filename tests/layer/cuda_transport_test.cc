// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The backends over ranks give the same bits on GPUs as on CPUs: the rows that a rank's experts
// get, and the output that comes back, in several calls of one object.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "layer/rows/token_slices.h"
#include "problems/expert_problem.h"
#include "problems/place.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/backends.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr int64_t kHidden = 256;
constexpr int64_t kTopk = 3;
constexpr int64_t kMaxTokens = 16;

enum class Kind { kAllGather, kMonolithic, kHighThroughput, kRoomyHighThroughput, kLowLatency };
constexpr Kind kKinds[] = {Kind::kAllGather, Kind::kMonolithic, Kind::kHighThroughput,
                           Kind::kRoomyHighThroughput, Kind::kLowLatency};
constexpr const char* kNames[] = {"all-gather", "monolithic", "high throughput",
                                  "high throughput with a capacity", "low latency"};

// Everything that a rank sees: the rows in use that it gets, and the output that comes back to it.
struct Seen {
  std::vector<Tensor> tensors;
};

class CudaTransport : public GpuRanksTest {
 protected:
  int64_t num_experts() const { return GetParam().num_ranks * 2 + 1; }
};

// The second of three calls has the most tokens and the largest values.  They remain in the buffers
// beyond the rows of the third call, and must not be read there.
PrepareInput input_of(int rank, int call, int64_t num_experts) {
  const int64_t num_tokens = (rank * 5 + call * 7 + 4) % (kMaxTokens + 1);
  const auto seed = 100 * rank + call;
  PrepareInput input;
  input.hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, seed, call == 1 ? 30.0f : 1.0f);
  input.topk_ids = random_ids(num_tokens, kTopk, num_experts, seed + 1);
  for (int64_t i = 0; i < input.topk_ids.numel(); i += 7) {
    input.topk_ids.data<int32_t>()[i] = -1;
  }
  if (num_tokens > 1) {  // the first token goes nowhere
    std::fill_n(input.topk_ids.data<int32_t>(), kTopk, -1);
  }
  input.topk_weights = random_tensor({num_tokens, kTopk}, DType::kF32, seed + 2);
  input.router_logits = random_tensor({num_tokens, num_experts}, DType::kF32, seed + 3);
  input.lora_ids = random_ids(num_tokens, 1, 4, seed + 4).view({num_tokens});
  input.num_experts = num_experts;
  return input;
}

// The number of rows before the first that has no expert.
int64_t num_routed(const Tensor& ids) {
  const auto* id = ids.data<int32_t>();
  int64_t row = 0;
  while (row < ids.dim(0) &&
         std::any_of(id + row * kTopk, id + (row + 1) * kTopk, [](int32_t i) { return i >= 0; })) {
    ++row;
  }
  return row;
}

Seen run_calls(Group& group, Kind kind, const QuantConfig& quant, int64_t num_experts) {
  const Place place(group.device());
  const auto placement = ExpertPlacement::linear(num_experts, group.size());
  const int64_t num_local = placement.num_local(group.rank());
  const bool batched = kind == Kind::kLowLatency;
  const bool is_roomy = kind == Kind::kRoomyHighThroughput && group.device().is_cuda();
  const auto capacity = is_roomy ? std::optional<int64_t>(0) : std::nullopt;
  Transports transports(group);
  const auto pf =
      kind == Kind::kLowLatency
          ? make_low_latency(transports.low_latency(placement, {kMaxTokens, kHidden, kTopk}))
      : kind == Kind::kHighThroughput || kind == Kind::kRoomyHighThroughput
          ? make_high_throughput(transports.high_throughput(placement), capacity)
          : make_allgather_reducescatter(group, kind == Kind::kMonolithic);
  WorkspacePool pool;
  const CallContext context{place.stream, &pool};
  QuantConfig own = quant;
  Seen seen;
  for (int call = 0; call < 3; ++call) {
    const PrepareInput input = input_there(place, input_of(group.rank(), call, num_experts), own);
    const PrepareResult prepared = pf->prepare(input, context);
    Tensor counts;
    if (batched) {
      counts = place.bring(prepared.expert_num_tokens);
      seen.tensors.push_back(counts.clone());  // a result keeps its bank
    }
    const int64_t room = prepared.x.dim(0);
    const int64_t used_rows = is_roomy ? num_routed(place.bring(prepared.topk_ids)) : room;
    const auto keep = [&](const Tensor& tensor) {
      if (!tensor) {
        return;
      }
      Tensor here = place.bring(tensor);
      if (is_roomy && here.dim(0) == room) {
        here = here.slice(0, used_rows);
      }
      if (!batched || here.dim(0) != num_local) {
        seen.tensors.push_back(here.clone());
        return;
      }
      for (int64_t e = 0; e < num_local; ++e) {
        const int64_t used = std::min<int64_t>(counts.data<int32_t>()[e], here.dim(1));
        seen.tensors.push_back(here[e].slice(0, used).clone());
      }
    };
    for (const Tensor& tensor :
         {prepared.x, prepared.x_scale, prepared.topk_ids, prepared.topk_weights,
          prepared.router_logits, prepared.lora_ids}) {
      keep(tensor);
    }
    const Shape rows = batched ? Shape{num_local, prepared.x.dim(1), kHidden}
                               : Shape{prepared.x.dim(0), kTopk, kHidden};
    const auto reduce = make_weight_and_reduce(batched ? WeightAndReduceKind::kDelegate
                                                       : WeightAndReduceKind::kContiguous);
    FinalizeInput done;
    done.output = Tensor::zeros(input.hidden.shape(), DType::kBF16, place.device());
    done.expert_output = place.take(random_tensor(rows, DType::kBF16, 9 + group.rank()));
    // In a monolithic call these stand for what a router would choose from the logits.
    const int64_t num_rows = prepared.x.dim(0);
    done.topk_ids = kind == Kind::kMonolithic
                        ? place.take(random_ids(num_rows, kTopk, num_experts, 77))
                        : prepared.topk_ids;
    done.topk_weights = kind == Kind::kMonolithic
                            ? place.take(random_tensor({num_rows, kTopk}, DType::kF32, 78))
                            : prepared.topk_weights;
    done.weight_and_reduce = reduce.get();
    pf->finalize(done, context);
    seen.tensors.push_back(place.bring(done.output));
    place.stream.synchronize();
    pf->check();
  }
  if (const auto statistics = pf->statistics()) {
    int64_t counts[] = {statistics->selections, statistics->copies, statistics->node_copies};
    seen.tensors.push_back(Tensor::borrow(counts, {3}, DType::kI64, Device::cpu()).clone());
  }
  return seen;
}

struct TransportCase {
  Kind kind;
  std::string_view scheme;
  QuantConfig quant;

  std::string name() const {
    return std::string(kNames[static_cast<int>(kind)]) + ", " + std::string(scheme);
  }
};

std::vector<TransportCase> transport_cases(int64_t num_experts) {
  ExpertsDesc desc;
  desc.num_experts = desc.num_local_experts = num_experts;
  desc.topk = kTopk;
  desc.hidden = kHidden;
  desc.intermediate = 64;
  std::vector<TransportCase> cases;
  for (const Kind kind : kKinds) {
    for (const Scheme& scheme : kSchemes) {
      const std::string_view name = scheme.name;
      if (name != "unquantized" && name != "fp8_tensor" && name != "fp8_tensor_static" &&
          name != "fp8_block" && name != "fp8_block_ue8m0" && name != "int8_w8a8_token" &&
          name != "mxfp8") {
        continue;
      }
      cases.push_back(
          {kind, name, ExpertProblemMaker(3).make_weights(desc, {.scheme = scheme}).quant});
    }
  }
  return cases;
}

// All cases run in one group of each kind, because an NCCL group takes half a second to set up.
TEST_P(CudaTransport, PreparesAndFinalizesAsOnTheCpu) {
  const std::vector<TransportCase> cases = transport_cases(num_experts());
  std::vector<std::vector<Seen>> expected(cases.size());  // by case, then by rank
  for (std::vector<Seen>& of_ranks : expected) {
    of_ranks.resize(static_cast<size_t>(GetParam().num_ranks));
  }
  run_thread_ranks({.num_ranks = GetParam().num_ranks}, [&](Group& group) {
    for (size_t c = 0; c < cases.size(); ++c) {
      expected[c][static_cast<size_t>(group.rank())] =
          run_calls(group, cases[c].kind, cases[c].quant, num_experts());
    }
  });
  run([&](Group& group) {
    for (size_t c = 0; c < cases.size(); ++c) {
      SCOPED_TRACE(cases[c].name() + ", rank " + std::to_string(group.rank()));
      const Seen actual = run_calls(group, cases[c].kind, cases[c].quant, num_experts());
      const Seen& wanted = expected[c][static_cast<size_t>(group.rank())];
      ASSERT_EQ(actual.tensors.size(), wanted.tensors.size());
      for (size_t i = 0; i < wanted.tensors.size(); ++i) {
        SCOPED_TRACE("tensor " + std::to_string(i));
        expect_same_bits(actual.tensors[i], wanted.tensors[i]);
      }
    }
  });
}

TEST_P(CudaTransport, SumsAndGathersSlicesOfTokens) {
  run([&](Group& group) {
    const Place place(group.device());
    for (const int64_t num_tokens : {0, 1, 7, 64}) {
      const auto partial = [&](int rank) {
        return random_tensor({num_tokens, kHidden}, DType::kBF16, rank + 1);
      };
      const Tensor out = Tensor::zeros({num_tokens, kHidden}, DType::kBF16, place.device());
      sum_over_ranks(group, place.take(partial(group.rank())), out, place.stream);
      const Tensor actual = place.bring(out);
      std::vector<Tensor> parts;
      for (int rank = 0; rank < group.size(); ++rank) {
        parts.push_back(partial(rank));
      }
      for (int64_t i = 0; i < actual.numel(); ++i) {
        float sum = 0.0f;
        for (const Tensor& part : parts) {
          sum += get_float(part, i);
        }
        ASSERT_EQ(get_float(actual, i), static_cast<float>(BFloat16(sum))) << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaTransport, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
