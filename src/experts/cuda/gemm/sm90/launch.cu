// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cassert>
#include <type_traits>

#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "experts/cuda/gemm/sm90/kernel.cuh"

namespace moebius::cuda::sm90 {

namespace {

template <typename Config>
void launch_kernel(const Args& args, int num_sms, int index, cudaStream_t stream) {
  const auto kernel = grouped_gemm_kernel<Config>;
  constexpr auto kBytes = sizeof(Shared<Config>);
  static_assert(kBytes <= 227 * 1024);
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  const int clusters = std::max(1, num_sms / kClusterSize);
  launch_early("grouped_gemm_kernel", kernel, static_cast<unsigned>(clusters * kClusterSize),
               kThreads, kBytes, stream, args);
}

}  // namespace

void launch(const Args& args,
            Operands operands,
            Result result,
            int num_sms,
            int index,
            cudaStream_t stream) {
  const auto run = [&](auto config) {
    launch_kernel<decltype(config)>(args, num_sms, index, stream);
  };
  if (args.decode_counters != nullptr) {
    assert(operands == Operands::kBF16 || operands == Operands::kScaledBF16);
    assert(result == Result::kBF16 || result == Result::kActivatedBF16);
    const bool activates = result == Result::kActivatedBF16;
    if (operands == Operands::kBF16) {
      return activates ? run(Config<Operands::kBF16, BFloat16, true, true>{})
                       : run(Config<Operands::kBF16, BFloat16, false, true>{});
    }
    return activates ? run(Config<Operands::kScaledBF16, BFloat16, true, true>{})
                     : run(Config<Operands::kScaledBF16, BFloat16, false, true>{});
  }
  const auto run_coded = [&](auto out) {
    using Out = decltype(out);
    const auto run_any = [&](auto in_bulk) {
      constexpr bool kInBulk = decltype(in_bulk)::value;
      return operands == Operands::kF8E4M3
                 ? run(Config<Operands::kF8E4M3, Out, false, false, kInBulk>{})
             : operands == Operands::kScaledF8E4M3
                 ? run(Config<Operands::kScaledF8E4M3, Out, false, false, kInBulk>{})
                 : run(Config<Operands::kInt8, Out, false, false, kInBulk>{});
    };
    if constexpr (sizeof(Out) == 2) {
      if (args.in_bulk) {
        return run_any(std::true_type{});
      }
    }
    return run_any(std::false_type{});
  };
  const auto run_f16 = [&](auto out) {
    using Out = decltype(out);
    return operands == Operands::kF16 ? run(Config<Operands::kF16, Out>{})
                                      : run(Config<Operands::kScaledF16, Out>{});
  };
  const auto run_bf16 = [&](auto out) {
    using Out = decltype(out);
    return operands == Operands::kBF16         ? run(Config<Operands::kBF16, Out>{})
           : operands == Operands::kScaledBF16 ? run(Config<Operands::kScaledBF16, Out>{})
                                               : run_coded(out);
  };
  switch (result) {
    case Result::kF32:
      return is_f16(operands) ? run_f16(float{}) : run_bf16(float{});
    case Result::kBF16:
      return run_bf16(BFloat16{});
    case Result::kF16:
      return is_f16(operands) ? run_f16(Float16{}) : run_bf16(Float16{});
    case Result::kActivatedBF16:
      return operands == Operands::kScaledBF16
                 ? run(Config<Operands::kScaledBF16, BFloat16, true>{})
             : operands == Operands::kF8E4M3 ? run(Config<Operands::kF8E4M3, BFloat16, true>{})
                                             : run(Config<Operands::kBF16, BFloat16, true>{});
    case Result::kActivatedF8E4M3:
      return operands == Operands::kScaledF8E4M3
                 ? run(Config<Operands::kScaledF8E4M3, F8E4M3, true>{})
                 : run(Config<Operands::kF8E4M3, F8E4M3, true>{});
  }
}

}  // namespace moebius::cuda::sm90
