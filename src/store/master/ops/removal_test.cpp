// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/removal.h"

#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class RemovalTest : public PoolTest {
protected:
    void SetUp() override { add_node(1, 1 << 20); }
    uint64_t remove_all_that(Removal::Matches matches, bool force = false, std::optional<std::string_view> tenant = "") {
        auto t = transaction();
        Removal removal(
            t, {.tenant = tenant ? std::optional<std::string>(*tenant) : std::nullopt, .matches = std::move(matches), .force = force});
        removal.start(t, now_);
        while (!removal.done()) removal.remove(t, removal.choose(removal.look(t.state())), now_);
        return removal.removed();
    }
};

TEST_F(RemovalTest, TakesWhatItMay) {
    for (const char* key : {"a1", "a2", "a3", "b1"}) put(key);
    start("a4");
    get("a2");
    const auto with_a = [](std::string_view key) { return key.starts_with("a"); };
    EXPECT_EQ(remove_all_that(with_a), 2u);
    EXPECT_TRUE(holds("a2"));
    EXPECT_EQ(remove_all_that(with_a, true), 1u);
    EXPECT_EQ(remove_all_that(nullptr, false, std::nullopt), 1u);
    EXPECT_EQ(state().objects().size(), 1u) << "the one being written";
}

TEST_F(RemovalTest, GoesOnWhereItStoppedWhileOthersPutAndRemove) {
    for (int i = 0; i < 3000; ++i) put(std::to_string(i), 64);
    auto t = transaction();
    Removal removal(t, {.tenant = ""});
    removal.start(t, now_);
    int parts = 0;
    for (; !removal.done(); ++parts) {
        const auto keys = removal.choose(removal.look(t.state()));
        EXPECT_LE(keys.size(), 1024u);
        if (parts == 0) remove_key("2999");
        put(format_text("new {}", parts), 64);
        removal.remove(t, keys, now_);
    }
    EXPECT_GE(parts, 3);
    for (int i = 0; i < 3000; ++i) EXPECT_FALSE(holds(std::to_string(i))) << i;
}

TEST_F(RemovalTest, ThatIsCarriedOutLateTakesNothingThatWasWrittenSinceItWasAskedFor) {
    for (const bool force : {false, true}) {
        for (const char* key : {"old", "replaced", "replaced meanwhile"}) ASSERT_EQ(put(key), StoreCode::kOk);
        start("unfinished");
        auto t = transaction();
        Removal removal(t, {.force = force});
        end("unfinished");
        put("new");
        end("replaced", upsert("replaced").generation);
        removal.start(t, now_);
        const auto keys = removal.choose(removal.look(t.state()));
        EXPECT_EQ(keys.size(), 2u);
        end("replaced meanwhile", upsert("replaced meanwhile").generation);
        removal.remove(t, keys, now_);
        EXPECT_EQ(removal.removed(), 1u);
        EXPECT_FALSE(holds("old"));
        for (const char* key : {"unfinished", "new", "replaced", "replaced meanwhile"}) {
            EXPECT_TRUE(holds(key)) << key << " was acknowledged after it";
            remove_key(key, true);
        }
    }
}

TEST_F(RemovalTest, StopsBetweenTwoKeys) {
    for (int i = 0; i < 10; ++i) put(std::to_string(i), 64);
    auto t = transaction();
    int tried = 0;
    Removal removal(t, {.matches = [&](std::string_view) { return ++tried > 0; }});
    removal.start(t, now_);
    EXPECT_EQ(removal.choose(removal.look(t.state()), [&] { return tried == 3; }).size(), 3u);
    EXPECT_EQ(tried, 3);
}

TEST_F(RemovalTest, OfAnUnknownTenantRemovesNothing) {
    options_.tenants = true;
    use(options_);
    log_.clear();
    SetUp();
    EXPECT_EQ(remove_all_that(nullptr, true, "stranger"), 0u);
}

TEST_F(RemovalTest, OfEverythingByForceCoversWhatIsYetToBeReported) {
    put("k");
    remove_all_that(nullptr, true, std::nullopt);
    EXPECT_TRUE(state().tombstones().covers(state().tenants().hash(TenantTable::kDefaultName), 1, state().generations().next_rank() - 1));
}

}  // namespace
}  // namespace mooncake::store
