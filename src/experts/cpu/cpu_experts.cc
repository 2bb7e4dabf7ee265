// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Each GEMM is one loop over tasks = (expert, group of its rows, block of weight rows).  GEMM1's
// task holds the gate and up columns of the same intermediate elements, so it applies the
// activation to its block while that is in cache.  Tasks depend on the call's row counts only,
// never on threads. Weights stay in their storage dtype and are read where they lie.
#include "experts/cpu/cpu_experts.h"

#include <algorithm>
#include <utility>

#include "core/parallel.h"
#include "experts/cpu/activation.h"
#include "experts/cpu/block_gemm.h"
#include "experts/cpu/lora.h"
#include "experts/cpu/tiles/tile_experts.h"
#include "experts/experts_base.h"
#include "experts/validate.h"

namespace moebius::cpu {

namespace {

// Rows of one task: weights are decoded once for this many.
constexpr int64_t kGroupRows = 512;
// oneDNN may pad the last rows of a group to its smallest tile.
constexpr int64_t kPaddedGroupRows = kGroupRows + 16;
constexpr int64_t kMaxColumns = 256;
// With few rows the weights' bytes are the cost; smaller blocks spread them over more threads.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewRowsColumns = 64;

// Weight rows of a task: a power of two that keeps a decoded block within 4 MiB.
int64_t columns_per_task(int64_t k) {
  int64_t columns = kMaxColumns;
  while (columns > kFewRowsColumns && columns * k * 4 > int64_t{4} << 20) {
    columns /= 2;
  }
  return columns;
}

bool has_native(DType operand) {
#ifdef MOEBIUS_HAVE_ONEDNN
  return onednn_has_native(operand);
#else
  (void)operand;
  return false;
#endif
}

// What activations are multiplied as (see block_gemm.h).
DType operand_dtype(const ExpertsDesc& desc, const ExpertWeights& weights, bool use_onednn) {
  const QuantConfig& q = weights.quant;
  if (multiplies_integers(desc, q)) {
    return DType::kI8;
  }
  const bool all_bf16 = desc.in_dtype == DType::kBF16 && weights.w1.dtype() == DType::kBF16 &&
                        weights.w2.dtype() == DType::kBF16 && !q.a1.format && !q.a2.format;
  return use_onednn && all_bf16 && has_native(DType::kBF16) ? DType::kBF16 : DType::kF32;
}

class CpuExperts final : public ExpertsBase {
 public:
  CpuExperts(const ExpertsDesc& desc,
             ExpertWeights weights,
             const Stream& stream,
             std::string_view implementation,
             bool use_onednn)
      : ExpertsBase(desc, std::move(weights), stream, implementation),
        kernels_(cpu_kernels()),
        operand_(operand_dtype(desc_, weights_, use_onednn)),
        w1_ranges_(desc_.activation.gated && !desc_.activation.interleaved ? 2 : 1),
        gemm1_(gemm_config(weights_.w1, weights_.quant.w1, weights_.quant.a1, use_onednn)),
        gemm2_(gemm_config(weights_.w2, weights_.quant.w2, weights_.quant.a2, use_onednn)),
        lora1_(weights_.lora.w1_a,
               weights_.lora.w1_b,
               weights_.lora.scaling,
               lora_halves(),
               operand_,
               kMaxColumns),
        lora2_(weights_.lora.w2_a,
               weights_.lora.w2_b,
               weights_.lora.scaling,
               Lora::Halves::kOne,
               operand_,
               kMaxColumns) {}

