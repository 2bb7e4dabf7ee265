// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Row operations and the single-rank backends give the same bits on a GPU as on the CPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "layer/rows/row_ops.h"
#include "problems/expert_problem.h"
#include "problems/place.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/tensors.h"
#include "tests/on_devices.h"

namespace moebius::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
// One element, rows of odd length, and more vectors than a launch has threads.
const Shape kShapes[] = {{1, 1}, {5, 131}, {600, 7168}};

class CudaRows : public OnGpu {
 protected:
  // Runs call(place, out) on both devices.  `out` may have contents that the call reads.
  template <typename Call>
  void expect_same_on_gpu(const Tensor& out, const Call& call) const {
    const Tensor on_gpu = place_.take(out);
    call(Place(), out);
    call(place_, on_gpu);
    expect_same_bits(place_.bring(on_gpu), out);
  }
};

TEST_F(CudaRows, CopiesAndAdds) {
  for (const Shape& shape : kShapes) {
    for (const DType from : kFloats) {
      const Tensor a = random_tensor(shape, from, 1);
      const Tensor b = random_tensor(shape, from, 2);
      for (const DType to : kFloats) {
        SCOPED_TRACE(to_string(shape) + std::string(name(from)) + " to " + std::string(name(to)));
        const Tensor out = Tensor::zeros(shape, to);
        expect_same_on_gpu(out, [&](const Place& place, const Tensor& y) {
          copy_rows(place.take(a), y, place.stream);
        });
        expect_same_on_gpu(out, [&](const Place& place, const Tensor& y) {
          add_rows(place.take(a), place.take(b), y, place.stream);
        });
      }
      expect_same_on_gpu(a.clone(), [&](const Place& place, const Tensor& y) {
        add_rows(y, place.take(b), y, place.stream);
      });
    }
  }
}

TEST_F(CudaRows, ScalesAndGates) {
  for (const Shape& shape : kShapes) {
    for (const DType dtype : kFloats) {
      SCOPED_TRACE(to_string(shape) + std::string(name(dtype)));
      const Tensor x = random_tensor(shape, dtype, 1);
      const Tensor weights = random_tensor({shape[0], 1}, DType::kF32, 2);
      expect_same_on_gpu(Tensor::zeros(shape, dtype), [&](const Place& place, const Tensor& y) {
        scale_rows(place.take(x), place.take(weights), y, place.stream);
      });
      for (const DType gate_dtype : kFloats) {
        const Tensor gate = random_tensor({1, shape[1]}, gate_dtype, 3);
        expect_same_on_gpu(random_tensor(shape, dtype, 4),
                           [&](const Place& place, const Tensor& y) {
                             gate_rows(place.take(x), place.take(gate), y, place.stream);
                           });
      }
    }
  }
}

TEST_F(CudaRows, FillsAndCounts) {
  for (const int64_t n : {1, 1000, 5'000'000}) {
    expect_same_on_gpu(Tensor::zeros({n}, DType::kF32),
                       [&](const Place& place, const Tensor& y) { fill(y, 1.5f, place.stream); });
    const Tensor value = random_tensor({1}, DType::kF32, 3);
    expect_same_on_gpu(Tensor::zeros({n}, DType::kF32), [&](const Place& place, const Tensor& y) {
      fill(y, place.take(value), place.stream);
    });
    expect_same_on_gpu(Tensor::zeros({n}, DType::kI32),
                       [&](const Place& place, const Tensor& y) { fill(y, -1, place.stream); });
  }
  const Tensor counts = random_ids(1, 700, 1000, 1).view({700});
  expect_same_on_gpu(Tensor::zeros({700}, DType::kI64), [&](const Place& place, const Tensor& y) {
    add_counts(place.take(counts), y, place.stream);
    add_counts(place.take(counts), y, place.stream);
  });
  const Tensor ids = random_ids(3000, 5, 64, 7);
  for (int64_t i = 0; i < ids.numel(); i += 11) {
    ids.data<int32_t>()[i] = -1;
  }
  expect_same_on_gpu(Tensor::zeros({1}, DType::kI64), [&](const Place& place, const Tensor& y) {
    count_selections(place.take(ids), y, place.stream);
    count_selections(place.take(ids), y, place.stream);
  });
  const Tensor map =
      random_ids(1, 60, 8, 3).view({60});  // the ids name more experts than the map has
  expect_same_on_gpu(Tensor::zeros(ids.shape(), DType::kI32),
                     [&](const Place& place, const Tensor& y) {
                       map_ids(place.take(ids), place.take(map), y, place.stream);
                     });
}

