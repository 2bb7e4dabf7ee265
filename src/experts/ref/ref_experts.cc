// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums run over k in order.  Where both operands of a GEMM are fp8 or int8 codes, kModel multiplies
// codes and applies scales per block (once at the end when there is one): sum += dot * sa * sw.
// All other operands are multiplied as the f32 values that they stand for.
#include "experts/ref/ref_experts.h"

#include <algorithm>
#include <string>

#include "core/parallel.h"
#include "experts/experts_base.h"
#include "experts/ref/activation.h"
#include "experts/ref/lora.h"
#include "experts/validate.h"
#include "quant/scale_grid.h"

namespace moebius::ref {

namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kColumnGrain = 8;

// A row of an operand.  Its values are codes where it has scales, else numbers.
template <typename T>
struct Row {
  const T* values;
  const float* scales;  // one per block, or nullptr
};

struct Blocks {
  int64_t k;
  int64_t block;          // elements per scale
  bool integers = false;  // codes are int8, whose dot products are exact
};

template <typename Real, typename T>
Real dot(Row<T> a, Row<float> w, const Blocks& shape) {
  Real sum = 0;
  if (a.scales == nullptr) {
    for (int64_t i = 0; i < shape.k; ++i) {
      sum += static_cast<Real>(a.values[i]) * static_cast<Real>(w.values[i]);
    }
    return sum;
  }
  for (int64_t begin = 0, b = 0; begin < shape.k; begin += shape.block, ++b) {
    const int64_t end = std::min(shape.k, begin + shape.block);
    Real part = 0;
    if (shape.integers) {
      int64_t exact = 0;
      for (int64_t i = begin; i < end; ++i) {
        exact += static_cast<int64_t>(a.values[i]) * static_cast<int64_t>(w.values[i]);
      }
      part = static_cast<Real>(exact);
    } else {
      for (int64_t i = begin; i < end; ++i) {
        part += static_cast<Real>(a.values[i]) * static_cast<Real>(w.values[i]);
      }
    }
    sum += part * static_cast<Real>(a.scales[b]) * static_cast<Real>(w.scales[b]);
  }
  return sum;
}

// The columns per scale; 0: one scale for all of k.
int64_t block_cols(const std::optional<GroupShape>& shape) {
  return shape ? std::max<int64_t>(0, shape->col) : 0;
}

bool multiplies_codes(const RowQuantizer& a, const QuantDesc& w, Precision precision) {
  return precision == Precision::kModel && a.active() && w.format == a.spec().format &&
         (w.format == QuantFormat::kFp8 || w.format == QuantFormat::kInt8) && !w.zero_point &&
         block_cols(a.spec().group) == block_cols(w.shape);
}

// One of the two weights, row by row.
class Weight {
 public:
  Weight(const Tensor& w,
         const QuantDesc& desc,
         const RowQuantizer& a,
         const Tensor& a_gscale,
         int64_t gate_rows,
         Precision precision)
      : w_(w),
        desc_(desc),
        a_gscale_(a_gscale),
        gate_rows_(gate_rows),
        codes_(multiplies_codes(a, desc, precision)) {
    blocks_.k = w.dim(2);
    blocks_.block = codes_ && block_cols(desc.shape) > 0 ? block_cols(desc.shape) : blocks_.k;
    blocks_.integers = desc.format == QuantFormat::kInt8;
    if (codes_) {
      grid_ = quant::scale_grid(w, desc, gate_rows);
    }
  }

  bool codes() const { return codes_; }
  const Blocks& blocks() const { return blocks_; }
  int64_t num_blocks() const { return (blocks_.k + blocks_.block - 1) / blocks_.block; }

  // values [k], scales [num_blocks()].
  Row<float> row(int64_t e, int64_t n, float* values, float* scales) const {
    if (!codes_) {
      dequantize_weight_rows(w_, desc_, {e, n, n + 1, gate_rows_}, values, a_gscale_);
      return {values, nullptr};
    }
    const int64_t begin = (e * w_.dim(1) + n) * blocks_.k;
    for (int64_t i = 0; i < blocks_.k; ++i) {
      values[i] = get_float(w_, begin + i);
    }
    for (int64_t b = 0; b < num_blocks(); ++b) {
      scales[b] = get_float(desc_.scale, grid_.row_begin(e, n) + b);
    }
    return {values, scales};
  }