  ExpertsWorkspace workspace(int64_t rows) const override {
    Scratch scratch;
    Buffers(*this, rows, scratch);
    // GEMM1's result never leaves a task; the intermediate holds activations as GEMM2's
    // operand, or as f32 where they are yet to be quantized.
    const int64_t widening = bits(activated_dtype()) / bits(desc_.in_dtype);
    return {slots_shape(rows, desc_.intermediate * widening), slots_shape(rows, desc_.hidden),
            desc_.in_dtype, scratch.bytes()};
  }

  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const override {
    validate_call(*this, input, output, intermediate, scratch, stream);
    Scratch block(scratch.bytes());
    Buffers buffers(*this, input.x.dim(is_batched() ? 1 : 0), block);
    const Stream& threads = bounded(stream);
    fill_order(input, buffers.order);
    clear_skipped(buffers.order, output, threads);
    if (buffers.order.num_rows == 0) {
      return;
    }
    load_adapters(input.lora_ids, buffers, threads);
    const Tensor x = load_input(input, buffers, threads);
    const Tensor act = Tensor::borrow(
        intermediate.raw(), {buffers.order.num_slots, desc_.intermediate}, activated_dtype());
    run_gemm1(x, act, buffers, threads);
    const Tensor hidden = load_hidden(act, buffers, threads);
    run_gemm2(hidden, output, buffers, threads);
  }

 private:
  struct Buffers {
    Buffers(const CpuExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const bool integers = self.operand_ == DType::kI8;
      const int64_t slots = self.num_slots(rows);
      const int64_t x_rows = self.num_input_rows(self.quantize_a1_, rows);
      order = self.take_order(scratch, slots);
      first_task = scratch.take<int64_t>(d.num_local_experts + 1);
      const bool as_given = self.operand_ == d.in_dtype && !self.quantize_a1_.active();
      x = scratch.take({as_given ? 0 : x_rows, d.hidden}, self.operand_);
      x_scales = scratch.take<float>(x_rows * self.quantize_a1_.num_blocks(d.hidden));
      hidden = scratch.take({integers ? slots : 0, d.intermediate}, DType::kI8);
      hidden_scales = scratch.take<float>(integers ? slots : 0);
      const bool with_lora = d.num_adapters > 0;
      adapters = scratch.take<int32_t>(with_lora ? slots : 0);
      by_adapter = scratch.take<int32_t>(with_lora ? slots : 0);
      shrunk = scratch.take<float>(slots *
                                   std::max(self.lora1_.num_columns(), self.lora2_.num_columns()));
      thread_bytes = self.thread_bytes();
      threads = scratch.take<std::byte>(self.max_threads() * thread_bytes);
    }

    RowOrder order;
    int64_t* first_task;  // [L + 1]
    Tensor x;
    float* x_scales;
    Tensor hidden;
    float* hidden_scales;
    // Of LoraTile, for all rows in computing order.
    int32_t* adapters;
    int32_t* by_adapter;
    float* shrunk;
    bool has_adapters = false;
    int64_t thread_bytes;
    std::byte* threads;
  };

  // A thread's part of Buffers::threads.
  struct ThreadBuffers {
    ThreadBuffers(const CpuExperts& self, Scratch& scratch) {
      block = scratch.take<float>(kPaddedGroupRows * kMaxColumns);
      gemm = scratch.take<std::byte>(
          std::max(self.gemm1_.scratch_bytes(), self.gemm2_.scratch_bytes()));
      lora = scratch.take<std::byte>(
          std::max(self.lora1_.scratch_bytes(), self.lora2_.scratch_bytes()));
    }
    float* block;  // C of a task
    std::byte* gemm;
    std::byte* lora;
  };

  int64_t thread_bytes() const {
    Scratch scratch;
    ThreadBuffers(*this, scratch);
    return scratch.bytes();
  }

  // f32 unless GEMM2 reads it as it is.
  DType activated_dtype() const { return operand_ == DType::kBF16 ? DType::kBF16 : DType::kF32; }

  BlockGemm::Config gemm_config(const Tensor& w,
                                const QuantDesc& desc,
                                const QuantDesc& a,
                                bool use_onednn) const {
    BlockGemm::Config config;
    const bool is_w1 = &w == &weights_.w1;
    config.weight = w;
    config.desc = desc;
    config.a_gscale = a.alpha_or_gscale;
    config.gate_rows = is_w1 ? gate_rows(desc_) : desc_.hidden;
    config.operand = operand_;
    config.use_onednn = use_onednn && has_native(operand_);
    config.max_columns = columns_per_task(w.dim(2));
    const int64_t num_ranges = is_w1 ? w1_ranges_ : 1;
    config.range_rows = config.max_columns / num_ranges;
    config.range_total = w.dim(1) / num_ranges;
    return config;
  }

