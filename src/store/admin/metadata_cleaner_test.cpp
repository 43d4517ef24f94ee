// SPDX-License-Identifier: Apache-2.0
#include "store/admin/metadata_cleaner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

class MetadataCleanerTest : public testing::Test {
protected:
    void mount(const ClientId& client, uint64_t segment, const std::string& name) {
        master_.run([&](Transaction& t, Time now) {
            remount(t, {.client = client, .segments = {}}, now);
            const SegmentSpec spec{
                .id = {3, segment}, .name = name, .base = segment << 32, .size = 1 << 20, .endpoint = "e", .protocol = "tcp"};
            return mount_segment(t, {.client = client, .segment = spec}, now);
        });
    }
    void die(const ClientId& client) {
        master_.run([&](Transaction& t, Time now) {
            end_client(t, t.state().clients().find(client), ClientEnd::kSilent, now);
            return 0;
        });
    }
    void unmount(const ClientId& client, uint64_t segment) {
        master_.run([&](Transaction& t, Time now) { return unmount_segment(t, {.client = client, .segment = {3, segment}}, now); });
    }
    void pass(Duration time) { cleaner_.run_once(now_ += time); }

    LockedMaster master_{MasterOptions{}, nullptr, nullptr};
    std::vector<std::string> removed_;
    MetadataCleaner cleaner_{master_, "blue", 10s, [this](const std::string& key) -> Result<> {
                                 removed_.push_back(key);
                                 return {};
                             }};
    Time now_{100s};
};

TEST_F(MetadataCleanerTest, DeletesWhatADeadClientLeft) {
    mount({1, 1}, 1, "a:1");
    mount({1, 2}, 2, "b:1");
    pass(1s);
    die({1, 1});
    pass(1s);
    pass(9s);
    EXPECT_THAT(removed_, IsEmpty());
    pass(1s);
    EXPECT_THAT(removed_, UnorderedElementsAre("mooncake/blue/ram/a:1", "mooncake/blue/rpc_meta/a:1"));
    removed_.clear();
    pass(60s);
    EXPECT_THAT(removed_, IsEmpty()) << "once is enough";
}

TEST_F(MetadataCleanerTest, SparesAProcessThatCameBackUnderTheName) {
    mount({1, 1}, 1, "a:1");
    pass(1s);
    die({1, 1});
    pass(1s);
    mount({1, 9}, 9, "a:1");
    pass(20s);
    EXPECT_THAT(removed_, IsEmpty());
    die({1, 9});
    pass(1s);
    pass(10s);
    EXPECT_EQ(removed_.size(), 2u);
}

TEST_F(MetadataCleanerTest, SparesAClientThatOnlyUnmounts) {
    mount({1, 1}, 1, "a:1");
    pass(1s);
    unmount({1, 1}, 1);
    pass(1s);
    pass(60s);
    EXPECT_THAT(removed_, IsEmpty());
}

}  // namespace

}  // namespace mooncake::store