TEST_F(CudaRows, ClearsWhatComesAfterTheRowsInUse) {
  for (const auto& [shape, dtype] :
       {std::pair(Shape{5, 131}, DType::kBF16), std::pair(Shape{5, 131}, DType::kF32),
        std::pair(Shape{300, 7168}, DType::kF16)}) {
    for (const int32_t num_rows : {-1, 0, 3, 5, 999}) {
      SCOPED_TRACE(to_string(shape) + std::to_string(num_rows));
      expect_same_on_gpu(random_tensor(shape, dtype, 1), [&](const Place& place, const Tensor& y) {
        clear_rows_after(y, place.take(ids_of({1}, {num_rows})), place.stream);
      });
    }
  }
}

// Compares rows that `prepare` hands over.  With counts, only rows in use are compared.
void expect_same_rows(const Tensor& actual, const Tensor& expected, const Tensor& counts) {
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!expected) {
    return;
  }
  if (!counts || expected.num_dims() < 2 || expected.dim(0) != counts.numel()) {
    expect_same_bits(actual, expected);
    return;
  }
  for (int64_t e = 0; e < counts.numel(); ++e) {
    const int64_t used = std::min<int64_t>(counts.data<int32_t>()[e], expected.dim(1));
    if (used > 0) {
      expect_same_bits(actual[e].slice(0, used), expected[e].slice(0, used));
    }
  }
}

struct BothPlaces {
  WorkspacePool pools[2];
  Place places[2] = {Place(), Place(DeviceType::kCuda)};
  CallContext context(int i) { return {places[i].stream, &pools[i]}; }
};

TEST_F(CudaRows, OneRankPreparesAndFinalizesAsOnTheCpu) {
  constexpr int64_t kTokens = 37;
  constexpr int64_t kMaxTokens = 40;
  constexpr int64_t kHidden = 384;
  constexpr int64_t kExperts = 6;
  for (const Scheme& scheme : kSchemes) {
    for (const bool batched : {false, true}) {
      for (const bool mapped : {false, true}) {
        SCOPED_TRACE(std::string(scheme.name) + (batched ? ", batched" : "") +
                     (mapped ? ", half of the experts" : ""));
        const int64_t num_local = mapped ? kExperts / 2 : kExperts;
        const int64_t topk = 3;
        ExpertsDesc desc =
            fake_desc(kExperts, topk, kHidden, ActivationFormat::kStandard, DType::kBF16);
        desc.num_local_experts = num_local;
        desc.intermediate = 96;
        const QuantConfig quant =
            ExpertProblemMaker(3).make_weights(desc, {.scheme = scheme}).quant;
        PrepareInput input;
        input.hidden = random_tensor({kTokens, kHidden}, DType::kBF16, 1);
        input.topk_ids = random_ids(kTokens, topk, kExperts, 2);
        input.topk_ids.data<int32_t>()[4] = -1;
        input.topk_weights = random_tensor({kTokens, topk}, DType::kF32, 3);
        input.lora_ids = random_ids(kTokens, 1, 4, 5).view({kTokens});
        input.num_experts = kExperts;
        if (mapped) {
          input.expert_map = ids_of({kExperts}, {-1, 0, -1, 1, 2, -1});
        }
        BothPlaces both;
        PrepareResult results[2];
        Tensor outputs[2];
        bool is_refused = false;
        Tensor expert_output;
        for (const int i : {0, 1}) {
          const Place& place = both.places[i];
          const auto pf = batched ? make_no_ep_batched(kMaxTokens, num_local) : make_no_ep();
          if (!pf->accepts(quant, false).ok) {
            is_refused = true;
            break;
          }
          QuantConfig own = quant;
          const PrepareInput there = input_there(place, input, own);
          const PrepareResult prepared = pf->prepare(there, both.context(i));
          PrepareResult& result = results[i];
          for (const auto part :
               {&PrepareResult::x, &PrepareResult::x_scale, &PrepareResult::expert_num_tokens,
                &PrepareResult::topk_ids, &PrepareResult::topk_weights, &PrepareResult::lora_ids}) {
            result.*part = place.bring(prepared.*part);
          }
          expert_output = random_tensor(
              batched ? Shape{num_local, kMaxTokens, kHidden} : Shape{kTokens, topk, kHidden},
              DType::kBF16, 9);
          const auto reduce = make_weight_and_reduce(batched ? WeightAndReduceKind::kNaiveBatched
                                                             : WeightAndReduceKind::kContiguous);
          FinalizeInput done;
          done.output = Tensor::zeros(input.hidden.shape(), DType::kBF16, place.device());
          done.expert_output = place.take(expert_output);
          done.topk_ids = prepared.topk_ids ? prepared.topk_ids : there.topk_ids;
          done.topk_weights = prepared.topk_weights ? prepared.topk_weights : there.topk_weights;
          done.weight_and_reduce = reduce.get();
          pf->finalize(done, both.context(i));
          outputs[i] = place.bring(done.output);
        }
        if (is_refused) {
          continue;
        }
        const Tensor& counts = results[0].expert_num_tokens;
        expect_same_rows(results[1].expert_num_tokens, counts, {});
        expect_same_rows(results[1].topk_ids, results[0].topk_ids, {});
        expect_same_rows(results[1].x, results[0].x, counts);
        expect_same_rows(results[1].x_scale, results[0].x_scale, counts);
        expect_same_rows(results[1].lora_ids, results[0].lora_ids, counts);
        expect_same_bits(outputs[1], outputs[0]);
      }
    }
  }
}

