// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank says, and tells the others, of failures that it was told in a given order.  Between
// processes of MPI the order is up to chance.
#include "comm/group/peer_group.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/error_text.h"

namespace moebius::comm {
namespace {

// One rank, whose peers are only heard.
class LoneGroup : public PeerGroup {
 public:
  LoneGroup(int rank, int num_ranks)
      : PeerGroup(Topology::make(rank, num_ranks, 0), std::chrono::seconds(60), 1, 1) {}

  std::string_view name() const override { return "lone"; }
  // Returns the error of its first call when it hears these failures, and what it tells after that
  // as a rank does that ends with this error.
  std::pair<std::string, std::vector<Failure>> end_in(std::string_view op,
                                                      std::vector<Failure> heard) {
    heard_ = std::move(heard);
    const std::string error = testing::message_of<CommError>([&] { barrier(op); });
    abort(error);
    return {error, told_};
  }

 private:
  std::unique_ptr<Exchange> post_exchange(const Call&, ExchangeBlocks) override {
    throw Error("no rank is there to exchange with");
  }
  std::unique_ptr<PeerGroup> make_sub_group(const SubGroup&) override { return nullptr; }
  void progress() override { failures_ = heard_; }
  void tell_failure(const Failure& failure) override { told_.push_back(failure); }
  bool has_left(int) const override { return false; }

  std::vector<Failure> heard_;
  std::vector<Failure> told_;
};

// Rank 2 is in "combine", the others in "dispatch".  Rank 3 finds out, and rank 0 hears of it first
// from rank 2.
TEST(PeerGroup, ARankThatHearsOfAMismatchFromTheGuiltyRankBlamesTheGuiltyRank) {
  const Failure found = make_mismatch(3, {"dispatch", 1}, 2, "combine");
  const auto [guilty_says, guilty_tells] = LoneGroup(2, 4).end_in("combine", {found});
  EXPECT_EQ(guilty_says,
            "rank 2: combine, epoch 1: rank 3 is in \"dispatch\" at epoch 1, expected \"combine\"");
  EXPECT_EQ(LoneGroup(0, 4).end_in("dispatch", guilty_tells).first,
            "rank 0: dispatch, epoch 1: rank 2 is in \"combine\" at epoch 1, expected \"dispatch\" "
            "(found by rank 3 in dispatch, epoch 1)");
}

}  // namespace
}  // namespace moebius::comm