  float bias(int64_t e, int64_t n) const {
    return desc_.bias ? get_float(desc_.bias, e * w_.dim(1) + n) : 0.0f;
  }

 private:
  const Tensor& w_;
  const QuantDesc& desc_;
  const Tensor& a_gscale_;
  int64_t gate_rows_;
  bool codes_;
  quant::ScaleGrid grid_;  // of codes
  Blocks blocks_;
};

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16:
      return static_cast<float>(BFloat16(value));
    case DType::kF16:
      return static_cast<float>(Float16(value));
    default:
      return value;
  }
}

class RefExperts final : public ExpertsBase {
 public:
  RefExperts(const ExpertsDesc& desc, ExpertWeights weights, const Stream& stream)
      : ExpertsBase(desc,
                    std::move(weights),
                    stream,
                    {"ref", WeightAndReduceKind::kContiguous, own_weights}),
        w1_(weights_.w1,
            weights_.quant.w1,
            quantize_a1_,
            weights_.quant.a1.alpha_or_gscale,
            gate_rows(desc),
            desc.precision),
        w2_(weights_.w2,
            weights_.quant.w2,
            quantize_a2_,
            weights_.quant.a2.alpha_or_gscale,
            desc.hidden,
            desc.precision) {}

 private:
  int64_t scratch_bytes(int64_t rows) const override {
    return desc_.precision == Precision::kF64 ? bytes_of<Buffers<double>>(*this, rows)
                                              : bytes_of<Buffers<float>>(*this, rows);
  }

  void run(const ExpertsInput& input,
           const Tensor& output,
           Scratch scratch,
           const Stream& stream) const override {
    if (desc_.precision == Precision::kF64) {
      compute<double>(input, output, scratch, bounded(stream));
    } else {
      compute<float>(input, output, scratch, bounded(stream));
    }
  }

  template <typename Real>
  struct Buffers {
    Buffers(const RefExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const int64_t slots = self.num_slots(rows);
      const int64_t widest = std::max(d.hidden, d.intermediate);
      order = self.take_order(scratch, slots);
      const int64_t x_rows = self.num_input_rows(self.input_quantizer(), rows);
      x = scratch.take({x_rows, d.hidden}, DType::kF32);
      x_codes = scratch.take({self.w1_.codes() ? x_rows : 0, d.hidden}, DType::kU8);
      x_scales = scratch.take<float>(x_rows * self.quantize_a1_.num_blocks(d.hidden));
      tile = scratch.take<Real>(kTileRows * d.w1_rows());
      act = scratch.take<Real>(slots * d.intermediate);
      act_codes = scratch.take({self.w2_.codes() ? slots : 0, d.intermediate}, DType::kU8);
      act_scales = scratch.take<float>(slots * self.quantize_a2_.num_blocks(d.intermediate));
      weight_values = scratch.take<float>(self.max_threads() * widest);
      weight_scales = scratch.take<float>(self.max_threads() * widest);
      lora = scratch.take<Real>(slots * self.lora_halves() * d.lora_rank);
    }
    RowOrder order;
    Tensor x, x_codes;
    float* x_scales;
    Real* tile;
    Real* act;
    Tensor act_codes;
    float* act_scales;
    float* weight_values;
    float* weight_scales;
    Real* lora;  // A * x of a tile (GEMM1) or of all rows (GEMM2), [rows, halves * r]
  };