TEST_F(CudaRows, WorkspacesGrowWhileTheirWorkIsUnderWay) {
  WorkspacePool pool;
  const Stream other_stream = Stream::cuda(0);
  std::vector<Tensor> kept;
  std::vector<Tensor> others;  // may get the memory that the pool frees
  for (int64_t n = 1 << 20; n <= 1 << 24; n *= 2) {
    kept.push_back(Tensor::empty({n}, DType::kF32, place_.device()));
    const Tensor space = pool.get(0, WorkspaceSlot::kLayer, {n}, DType::kF32, place_.stream);
    for (int i = 0; i < 20; ++i) {
      fill(space, static_cast<float>(n), place_.stream);
    }
    copy(space, kept.back(), place_.stream);
    pool.get(0, WorkspaceSlot::kLayer, {2 * n}, DType::kF32, place_.stream);
    others.push_back(Tensor::empty({n}, DType::kF32, place_.device()));
    fill(others.back(), -1.0f, other_stream);
  }
  other_stream.synchronize();
  for (const Tensor& tensor : kept) {
    const Tensor here = place_.bring(tensor);
    for (const int64_t i : {int64_t{0}, here.numel() / 2, here.numel() - 1}) {
      EXPECT_EQ(here.data<float>()[i], static_cast<float>(here.numel()));
    }
  }
}

// A workspace goes where one on another device replaces it, or with its pool.
TEST_F(CudaRows, WorkspacesMayGoWhileTheirWorkIsUnderWay) {
  constexpr int64_t kNumel = 1 << 24;
  constexpr WorkspaceSlot kSlot = WorkspaceSlot::kLayer;
  const Stream other_stream = Stream::cuda(0);
  for (const bool is_replaced : {true, false}) {
    SCOPED_TRACE(is_replaced ? "replaced" : "with the pool");
    const Tensor kept = Tensor::empty({kNumel}, DType::kF32, place_.device());
    auto pool = std::make_unique<WorkspacePool>();
    {
      const Tensor space = pool->get(0, kSlot, {kNumel}, DType::kF32, place_.stream);
      for (int i = 0; i < 200; ++i) {  // about 4 ms
        fill(space, 1.0f, place_.stream);
      }
      copy(space, kept, place_.stream);
    }
    if (is_replaced) {
      pool->get(0, kSlot, {kNumel}, DType::kF32, Stream::cpu());
    } else {
      pool.reset();
    }
    const Tensor other = Tensor::empty({kNumel}, DType::kF32, place_.device());
    fill(other, -1.0f, other_stream);
    other_stream.synchronize();
    const Tensor here = place_.bring(kept);
    for (const int64_t i : {int64_t{0}, kNumel / 2, kNumel - 1}) {
      EXPECT_EQ(here.data<float>()[i], 1.0f);
    }
  }
}

}  // namespace
}  // namespace moebius::testing
