// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace mooncake::conductor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr Time kStart{1000s};

class SchedulerTest : public testing::Test {
protected:
    void create(SchedulerOptions options) { scheduler_.emplace(std::move(options)); }
    void create(Policy policy = Policy::kFlow) { create(SchedulerOptions{.policy = policy}); }
    InstanceId add(const std::string& name, Role role) { return scheduler_->add_instance({.name = name, .role = role}).value(); }
    /// A prompt of 512-token blocks numbered from `first`.
    Request prompt(BlockHash first, size_t blocks, Priority priority = Priority::kNormal) {
        Request request{.id = ++last_, .tokens = blocks * 512, .priority = priority, .tenant = "t"};
        request.blocks.resize(blocks);
        std::iota(request.blocks.begin(), request.blocks.end(), first);
        return request;
    }
    Placement place(Request request, Time now = kStart) {
        auto placed = scheduler_->submit(std::move(request), now);
        EXPECT_TRUE(std::holds_alternative<Placement>(placed));
        return std::holds_alternative<Placement>(placed) ? std::get<Placement>(placed) : Placement{};
    }
    std::optional<Rejection> refused(Request request, Time now = kStart) {
        auto placed = scheduler_->submit(std::move(request), now);
        return std::holds_alternative<Rejection>(placed) ? std::optional(std::get<Rejection>(placed)) : std::nullopt;
    }
    std::vector<RequestId> ready(Time now) {
        std::vector<RequestId> ids;
        for (const auto& start : scheduler_->take_ready(now)) ids.push_back(start.request);
        return ids;
    }

    std::optional<Scheduler> scheduler_;
    RequestId last_ = 0;
};

TEST_F(SchedulerTest, SendsAPromptWhereItsPrefixIs) {
    create();
    add("p0", Role::kPrefill);
    add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    const Placement first = place(prompt(1, 40));
    ready(kStart);
    scheduler_->prefill_done(1, kStart + 3s, 3, std::nullopt);
    scheduler_->finished(1, kStart + 4s);
    const Placement again = place(prompt(1, 50), kStart + 5s);
    EXPECT_EQ(again.prefill, first.prefill);
    EXPECT_EQ(again.local_blocks, 40u);
    EXPECT_EQ(again.transfer_seconds, 0);
}

TEST_F(SchedulerTest, CopiesAPrefixToAFreeInstanceWhereItsHolderIsBusy) {
    for (const Policy policy : {Policy::kGlobal, Policy::kFlow}) {
        create(policy);
        last_ = 0;
        const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill);
        add("d0", Role::kDecode);
        scheduler_->cache().use(p0, prompt(1, 40).blocks);
        place(prompt(1, 200));
        ready(kStart);
        const Placement second = place(prompt(1, 60));
        EXPECT_EQ(second.prefill, p1);
        EXPECT_GE(second.reused_blocks, 40u);
        EXPECT_EQ(second.local_blocks, 0u);
        EXPECT_GT(second.transfer_seconds, 0);
    }
}

TEST_F(SchedulerTest, ReusesWhatLiesInTheStore) {
    create();
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    Request request = prompt(1, 40);
    request.store_blocks = 30;
    const Placement placement = place(request);
    EXPECT_EQ(placement.reused_blocks, 30u);
    EXPECT_EQ(placement.local_blocks, 0u);
}

TEST_F(SchedulerTest, LetsShortPromptsOvertakeLongOnesButNotForEver) {
    create();
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    place(prompt(1000, 20));
    EXPECT_THAT(ready(kStart), ElementsAre(1));
    place(prompt(2000, 100));
    place(prompt(3000, 2));
    scheduler_->prefill_done(1, kStart + 1s, 1, std::nullopt);
    EXPECT_THAT(ready(kStart + 1s), ElementsAre(3));
    place(prompt(4000, 2), kStart + 600s);
    scheduler_->prefill_done(3, kStart + 601s, 1, std::nullopt);
    EXPECT_THAT(ready(kStart + 601s), ElementsAre(2)) << "who waited long enough goes first";
}

TEST_F(SchedulerTest, KeepsTheOrderOfArrivalUnderOtherPolicies) {
    create(Policy::kGlobal);
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    place(prompt(1000, 20));
    ready(kStart);
    place(prompt(2000, 100), kStart + 1ms);
    place(prompt(3000, 2), kStart + 2ms);
    scheduler_->prefill_done(1, kStart + 1s, 1, std::nullopt);
    EXPECT_THAT(ready(kStart + 1s), ElementsAre(2));
}