  template <typename Real>
  void compute(const ExpertsInput& input,
               const Tensor& output,
               Scratch& scratch,
               const Stream& stream) const {
    Buffers<Real> buffers(*this, num_rows(input), scratch);
    RowOrder& order = buffers.order;
    fill_order(input, order);
    clear_skipped(order, output, stream);
    if (order.num_rows == 0) {
      return;
    }
    const Adapters adapters(input.lora_ids, order);
    const InputRows x_rows(input_quantizer(), desc_.format);
    load_input(input, buffers, stream);
    for (int64_t e = 0; e < desc_.num_local_experts; ++e) {
      for (int64_t r = order.expert_offsets[e]; r < order.expert_offsets[e + 1]; r += kTileRows) {
        const int64_t count = std::min<int64_t>(kTileRows, order.expert_offsets[e + 1] - r);
        const auto x = [&](int64_t i) -> Row<float> {
          const int64_t row = x_rows.index(order, r + i);
          return {buffers.x.template data<float>() + row * desc_.hidden,
                  w1_.codes() ? buffers.x_scales + row * w1_.num_blocks() : nullptr};
        };
        const LoraWeights& lora = weights_.lora;
        shrink(lora.w1_a, adapters, e, r, count, x, w1_.blocks(), buffers.lora, stream);
        gemm<Real>(w1_, e, count, x, buffers, stream, [&](int64_t i, int64_t n, Real value) {
          const Real* u = buffers.lora + (i * lora_halves() + half_of(n)) * desc_.lora_rank;
          value = add_adapter(value, lora.w1_b, adapters.of(r + i), e, n, u);
          buffers.tile[i * desc_.w1_rows() + n] = rounded(value);
        });
        for (int64_t i = 0; i < count; ++i) {
          activate_row(buffers.tile + i * desc_.w1_rows(),
                       buffers.act + (r + i) * desc_.intermediate);
        }
      }
    }
    quantize_hidden(input, buffers, stream);
    for (int64_t e = 0; e < desc_.num_local_experts; ++e) {
      const int64_t first = order.expert_offsets[e];
      const auto act = [&](int64_t i) -> Row<Real> {
        return {buffers.act + (first + i) * desc_.intermediate,
                w2_.codes() ? buffers.act_scales + (first + i) * w2_.num_blocks() : nullptr};
      };
      shrink(weights_.lora.w2_a, adapters, e, first, order.rows_of(e), act, w2_.blocks(),
             buffers.lora, stream);
      gemm<Real>(w2_, e, order.rows_of(e), act, buffers, stream,
                 [&](int64_t i, int64_t n, Real value) {
                   const Real* u = buffers.lora + i * desc_.lora_rank;
                   value = add_adapter(value, weights_.lora.w2_b, adapters.of(first + i), e, n, u);
                   set_float(output, order.output_rows[first + i] * desc_.hidden + n,
                             static_cast<float>(value));
                 });
    }
  }

  // Calls store(i, n, value) with the products of rows a(0) .. a(count - 1) and every row n of
  // expert e's weight.
  template <typename Real, typename A, typename Store>
  void gemm(const Weight& w,
            int64_t e,
            int64_t count,
            A a,
            const Buffers<Real>& buffers,
            const Stream& stream,
            Store store) const {
    const int64_t num_columns = &w == &w1_ ? desc_.w1_rows() : desc_.hidden;
    const int64_t widest = std::max(desc_.hidden, desc_.intermediate);
    if (count == 0) {
      return;
    }
    const int64_t num_tasks = (num_columns + kColumnGrain - 1) / kColumnGrain;
    parallel_tasks(stream, num_tasks, [&](int64_t task, int thread) {
      const int64_t end = std::min(num_columns, (task + 1) * kColumnGrain);
      for (int64_t n = task * kColumnGrain; n < end; ++n) {
        const Row<float> row = w.row(e, n, buffers.weight_values + thread * widest,
                                     buffers.weight_scales + thread * widest);
        const Real bias = w.bias(e, n);
        for (int64_t i = 0; i < count; ++i) {
          store(i, n, dot<Real>(a(i), row, w.blocks()) + bias);
        }
      }
    });
  }

  // Knows the adapter of each row in computing order; -1: none.
  class Adapters {
   public:
    Adapters(const Tensor& ids, const RowOrder& order)
        : ids_(ids ? ids.data<int32_t>() : nullptr), order_(order) {}
    int32_t of(int64_t r) const { return ids_ != nullptr ? ids_[order_.input_row(r)] : -1; }

   private:
    const int32_t* ids_;
    const RowOrder& order_;
  };

  // Whether row n of w1 belongs to gate (0) or up (1).
  int64_t half_of(int64_t n) const {
    return desc_.activation.interleaved ? n % 2 : n / desc_.intermediate;
  }

