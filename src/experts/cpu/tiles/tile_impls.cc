// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The implementations among the tile experts: what each of them takes, and on which processors.
#include <string>
#include <string_view>
#include <utility>

#include "core/cpu_features.h"
#include "core/select.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "experts/cpu/tiles/tile_experts.h"
#include "quant/groups.h"

namespace moebius::cpu {

namespace {

constexpr const char* kOnlyRef = "precision f64 is computed by ref only";

// Whether bf16 products lose nothing of the values of these experts.
Support bf16_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  if (desc.precision != Precision::kModel) {
    return Support::no(kOnlyRef);
  }
  if (desc.in_dtype != DType::kBF16) {
    return Support::no(std::string("products of bf16 would lose bits of activations in ") +
                       std::string(name(desc.in_dtype)));
  }
  const QuantConfig& q = weights.quant;
  for (const auto& [w, w_desc] : {std::pair{&weights.w1, &q.w1}, std::pair{&weights.w2, &q.w2}}) {
    if (!w_desc->format && w->dtype() != DType::kBF16) {
      return Support::no(std::string("products of bf16 would lose bits of weights in ") +
                         std::string(name(w->dtype())));
    }
    if (Support support = PackedWeight::supports(*w_desc, Operand::kBF16); !support.ok) {
      return support;
    }
  }
  return Support::yes();
}

// A set of kernels of f32 products.
struct FloatTiles {
  std::string_view name;
  const TileKernels& (*kernels)();
  bool can_run;
};

}  // namespace

const TileKernels& float_tiles() {
  [[maybe_unused]] const CpuFeatures& has = cpu_features();
  const FloatTiles sets[] = {
#ifdef MOEBIUS_HAVE_AVX512_VNNI
      {"vnni", vnni_tiles, has.avx512 && has.avx512_vnni},
#endif
#ifdef MOEBIUS_HAVE_AVX2
      {"avx2", avx2_tiles, has.avx2},
#endif
      {"plain", plain_tiles, true},
  };
  const auto& set =
      select_impl(sets, "cpu vectors", "MOEBIUS_CPU_VECTORS", {}, [](const FloatTiles& tiles) {
        return tiles.can_run ? Support::yes() : Support::no("this processor has none of them");
      });
  return set.kernels();
}

Support portable_supports(const ExpertsDesc& desc, const ExpertWeights&) {
  return desc.precision == Precision::kModel ? Support::yes() : Support::no(kOnlyRef);
}

std::unique_ptr<Experts> make_portable(const ExpertsDesc& desc,
                                       ExpertWeights weights,
                                       const Stream& stream) {
  return make_tile_experts(desc, std::move(weights), stream, "cpu_portable", float_tiles());
}

#ifdef MOEBIUS_HAVE_AVX512_VBMI
bool can_run_avx512_tiles() {
  const CpuFeatures& has = cpu_features();
  return has.avx512_bf16 && has.avx512_vnni && has.avx512_vbmi;
}

Support avx512_supports(const ExpertsDesc& desc, const ExpertWeights& weights) {
  return can_run_avx512_tiles() ? bf16_supports(desc, weights)
                                : Support::no("this processor has no AVX-512 BF16, VNNI and VBMI");
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
  return bf16_supports(desc, weights);
}

std::unique_ptr<Experts> make_amx(const ExpertsDesc& desc,
                                  ExpertWeights weights,
                                  const Stream& stream) {
  return make_tile_experts(desc, std::move(weights), stream, "cpu_amx", amx_tiles());
}
#endif

}  // namespace moebius::cpu
