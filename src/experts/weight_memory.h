// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Whose memory the weights of experts are in, and how their values are replaced.
#pragma once

#include <vector>

#include "moebius/experts.h"

namespace moebius {

// The weights as an implementation keeps them that reads all of them as they are given
// (own_weights), or that repacks w1 and w2 with their scales and reads only the rest as given
// (own_constants).  Lent tensors stay the lender's.
ExpertWeights own_weights(ExpertWeights weights, const ExpertsDesc& desc, const Stream& stream);
ExpertWeights own_constants(ExpertWeights weights, const ExpertsDesc& desc, const Stream& stream);

// What experts remember of the weights that they were made from, to compare an update with it.
class GivenWeights {
 public:
  explicit GivenWeights(const ExpertWeights& weights);

  // Throws InvalidArgument, naming the tensor and both values, unless experts on `device` can take
  // these weights in place of the given ones.
  void expect_update(const ExpertsDesc& desc, const ExpertWeights& weights, Device device) const;

 private:
  // The tensors, of which only dtype, shape and address may be read: they do not keep memory alive.
  std::vector<Tensor> tensors_;
  QuantConfig scheme_;  // without tensors
};

// Copies the values of the tensors that both have from `from` to `to`, in the order of `stream`,
// and converts those whose dtypes differ.  On return host memory has been read.
void copy_values(const ExpertWeights& from, const ExpertWeights& to, const Stream& stream);

}  // namespace moebius