  // Sets u [count, rows of A] to A * x(i) for those rows first .. first + count - 1 that have an
  // adapter.
  template <typename Real, typename X>
  static void shrink(const Tensor& a,
                     const Adapters& adapters,
                     int64_t e,
                     int64_t first,
                     int64_t count,
                     X x,
                     const Blocks& blocks,
                     Real* u,
                     const Stream& stream) {
    if (!a) {
      return;
    }
    parallel_tasks(stream, count, [&](int64_t i, int) {
      const int32_t adapter = adapters.of(first + i);
      const auto row = x(i);
      const auto value = [&](int64_t k) {
        const auto code = static_cast<Real>(row.values[k]);
        return row.scales == nullptr ? code
                                     : code * static_cast<Real>(row.scales[k / blocks.block]);
      };
      if (adapter >= 0) {
        lora_shrink(a, adapter, e, value, u + i * a.dim(2));
      }
    });
  }

  // Adds what this adapter adds to element n of a row; keeps the bits of `value` where there is
  // none.
  template <typename Real>
  Real add_adapter(
      Real value, const Tensor& b, int32_t adapter, int64_t e, int64_t n, const Real* u) const {
    return b && adapter >= 0 ? value + lora_expand(b, weights_.lora.scaling, adapter, e, n, u)
                             : value;
  }

  // kF64 does not quantize activations.
  const RowQuantizer& input_quantizer() const {
    static const RowQuantizer kNone(QuantDesc{}, ActivationFormat::kStandard);
    return desc_.precision == Precision::kF64 ? kNone : quantize_a1_;
  }

  float rounded(float value) const { return round_to(desc_.in_dtype, value); }
  double rounded(double value) const { return value; }

  template <typename Real>
  void activate_row(const Real* in, Real* out) const {
    const ActivationSpec& spec = desc_.activation;
    for (int64_t i = 0; i < desc_.intermediate; ++i) {
      const Real gate = spec.interleaved ? in[2 * i] : in[i];
      const Real up =
          !spec.gated ? Real(0) : in[spec.interleaved ? 2 * i + 1 : i + desc_.intermediate];
      out[i] = activate(spec, gate, up, [&](Real value) { return rounded(value); });
    }
  }

  template <typename Real>
  void load_input(const ExpertsInput& input, Buffers<Real>& buffers, const Stream& stream) const {
    const CallRows rows = {desc_, buffers.order, input_quantizer(), stream};
    if (w1_.codes()) {
      const Tensor room = buffers.x_codes.view_as(storage_dtype(rows.quantizer.spec().format));
      const Tensor codes = rows.input_codes(input, room, buffers.x_scales);
      load_codes(codes, buffers.order.num_slots / buffers.order.rows_per_input,
                 buffers.x.template data<float>());
    } else {
      rows.input_values(input, buffers.x, buffers.x_scales);
    }
  }

  void quantize_hidden(const ExpertsInput&, Buffers<double>&, const Stream&) const {}
  void quantize_hidden(const ExpertsInput& input,
                       Buffers<float>& buffers,
                       const Stream& stream) const {
    if (!quantize_a2_.active()) {
      return;
    }
    const RowOrder& order = buffers.order;
    const CallRows rows = {desc_, order, quantize_a2_, stream};
    rows.take_scales(input.a2_scale, 0, order.num_rows, buffers.act_scales);
    const Tensor act =
        Tensor::borrow(buffers.act, {order.num_slots, desc_.intermediate}, DType::kF32);
    if (w2_.codes()) {
      const Tensor codes = buffers.act_codes.view_as(storage_dtype(quantize_a2_.spec().format));
      rows.hidden_codes(act, codes, buffers.act_scales);
      load_codes(codes, order.num_rows, buffers.act);
    } else {
      rows.hidden_values(act, buffers.act_scales);
    }
  }

  static void load_codes(const Tensor& codes, int64_t rows, float* values) {
    const int64_t n = rows * codes.shape().back();
    for (int64_t i = 0; i < n; ++i) {
      values[i] = get_float(codes, i);
    }
  }

  Weight w1_;
  Weight w2_;
};

}  // namespace

Support supports(const ExpertsDesc&, const ExpertWeights&) {
  return Support::yes();
}

std::unique_ptr<Experts> make(const ExpertsDesc& desc,
                              ExpertWeights weights,
                              const Stream& stream) {
  return std::make_unique<RefExperts>(desc, std::move(weights), stream);
}

}  // namespace moebius::ref
