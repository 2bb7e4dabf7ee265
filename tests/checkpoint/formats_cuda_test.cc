// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/format_layers.h"
#include "tests/gpu_test.h"

namespace moebius::testing {
namespace {

class FormatsCuda : public GpuTest {};

TEST_F(FormatsCuda, ALayerComputesWithEveryStoredFormat) {
  for (const std::string& format : format_names()) {
    for (const char* family : kFormatFamilies) {
      for (const char* quant : {"auto", "none"}) {
        expect_layer_computes(format, family, quant, Stream::cuda(0));
      }
    }
  }
}

}  // namespace
}  // namespace moebius::testing
