// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/trouble.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "transport/fabric/keys.h"

namespace mooncake::fabric {
namespace {

const ProviderProfile& tcp() { return *find_profile("tcp"); }
const ProviderProfile& efa() { return *find_profile("efa"); }

TEST(FabricTrouble, KnowsABrokenPath) {
    for (const int error :
         {ECANCELED, ENOTCONN, ECONNRESET, ECONNABORTED, ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, EIO, EREMOTEIO, kNoReceive})
        EXPECT_EQ(trouble_of(tcp(), error, 0), Trouble::kPath) << error;
}

TEST(FabricTrouble, KnowsAKeyThatIsRefused) {
    EXPECT_EQ(trouble_of(tcp(), EKEYREJECTED, 0), Trouble::kStale);
    EXPECT_EQ(trouble_of(tcp(), kNoKey, 0), Trouble::kStale);
    EXPECT_EQ(trouble_of(efa(), EINVAL, 7), Trouble::kStale);
    EXPECT_EQ(trouble_of(*find_profile("efa-direct"), EINVAL, 7), Trouble::kStale);
}

TEST(FabricTrouble, KnowsOurOwnMistakes) {
    for (const int error : {EMSGSIZE, EACCES, EINVAL}) EXPECT_EQ(trouble_of(tcp(), error, 0), Trouble::kMisuse) << error;
    EXPECT_EQ(trouble_of(efa(), EIO, 5), Trouble::kMisuse);
}

TEST(FabricTrouble, ReadsAProvidersNumbersOnlyAsThatProviderMeansThem) {
    EXPECT_EQ(trouble_of(tcp(), EINVAL, 7), Trouble::kMisuse);
    EXPECT_EQ(trouble_of(efa(), EIO, 14), Trouble::kPath);
    EXPECT_EQ(trouble_of(efa(), EINVAL, 4124), Trouble::kPath);
}

TEST(FabricTrouble, TakesTheUnknownForTheWay) {
    EXPECT_EQ(trouble_of(tcp(), 4711, 4711), Trouble::kPath);
    EXPECT_EQ(trouble_of(tcp(), EAGAIN, 0), Trouble::kAgain);
    EXPECT_EQ(trouble_of(tcp(), 0, 0), Trouble::kNone);
}

TEST(FabricTrouble, TellsTheCallerWhatToDo) {
    EXPECT_EQ(code_of(Trouble::kPath), Code::kUnavailable);
    EXPECT_EQ(code_of(Trouble::kStale), Code::kNotRegistered);
    EXPECT_EQ(code_of(Trouble::kMisuse), Code::kInvalidArgument);
}

TEST(FabricTrouble, DescribesItselfForPeople) {
    EXPECT_EQ(describe_trouble(efa(), EINVAL, 7), "Invalid argument (22), provider 7: bad remote key or address");
    EXPECT_EQ(describe_trouble(tcp(), ECONNRESET, ECONNRESET), "Connection reset by peer (104)");
    EXPECT_EQ(describe_trouble(tcp(), EIO, 999), "Input/output error (5), provider 999");
    EXPECT_EQ(describe_trouble(tcp(), kNoKey, 0), "no such key (266)");
}

TEST(FabricKeys, AreNeverTheSame) {
    KeySource keys(8, 0xabcdef01'ffffff00);
    std::set<uint64_t> seen;
    for (int i = 0; i < 1000; ++i) {
        const uint64_t key = keys.next();
        EXPECT_EQ(key >> 32, 0xabcdef01u) << "the life of the process stays in it";
        EXPECT_TRUE(seen.insert(key).second);
    }
}

TEST(FabricKeys, FitIntoWhatTheProviderKeeps) {
    KeySource keys(4, 0xabcdef01'ffffff00);
    std::set<uint64_t> seen;
    for (int i = 0; i < 1000; ++i) {
        const uint64_t key = keys.next();
        EXPECT_LE(key, UINT32_MAX);
        EXPECT_TRUE(seen.insert(key).second);
    }
    EXPECT_NE(KeySource(4, 1).next(), KeySource(4, 2).next());
}

}  // namespace
}  // namespace mooncake::fabric