TEST_F(SchedulerTest, StartsHighPrioritiesFirstUnderEveryPolicy) {
    for (const Policy policy : {Policy::kGlobal, Policy::kFlow}) {
        create(policy);
        last_ = 0;
        add("p0", Role::kPrefill);
        add("d0", Role::kDecode);
        place(prompt(1000, 20));
        ready(kStart);
        place(prompt(2000, 2, Priority::kLow));
        place(prompt(3000, 4, Priority::kNormal));
        place(prompt(4000, 50, Priority::kHigh));
        scheduler_->prefill_done(1, kStart + 1s, 1, std::nullopt);
        EXPECT_THAT(ready(kStart + 1s), ElementsAre(4));
    }
}

TEST_F(SchedulerTest, GivesAnInstanceMoreOnlyWhenItsWorkIsNearlyDone) {
    create(SchedulerOptions{.window = 1s});
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    place(prompt(1000, 40));  // about 2.4 s
    place(prompt(2000, 40));
    EXPECT_THAT(ready(kStart), ElementsAre(1));
    const auto next = scheduler_->next_ready();
    ASSERT_TRUE(next);
    EXPECT_GT(*next, kStart + 1s);
    EXPECT_THAT(ready(*next - 1ms), IsEmpty());
    EXPECT_THAT(ready(*next), ElementsAre(2));
    EXPECT_FALSE(scheduler_->next_ready());
}

TEST_F(SchedulerTest, ChoosesTheDecodeInstanceWithTheShortestTimeBetweenTokens) {
    create();
    add("p0", Role::kPrefill);
    const InstanceId d0 = add("d0", Role::kDecode), d1 = add("d1", Role::kDecode);
    const InstanceId first = place(prompt(1000, 20)).decode;
    EXPECT_EQ(place(prompt(2000, 20)).decode, first == d0 ? d1 : d0);
}

TEST_F(SchedulerTest, PredictsDecodeLoadForTheMomentThePrefillEnds) {
    create(SchedulerOptions{.tbt_target = 0.0262});
    add("p0", Role::kPrefill);
    ASSERT_TRUE(scheduler_->add_instance({.name = "d0", .role = Role::kDecode, .step_seconds = 0.02, .per_request_seconds = 0.002}));
    // One decodes now, but will be gone before the long prefill of the next one ends.
    Request fleeting = prompt(1000, 1);
    fleeting.output_tokens = 10;
    place(fleeting);
    ready(kStart);
    scheduler_->prefill_done(1, kStart, 0.1, std::nullopt);
    EXPECT_FALSE(refused(prompt(2000, 100), kStart));
    // A short prompt arrives while that one is there.
    const auto rejection = refused(prompt(3000, 1, Priority::kNormal), kStart);
    ASSERT_TRUE(rejection);
    EXPECT_EQ(rejection->reason, RejectReason::kTbt);
    EXPECT_GE(rejection->retry_after_seconds, 1);
}

TEST_F(SchedulerTest, RefusesWhoseFirstTokenWouldComeTooLate) {
    create(SchedulerOptions{.ttft_target = 5});
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    EXPECT_FALSE(refused(prompt(1000, 40, Priority::kLow)));
    const auto low = refused(prompt(2000, 40, Priority::kLow));
    ASSERT_TRUE(low) << "about 5.6 s";
    EXPECT_EQ(low->reason, RejectReason::kTtft);
    EXPECT_GE(low->retry_after_seconds, 2);
    EXPECT_FALSE(refused(prompt(3000, 15, Priority::kHigh))) << "it goes before the other";
    EXPECT_EQ(scheduler_->requests(), 2u) << "who is refused leaves nothing behind";
}

TEST_F(SchedulerTest, RefusesTenantsBeyondTheirLimits) {
    create(SchedulerOptions{.tenant = {.requests_max = 1}});
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    place(prompt(1, 4));
    EXPECT_EQ(refused(prompt(1, 4))->reason, RejectReason::kTenant);
    scheduler_->cancel(1, kStart);
    EXPECT_FALSE(refused(prompt(1, 4)));
}

