// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/same_values.h"

#include <fmt/format.h>

#include <vector>

namespace moebius {

void expect_same_values(Group& group,
                        std::string_view op,
                        std::string_view who,
                        std::initializer_list<SameValue> own) {
  std::vector<int64_t> values;
  for (const SameValue& each : own) {
    values.push_back(each.value);
  }
  std::vector<int64_t> all(values.size() * static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, values.data(), static_cast<int64_t>(values.size() * sizeof(int64_t)),
                   all.data());
  for (size_t i = values.size(); i < all.size(); ++i) {
    const size_t of_first = i % values.size();
    expect(all[i] == all[of_first], [&] {
      const SameValue& each = own.begin()[of_first];
      return fmt::format("{}: {} is {} on rank {} and {} on rank 0", who, each.name,
                         each.text(all[i]), i / values.size(), each.text(all[of_first]));
    });
  }
}

}  // namespace moebius