  Tensor load_input(const ExpertsInput& input, Buffers& buffers, const Stream& stream) const {
    if (operand_ == DType::kI8) {
      return input_codes(desc_, input, buffers.order, quantize_a1_, buffers.x, buffers.x_scales,
                         stream);
    }
    if (input.x.dtype() == operand_ && !quantize_a1_.active()) {
      return input.x;
    }
    input_values(desc_, input, buffers.order, quantize_a1_, buffers.x, buffers.x_scales, stream);
    return buffers.x;
  }

  Tensor load_hidden(const Tensor& act, Buffers& buffers, const Stream& stream) const {
    if (operand_ == DType::kI8) {
      hidden_codes(buffers.order, desc_.num_local_experts, quantize_a2_, act, buffers.hidden,
                   buffers.hidden_scales, stream);
      return buffers.hidden;
    }
    if (quantize_a2_.active()) {
      hidden_values(buffers.order, desc_.num_local_experts, quantize_a2_, act, stream);
    }
    return act;
  }

  // One task: rows [begin, end) in computing order of expert e times weight rows
  // [column, column + count) of each range.
  struct Task {
    int64_t e;
    int64_t begin;
    int64_t end;
    int64_t column;
    int64_t count;
    int64_t num_rows() const { return end - begin; }
  };

  // body(task, thread buffers) for all blocks of `num_columns`, `per_task` at a time.
  template <typename Body>
  void for_each_task(int64_t num_columns,
                     int64_t per_task,
                     int64_t most_dot_rows,
                     Buffers& buffers,
                     const Stream& stream,
                     Body body) const {
    const RowOrder& order = buffers.order;
    const int64_t few = std::min(per_task, kFewRowsColumns);
    const auto columns_of = [&](int64_t e) {
      return order.rows_of(e) <= std::min(kFewRows, most_dot_rows) ? few : per_task;
    };
    const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    int64_t num_tasks = 0;
    for (int64_t e = 0; e < desc_.num_local_experts; ++e) {
      buffers.first_task[e] = num_tasks;
      num_tasks += ceil_div(order.rows_of(e), kGroupRows) * ceil_div(num_columns, columns_of(e));
    }
    buffers.first_task[desc_.num_local_experts] = num_tasks;
    const int64_t* last = buffers.first_task + desc_.num_local_experts;
    parallel_tasks(stream, num_tasks, [&](int64_t index, int thread) {
      Task task{};
      task.e = std::upper_bound(static_cast<const int64_t*>(buffers.first_task), last, index) -
               buffers.first_task - 1;
      const int64_t columns = columns_of(task.e);
      const int64_t num_blocks = ceil_div(num_columns, columns);
      const int64_t local = index - buffers.first_task[task.e];
      const int64_t end = order.expert_offsets[task.e + 1];
      task.begin = order.expert_offsets[task.e] + local / num_blocks * kGroupRows;
      task.end = std::min(end, task.begin + kGroupRows);
      task.column = local % num_blocks * columns;
      task.count = std::min(columns, num_columns - task.column);
      Scratch scratch(buffers.threads + thread * buffers.thread_bytes);
      body(task, ThreadBuffers(*this, scratch));
    });
  }

  Lora::Halves lora_halves() const {
    if (!desc_.activation.gated) {
      return Lora::Halves::kOne;
    }
    return desc_.activation.interleaved ? Lora::Halves::kInterleaved : Lora::Halves::kGateThenUp;
  }

  static LoraTile lora_tile(const Lora& lora, const Task& task, const Buffers& buffers) {
    return {task.e, task.num_rows(), buffers.adapters + task.begin, buffers.by_adapter + task.begin,
            buffers.shrunk + task.begin * lora.num_columns()};
  }

