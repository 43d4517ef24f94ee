// SPDX-License-Identifier: Apache-2.0
#include "engine/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/testing/fake_world.h"
#include "transport/fabric/choice.h"
#include "transport/fabric/profile.h"

namespace mooncake {
namespace {

using testing::FakeScript;
using testing::FakeTransport;
using testing::FakeWorld;
using ::testing::ElementsAre;

FakeScript script;  // of the transports that makers made: a maker has no room for one

Result<std::unique_ptr<Transport>> make_fake(const TransportContext&) { return std::make_unique<FakeTransport>(script); }
Result<std::unique_ptr<Transport>> make_other(const TransportContext&) { return std::make_unique<FakeTransport>(script, "other"); }
Result<std::unique_ptr<Transport>> make_none(const TransportContext&) { return fail(Code::kNotSupported, "no such card"); }
Result<std::unique_ptr<Transport>> make_wrong(const TransportContext&) { return fail(Code::kInvalidArgument, "no such setting"); }
bool always(const EngineOptions&) { return true; }
bool by_protocol(const EngineOptions& options) { return options.protocol == "card"; }
Result<> needed(const EngineOptions&, bool made, const Error& absent) {
    if (!made) return fail(Code::kNotSupported, "needed: {}", absent.message());
    return {};
}

class TransportsTest : public ::testing::Test {
protected:
    Result<std::vector<std::string>> names(std::span<const TransportMaker> makers) {
        MC_ASSIGN_OR_RETURN(const auto made, make_transports(world.context, makers));
        std::vector<std::string> all;
        for (const auto& transport : made) all.emplace_back(transport->capabilities().name);
        return all;
    }
    FakeWorld world;
};

TEST_F(TransportsTest, AnotherOneIsAFolderAndOneLine) {
    std::vector<TransportMaker> makers(transport_makers().begin(), transport_makers().end());
    makers.push_back({.name = "fake", .make = make_fake});  // the line

    EXPECT_THAT(names(makers).value(), ElementsAre("self", "shm", "tcp", "fake"));
    world.options.transports = {"fake"};
    const auto router = Router::with(make_transports(world.context, makers).value(), world.context, world.metrics, world.service);
    EXPECT_THAT(router->endpoints(), ElementsAre(std::pair<const std::string, std::string>("fake", "fake")));
    LinkTable links(*router);
    Session session("peer", world, links, {});
    std::byte here[8] = {std::byte{7}}, there[8] = {};
    Completion completion;
    const Slice slice{.local = here, .remote = reinterpret_cast<uint64_t>(there), .length = 8, .completion = &completion};
    Incarnation life;
    const auto section = session.section();
    EXPECT_EQ(
        run_transfer(world.core, session, life, Direction::kWrite, {&slice, 1}, completion, Deadline::after(10s), Clock::now()).value(),
        8u);
    EXPECT_EQ(there[0], std::byte{7});
    world.options.transports = {"unheard-of"};
    EXPECT_EQ(names(makers).error().code(), Code::kInvalidArgument);
}

TEST_F(TransportsTest, OneThatHasToBeAskedForIsThereOnlyThen) {
    const TransportMaker makers[] = {{.name = "fake", .make = make_fake}, {.name = "other", .make = make_other, .asked_for = by_protocol}};
    EXPECT_THAT(names(makers).value(), ElementsAre("fake"));
    world.options.protocol = "card";
    EXPECT_THAT(names(makers).value(), ElementsAre("fake", "other"));
}

TEST_F(TransportsTest, OneThatMustNotBeReplacedKeepsOthersFromTheNetwork) {
    const TransportMaker makers[] = {{.name = "fake", .make = make_fake},
                                     {.name = "other", .make = make_other, .asked_for = by_protocol, .alone = always}};
    EXPECT_THAT(names(makers).value(), ElementsAre("fake"));
    world.options.protocol = "card";
    EXPECT_THAT(names(makers).value(), ElementsAre("other"));
    const TransportMaker near[] = {{.name = "fake", .make = make_fake, .reach = Reach::kSameHost}, makers[1]};
    EXPECT_THAT(names(near).value(), ElementsAre("fake", "other"));
}

TEST_F(TransportsTest, WhatDoesNotWorkHereIsLeftOutUnlessItIsNeededOrWrong) {
    const TransportMaker missing[] = {{.name = "fake", .make = make_none}, {.name = "other", .make = make_other}};
    EXPECT_THAT(names(missing).value(), ElementsAre("other"));
    const TransportMaker replaced[] = {{.name = "fake", .make = make_none, .asked_for = always}, {.name = "other", .make = make_other}};
    EXPECT_THAT(names(replaced).value(), ElementsAre("other"));
    const TransportMaker missed[] = {{.name = "fake", .make = make_none, .asked_for = always, .check = needed}};
    EXPECT_NE(names(missed).error().message().find("no such card"), std::string::npos);
    const TransportMaker wrong[] = {{.name = "fake", .make = make_wrong, .asked_for = always}};
    EXPECT_EQ(names(wrong).error().code(), Code::kInvalidArgument);
}

TEST_F(TransportsTest, ProtocolsAreKnownByNameAndByWhatTheyAreCalled) {
    for (const char* const name : {"self", "shm", "tcp", "fabric", "rdma", "efa", "cxi"}) EXPECT_STREQ(find_protocol(name), name);
    EXPECT_EQ(find_protocol("tc"), nullptr);
    EXPECT_EQ(find_protocol(""), nullptr);
    for (const std::string_view protocol : fabric::kProtocols) EXPECT_TRUE(fabric::is_fabric_protocol(protocol));
}

}  // namespace
}  // namespace mooncake
