// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/huge_pages.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <new>

namespace moebius {

namespace {

constexpr std::align_val_t kAlignment{256};
constexpr std::align_val_t kHugePage{size_t{2} << 20};
constexpr int64_t kLarge = int64_t{4} << 20;

}  // namespace

std::shared_ptr<std::byte> allocate_block(int64_t bytes) {
  const auto n = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const auto alignment = bytes < kLarge ? kAlignment : kHugePage;
  std::shared_ptr<std::byte> block(static_cast<std::byte*>(::operator new(n, alignment)),
                                   [alignment](std::byte* p) { ::operator delete(p, alignment); });
#ifdef MADV_HUGEPAGE
  if (bytes >= kLarge) {
    madvise(block.get(), n, MADV_HUGEPAGE);  // results do not depend on whether this succeeds
  }
#endif
  return block;
}

}  // namespace moebius