  // The adapters of the rows in computing order, and their order within the tiles of the GEMMs.
  void load_adapters(const Tensor& lora_ids, Buffers& buffers, const Stream& stream) const {
    buffers.has_adapters = lora_ids.defined();
    if (!buffers.has_adapters) {
      return;
    }
    const RowOrder& order = buffers.order;
    for_each_task(1, 1, 0, buffers, stream, [&](const Task& task, const ThreadBuffers&) {
      for (int64_t r = task.begin; r < task.end; ++r) {
        buffers.adapters[r] = lora_ids.data<int32_t>()[order.input_row(r)];
      }
      sort_by_adapter(buffers.adapters + task.begin, task.num_rows(),
                      buffers.by_adapter + task.begin);
    });
  }

  // buffers.shrunk for rows given as in a GEMM: fill(task, pointers to its rows, their scales).
  template <typename Fill>
  void shrink(const Lora& lora, Buffers& buffers, const Stream& stream, Fill fill) const {
    if (!buffers.has_adapters || !lora.defined()) {
      return;
    }
    for_each_task(lora.num_columns(), Lora::kShrinkColumns, 0, buffers, stream,
                  [&](const Task& task, const ThreadBuffers& own) {
                    const void* rows[kGroupRows];
                    float scales[kGroupRows];
                    fill(task, rows, scales);
                    lora.shrink(lora_tile(lora, task, buffers), task.column, task.count, rows,
                                operand_ == DType::kI8 ? scales : nullptr, own.lora);
                  });
  }

  void add_lora(const Lora& lora,
                const Task& task,
                const WeightRange& range,
                int64_t ldc,
                const Buffers& buffers,
                const ThreadBuffers& own) const {
    if (buffers.has_adapters && lora.defined()) {
      lora.expand(lora_tile(lora, task, buffers), range, own.block, ldc, own.lora);
    }
  }

  void run_gemm1(const Tensor& x, const Tensor& act, Buffers& buffers, const Stream& stream) const {
    const ActivationSpec& spec = desc_.activation;
    const InputRows rows(quantize_a1_, desc_.format);
    const auto row_size = static_cast<size_t>(desc_.hidden * bits(operand_) / 8);
    const auto rows_of = [&](const Task& task, const void** a, float* scales) {
      for (int64_t i = 0; i < task.num_rows(); ++i) {
        const int64_t row = rows.index(buffers.order, task.begin + i);
        a[i] = x.bytes() + static_cast<size_t>(row) * row_size;
        scales[i] = operand_ == DType::kI8 ? buffers.x_scales[row] : 1.0f;
      }
    };
    shrink(lora1_, buffers, stream, rows_of);
    const int64_t width = spec.interleaved ? 2 : 1;  // w1 rows of one range per column
    const int64_t ldc = columns_per_task(desc_.hidden);
    const int64_t up_column = spec.interleaved ? 1 : ldc / 2;
    const auto per_task = ldc / (spec.gated ? 2 : 1);
    for_each_task(
        desc_.intermediate, per_task, gemm1_.most_dot_rows(), buffers, stream,
        [&](const Task& task, const ThreadBuffers& own) {
          const void* a[kGroupRows];
          float scales[kGroupRows];
          rows_of(task, a, scales);
          const WeightRange ranges[2] = {{task.column * width, task.count * width, 0},
                                         {desc_.intermediate + task.column, task.count, up_column}};
          const std::span used(ranges, static_cast<size_t>(w1_ranges_));
          gemm1_.run(task.e, used, a, task.num_rows(), own.block, own.gemm);
          for (const WeightRange& range : used) {
            finish(weights_.quant.w1, desc_.w1_rows(), task, range, ldc, own.block, scales);
            add_lora(lora1_, task, range, ldc, buffers, own);
          }
          float out[kMaxColumns];
          for (int64_t i = 0; i < task.num_rows(); ++i) {
            float* gate = own.block + i * ldc;
            for (const WeightRange& range : used) {
              round_to(kernels_, desc_.in_dtype, gate + range.column, range.count);
            }
            activate(kernels_, spec, desc_.in_dtype, gate, gate + up_column, width, out,
                     task.count);
            const int64_t at = (task.begin + i) * desc_.intermediate + task.column;
            kernels_.narrow(act.dtype(), out, act.bytes() + at * bits(act.dtype()) / 8, task.count);
          }
        });
  }

