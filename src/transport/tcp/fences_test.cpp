// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/fences.h"

#include <gtest/gtest.h>

namespace mooncake::tcp {
namespace {

constexpr SessionId kOne{.high = 1, .low = 0}, kTwo{.high = 2, .low = 0};
constexpr Incarnation kHere{1}, kThere{2};

TEST(TcpFences, RemembersWhatIsInDoubtUntilItIsSettled) {
    Fences fences;
    EXPECT_TRUE(fences.in_doubt(kHere).empty());
    fences.doubt(kHere, kOne);
    fences.doubt(kHere, kOne);
    fences.doubt(kHere, kTwo);
    EXPECT_EQ(fences.in_doubt(kHere), (std::vector{kOne, kTwo}));
    EXPECT_TRUE(fences.in_doubt(kThere).empty()) << "each target for itself";
    fences.settled(kHere, {&kOne, 1});
    EXPECT_FALSE(fences.in_doubt(kHere, kOne));
    EXPECT_TRUE(fences.in_doubt(kHere, kTwo));
    fences.settled(kThere, {&kTwo, 1});
    EXPECT_TRUE(fences.in_doubt(kHere, kTwo));
}

TEST(TcpFences, OutdatesTheOtherConnectionsToTheSameTarget) {
    Fences fences;
    Fences::Member broken, other, elsewhere, gone;
    fences.join(kHere, broken);
    fences.join(kHere, other);
    fences.join(kThere, elsewhere);
    fences.join(kHere, gone);
    fences.leave(kHere, gone);
    fences.outdate_others(kHere, &broken);
    EXPECT_FALSE(broken.outdated);
    EXPECT_TRUE(other.outdated);
    EXPECT_FALSE(elsewhere.outdated);
    EXPECT_FALSE(gone.outdated);
    fences.leave(kHere, broken);
    fences.leave(kHere, other);
    fences.leave(kThere, elsewhere);
}

}  // namespace
}  // namespace mooncake::tcp