TEST_F(SchedulerTest, RefusesWhenNobodyIsThere) {
    create();
    EXPECT_EQ(refused(prompt(1, 4))->reason, RejectReason::kNobody);
    add("p0", Role::kPrefill);
    EXPECT_EQ(refused(prompt(1, 4))->reason, RejectReason::kNobody) << "a prefill without a decode instance leads nowhere";
    EXPECT_EQ(scheduler_->tenants().requests("t"), 0u);
}

TEST_F(SchedulerTest, BoundsHowManyWait) {
    create(SchedulerOptions{.waiting_max = 2});
    add("p0", Role::kPrefill);
    add("d0", Role::kDecode);
    place(prompt(1, 4));
    place(prompt(1, 4));
    EXPECT_EQ(refused(prompt(1, 4))->reason, RejectReason::kQueueFull);
}

TEST_F(SchedulerTest, PlacesAgainElsewhereAndKeepsTheDecodeInstance) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    add("d1", Role::kDecode);
    const Placement first = place(prompt(1, 8));
    ready(kStart);
    const auto second = scheduler_->place_again(1, {.prefill = {first.prefill}, .keep_decode = first.decode}, kStart);
    ASSERT_TRUE(std::holds_alternative<Placement>(second));
    EXPECT_EQ(std::get<Placement>(second).prefill, first.prefill == p0 ? p1 : p0);
    EXPECT_EQ(std::get<Placement>(second).decode, first.decode);
    EXPECT_THAT(ready(kStart), ElementsAre(1)) << "the work of the first attempt does not stand in the way";
    const auto third = scheduler_->place_again(1, {.prefill = {p0, p1}}, kStart);
    EXPECT_TRUE(std::holds_alternative<Rejection>(third));
    EXPECT_EQ(scheduler_->requests(), 0u);
    EXPECT_EQ(scheduler_->tenants().requests("t"), 0u);
}

TEST_F(SchedulerTest, DoesNotRefuseForItsTargetsWhoWasAdmitted) {
    create(SchedulerOptions{.ttft_target = 3.5});
    add("p0", Role::kPrefill);
    add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    const Placement first = place(prompt(1000, 40));
    place(prompt(2000, 40));
    EXPECT_TRUE(std::holds_alternative<Placement>(scheduler_->place_again(1, {.prefill = {first.prefill}}, kStart)));
}

TEST_F(SchedulerTest, PassesOverInstancesThatDrainAreSickOrFailed) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    ASSERT_TRUE(scheduler_->drain_instance("p0", true));
    EXPECT_EQ(place(prompt(1, 1)).prefill, p1);
    ASSERT_TRUE(scheduler_->drain_instance("p0", false));
    scheduler_->set_healthy(p1, false);
    EXPECT_EQ(place(prompt(1, 1)).prefill, p0);
    scheduler_->set_healthy(p1, true);
    for (int i = 0; i < 3; ++i) scheduler_->instance_failed(p0, kStart);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(place(prompt(1, 1)).prefill, p1);
    EXPECT_FALSE(scheduler_->drain_instance("nobody", true));
}

TEST_F(SchedulerTest, PassesOverPairsThatFailed) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill), d0 = add("d0", Role::kDecode);
    for (int i = 0; i < 2; ++i) scheduler_->pair_failed(p0, d0, kStart);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(place(prompt(1, 1)).prefill, p1) << "p0 is well, but cannot reach d0";
    const InstanceId d1 = add("d1", Role::kDecode);
    ASSERT_TRUE(scheduler_->drain_instance("p1", true));
    EXPECT_EQ(place(prompt(1, 1)).decode, d1);
    scheduler_->pair_succeeded(p0, d0);
    EXPECT_EQ(scheduler_->pair_state(p0, d0, kStart), BreakerState::kClosed);
}

TEST_F(SchedulerTest, TriesAnInstanceAgainWhenTheRequestOfItsTrialWentElsewhere) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), d0 = add("d0", Role::kDecode);
    for (int i = 0; i < 3; ++i) scheduler_->instance_failed(d0, kStart);
    EXPECT_TRUE(refused(prompt(1, 1), kStart + 1s));
    place(prompt(1, 1), kStart + 6s);
    EXPECT_TRUE(refused(prompt(1, 1), kStart + 6s)) << "one trial at a time";
    scheduler_->instance_failed(p0, kStart + 6s);
    EXPECT_TRUE(std::holds_alternative<Rejection>(scheduler_->place_again(2, {.prefill = {p0}}, kStart + 6s)));
    EXPECT_FALSE(refused(prompt(1, 1), kStart + 6s)) << "nothing became known of d0";
}

