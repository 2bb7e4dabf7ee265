// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/random_fill.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/parallel.h"
#include "core/splitmix64.h"
#include "moebius/tensor.h"

namespace moebius::checkpoint {

namespace {

constexpr int64_t kPerWord = 4;  // a random number of 64 bits chooses 4 values

// Standard normal quantiles at (i + 0.5) / n.  Newton's method starts at the quantile before.
// REQUIRES: n is even.
std::vector<float> compute_quantiles(int64_t n) {
  std::vector<float> result(static_cast<size_t>(n));
  double x = 0.0;
  for (int64_t i = n / 2; i < n; ++i) {
    const double upper = (static_cast<double>(n - i) - 0.5) / static_cast<double>(n);
    for (int step = 0; step < 6; ++step) {
      const double tail = 0.5 * std::erfc(x / std::numbers::sqrt2);
      const double density =
          std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      x += (tail - upper) / density;
    }
    result[static_cast<size_t>(i)] = static_cast<float>(x);
    result[static_cast<size_t>(n - 1 - i)] = static_cast<float>(-x);
  }
  return result;
}

template <typename Word>
void fill_words(const std::byte* table, std::byte* out, int64_t first, int64_t n, uint64_t seed) {
  for (int64_t i = 0; i < n; i += kPerWord) {
    uint64_t random = splitmix64::number(seed, static_cast<uint64_t>((first + i) / kPerWord));
    const int64_t count = std::min(kPerWord, n - i);
    for (int64_t j = 0; j < count; ++j, random >>= 16) {
      std::memcpy(out + (i + j) * static_cast<int64_t>(sizeof(Word)),
                  table + (random & 0xffffu) * sizeof(Word), sizeof(Word));
    }
  }
}

}  // namespace

ValueTable::ValueTable(DType dtype, const std::function<float(int64_t)>& element)
    : values_(static_cast<size_t>(kSize * bits(dtype) / 8)), element_bytes_(bits(dtype) / 8) {
  const Tensor values = Tensor::borrow(values_.data(), {kSize}, dtype);
  for (int64_t i = 0; i < kSize; ++i) {
    set_float(values, i, element(i));
  }
}

ValueTable ValueTable::normal(DType dtype, const std::function<float(float)>& element) {
  static const std::vector<float> quantiles = compute_quantiles(kSize);
  return {dtype, [&](int64_t i) { return element(quantiles[static_cast<size_t>(i)]); }};
}

ValueTable ValueTable::uniform(DType dtype, const std::function<float(float)>& element) {
  return {dtype, [&](int64_t i) {
            return element((static_cast<float>(i) + 0.5f) / static_cast<float>(kSize));
          }};
}

ValueTable ValueTable::normal_nibbles(const std::function<uint8_t(float)>& code) {
  const std::vector<float> quantiles = compute_quantiles(256);
  ValueTable table(DType::kU8, [](int64_t) { return 0.0f; });
  for (size_t i = 0; i < table.values_.size(); ++i) {
    const uint8_t low = code(quantiles[i & 0xff]);
    const uint8_t high = code(quantiles[i >> 8]);
    table.values_[i] = static_cast<std::byte>(low | (high << 4));
  }
  return table;
}

void ValueTable::fill(std::span<std::byte> out,
                      int64_t first,
                      uint64_t seed,
                      const Stream& stream) const {
  assert(first % kPerWord == 0);
  assert(static_cast<int64_t>(out.size()) % element_bytes_ == 0);
  constexpr int64_t kGrain = 1 << 18;
  static_assert(kGrain % kPerWord == 0);
  const int64_t n = static_cast<int64_t>(out.size()) / element_bytes_;
  parallel_for(stream, n, kGrain, [&](int64_t begin, int64_t end) {
    std::byte* to = out.data() + begin * element_bytes_;
    if (element_bytes_ == 1) {
      fill_words<uint8_t>(values_.data(), to, first + begin, end - begin, seed);
    } else if (element_bytes_ == 2) {
      fill_words<uint16_t>(values_.data(), to, first + begin, end - begin, seed);
    } else {
      fill_words<uint32_t>(values_.data(), to, first + begin, end - begin, seed);
    }
  });
}

uint64_t tensor_seed(uint64_t seed, std::string_view tensor) {
  uint64_t hash = splitmix64::number(seed, 0);
  for (const char c : tensor) {
    hash = splitmix64::number(hash ^ static_cast<unsigned char>(c), 0);
  }
  return hash;
}

}  // namespace moebius::checkpoint
