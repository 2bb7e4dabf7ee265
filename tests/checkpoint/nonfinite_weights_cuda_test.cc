// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/nonfinite_outputs.h"
#include "tests/gpu_test.h"

namespace moebius::testing {
namespace {

class NonfiniteWeightsCuda : public GpuTest {};

TEST_F(NonfiniteWeightsCuda, ComeOutAsNanInEveryScheme) {
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(std::string(damage.module));
    const TempDir dir;
    write_damaged_model(dir.path(), damage);
    const Checkpoint checkpoint(dir.path());
    for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
      SCOPED_TRACE(scheme.name);
      EXPECT_GE(expect_nan_outputs(checkpoint, scheme.name, Stream::cuda(0)), 1);
    }
  }
}

}  // namespace
}  // namespace moebius::testing