TEST_F(SchedulerTest, LetsOneInstanceDoBothOnlyWhereThereIsNobodyElse) {
    create();
    const InstanceId both = add("b0", Role::kBoth);
    const Placement alone = place(prompt(1, 4));
    EXPECT_EQ(alone.prefill, both);
    EXPECT_EQ(alone.decode, both);
    const InstanceId decode = add("d0", Role::kDecode);
    EXPECT_EQ(place(prompt(1, 4)).decode, decode);
}

TEST_F(SchedulerTest, RespectsTheMemoryOfDecodeInstances) {
    create();
    add("p0", Role::kPrefill);
    ASSERT_TRUE(scheduler_->add_instance({.name = "d0", .role = Role::kDecode, .kv_tokens_max = 3000}));
    place(prompt(1, 4));
    EXPECT_TRUE(refused(prompt(1, 4)));
    scheduler_->cancel(1, kStart);
    EXPECT_FALSE(refused(prompt(1, 4)));
}

TEST_F(SchedulerTest, KeepsRemovedInstancesUntilTheirRequestsEndAndUsesTheirNumberAgain) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), d0 = add("d0", Role::kDecode);
    place(prompt(1, 4));
    ready(kStart);
    ASSERT_TRUE(scheduler_->remove_instance("p0"));
    EXPECT_FALSE(scheduler_->remove_instance("p0"));
    EXPECT_TRUE(refused(prompt(1, 4)));
    const InstanceId again = add("p0", Role::kPrefill);
    EXPECT_NE(again, p0) << "the old life still has a request";
    scheduler_->prefill_done(1, kStart, 1, std::nullopt);
    scheduler_->finished(1, kStart);
    EXPECT_EQ(scheduler_->find(p0), nullptr);
    EXPECT_EQ(add("p2", Role::kPrefill), p0);
    EXPECT_THAT(scheduler_->instances(), UnorderedElementsAre(p0, d0, again));
    EXPECT_FALSE(scheduler_->add_instance({.name = "p2"}));
    EXPECT_FALSE(scheduler_->add_instance({.name = ""}));
}

TEST_F(SchedulerTest, LearnsHowFastInstancesAre) {
    create();
    const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    Time now = kStart;
    int slow = 0;
    for (int i = 0; i < 60; ++i) {
        const Placement placement = place(prompt(10000 * (i + 1), 20), now);
        ready(now);
        now += 10s;
        scheduler_->prefill_done(last_, now, placement.prefill == p0 ? 8.0 : 1.0, std::nullopt);
        scheduler_->finished(last_, now);
        if (i >= 30 && placement.prefill == p0) ++slow;
    }
    EXPECT_EQ(slow, 0) << "instance " << p1 << " is faster";
}

TEST_F(SchedulerTest, EndsWhatItDoesNotKnowWithoutHarm) {
    create();
    scheduler_->finished(77, kStart);
    scheduler_->cancel(77, kStart);
    scheduler_->prefill_done(77, kStart, 1, std::nullopt);
    scheduler_->token_time(5, 0.1, kStart);
    scheduler_->instance_failed(5, kStart);
    scheduler_->pair_failed(5, 6, kStart);
    EXPECT_EQ(scheduler_->placement(77), nullptr);
}

TEST_F(SchedulerTest, TakesTurnsUnderRoundRobin) {
    create(Policy::kRoundRobin);
    const InstanceId p0 = add("p0", Role::kPrefill), p1 = add("p1", Role::kPrefill);
    add("d0", Role::kDecode);
    std::vector<InstanceId> chosen;
    for (int i = 0; i < 4; ++i) chosen.push_back(place(prompt(1, 4)).prefill);
    EXPECT_THAT(chosen, ElementsAre(p0, p1, p0, p1));
    EXPECT_FALSE(parse_policy("best"));
    EXPECT_EQ(policy_name(*parse_policy("least_loaded")), "least_loaded");
}

}  // namespace
}  // namespace mooncake::conductor