  void run_gemm2(const Tensor& hidden,
                 const Tensor& output,
                 Buffers& buffers,
                 const Stream& stream) const {
    const auto row_size = static_cast<size_t>(desc_.intermediate * bits(operand_) / 8);
    const int64_t ldc = columns_per_task(desc_.intermediate);
    const auto rows_of = [&](const Task& task, const void** a, float* scales) {
      for (int64_t i = 0; i < task.num_rows(); ++i) {
        a[i] = hidden.bytes() + static_cast<size_t>(task.begin + i) * row_size;
        scales[i] = operand_ == DType::kI8 ? buffers.hidden_scales[task.begin + i] : 1.0f;
      }
    };
    shrink(lora2_, buffers, stream, rows_of);
    for_each_task(desc_.hidden, ldc, gemm2_.most_dot_rows(), buffers, stream,
                  [&](const Task& task, const ThreadBuffers& own) {
                    const void* a[kGroupRows];
                    float scales[kGroupRows];
                    rows_of(task, a, scales);
                    const WeightRange range = {task.column, task.count, 0};
                    gemm2_.run(task.e, {&range, 1}, a, task.num_rows(), own.block, own.gemm);
                    finish(weights_.quant.w2, desc_.hidden, task, range, ldc, own.block, scales);
                    add_lora(lora2_, task, range, ldc, buffers, own);
                    for (int64_t i = 0; i < task.num_rows(); ++i) {
                      const int64_t at =
                          buffers.order.output_rows[task.begin + i] * desc_.hidden + task.column;
                      kernels_.narrow(desc_.in_dtype, own.block + i * ldc,
                                      output.bytes() + at * bits(desc_.in_dtype) / 8, task.count);
                    }
                  });
  }

  // Turns sums of codes into values (i8) and adds the bias, in place.
  void finish(const QuantDesc& w,
              int64_t num_weight_rows,
              const Task& task,
              const WeightRange& range,
              int64_t ldc,
              float* block,
              const float* row_scales) const {
    float weight_scale[kMaxColumns];
    float bias[kMaxColumns];
    const bool integers = operand_ == DType::kI8;
    for (int64_t j = 0; j < range.count; ++j) {
      const int64_t n = task.e * num_weight_rows + range.first + j;
      bias[j] = w.bias ? get_float(w.bias, n) : 0.0f;
      if (integers) {
        weight_scale[j] = get_float(w.scale, w.scale.num_dims() == 1 ? task.e : n);
      }
    }
    for (int64_t i = 0; i < task.num_rows(); ++i) {
      float* values = block + i * ldc + range.column;
      if (integers) {
        const float scale = row_scales[i];
        for (int64_t j = 0; j < range.count; ++j) {
          values[j] =
              static_cast<float>(std::bit_cast<int32_t>(values[j])) * scale * weight_scale[j];
        }
      }
      if (w.bias) {
        for (int64_t j = 0; j < range.count; ++j) {
          values[j] += bias[j];
        }
      }
    }
  }

  const CpuKernels& kernels_;
  DType operand_;
  int64_t w1_ranges_;  // 2: gate rows and up rows lie apart
  BlockGemm gemm1_;
  BlockGemm gemm2_;
  Lora lora1_;
  Lora lora2_;
};

}  // namespace

Support portable_supports(const ExpertsDesc& desc, const ExpertWeights&) {
  return desc.precision == Precision::kModel ? Support::yes()
                                             : Support::no("precision f64 is computed by ref only");
}

std::unique_ptr<Experts> make_portable(const ExpertsDesc& desc,
                                       ExpertWeights weights,
                                       const Stream& stream) {
  return std::make_unique<CpuExperts>(desc, std::move(weights), stream, "cpu_portable", false);
}

#ifdef MOEBIUS_HAVE_ONEDNN

Support onednn_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  return portable_supports(desc, weights);
}

std::unique_ptr<Experts> make_onednn(const ExpertsDesc& desc,
                                     ExpertWeights weights,
                                     const Stream& stream) {
  return std::make_unique<CpuExperts>(desc, std::move(weights), stream, "cpu_onednn", true);
}

#endif  // MOEBIUS_HAVE_ONEDNN

}  // namespace moebius::cpu
