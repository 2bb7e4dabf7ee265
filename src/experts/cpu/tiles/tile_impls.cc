// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tile experts take, on which processors.
#include <string>
#include <utility>

#include "core/cpu_features.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "experts/cpu/tiles/tile_experts.h"
#include "moebius/quantize.h"
#include "quant/groups.h"

namespace moebius::cpu {

namespace {

Support packed_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  if (desc.precision != Precision::kModel) {
    return Support::no("precision f64 is computed by ref only");
  }
  if (desc.in_dtype != DType::kBF16) {
    return Support::no(std::string("products of bf16 would lose bits of activations in ") +
                       std::string(name(desc.in_dtype)));
  }
  if (desc.num_adapters > 0) {
    return Support::no("no LoRA adapters beside packed weights");
  }
  const QuantConfig& q = weights.quant;
  for (const auto& [w, w_desc] : {std::pair{&weights.w1, &q.w1}, std::pair{&weights.w2, &q.w2}}) {
    if (!w_desc->format && w->dtype() != DType::kBF16) {
      return Support::no(std::string("products of bf16 would lose bits of weights in ") +
                         std::string(name(w->dtype())));
    }
    if (Support support = PackedWeight::supports(*w_desc); !support.ok) {
      return support;
    }
  }
  if (quant::scales_over_rows(q.a2)) {
    return Support::no("a2 has a dynamic scale of all rows, which are computed a few at a time");
  }
  return Support::yes();
}

}  // namespace

Support tiles_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  return packed_supports(desc, weights);
}

std::unique_ptr<Experts> make_tiles(const ExpertsDesc& desc,
                                    ExpertWeights weights,
                                    const Stream& stream) {
  return make_tile_experts(desc, std::move(weights), stream, "cpu_tiles", portable_tiles());
}

#ifdef MOEBIUS_HAVE_AVX512_VBMI
bool can_run_avx512_tiles() {
  const CpuFeatures& has = cpu_features();
  return has.avx512_bf16 && has.avx512_vnni && has.avx512_vbmi;
}

Support avx512_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  if (!can_run_avx512_tiles()) {
    return Support::no("this processor has no AVX-512 BF16, VNNI and VBMI");
  }
  return packed_supports(desc, weights);
}

std::unique_ptr<Experts> make_avx512(const ExpertsDesc& desc,
                                     ExpertWeights weights,
                                     const Stream& stream) {
  return make_tile_experts(desc, std::move(weights), stream, "cpu_avx512", avx512_tiles());
}
#endif

#ifdef MOEBIUS_HAVE_AMX
bool can_run_amx_tiles() {
  const CpuFeatures& has = cpu_features();
  return has.amx_bf16 && has.amx_int8 && has.avx512_bf16 && has.avx512_fp16 && has.avx512_vnni &&
         has.avx512_vbmi;
}

Support amx_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  if (!can_run_amx_tiles()) {
    return Support::no(
        "this processor has no AMX, or no AVX-512 BF16, FP16, VNNI and VBMI beside it");
  }
  return packed_supports(desc, weights);
}

std::unique_ptr<Experts> make_amx(const ExpertsDesc& desc,
                                  ExpertWeights weights,
                                  const Stream& stream) {
  return make_tile_experts(desc, std::move(weights), stream, "cpu_amx", amx_tiles());
}
#endif

}  // namespace moebius::cpu
