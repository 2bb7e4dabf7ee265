// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ExpertsCall: experts with the input and the buffers of one call, all on the stream's device.
#pragma once

#include <memory>

#include "moebius/experts.h"
#include "moebius/stream.h"

namespace moebius::bench {

class ExpertsCall {
 public:
  ExpertsCall(std::shared_ptr<Experts> experts, ExpertsInput input, const Stream& stream);

  void apply() const { experts_->apply(input_, output_, intermediate_, scratch_, stream_); }
  // The rows that the experts write; zeros before the first call.
  const Tensor& rows() const { return output_; }
  // In the batched format the rows; in the standard format a row per token, which the experts or
  // this function have reduced.
  Tensor output() const;

 private:
  std::shared_ptr<Experts> experts_;
  ExpertsInput input_;
  Stream stream_;
  Tensor intermediate_;
  Tensor scratch_;
  Tensor output_;
};

}  // namespace moebius::bench
