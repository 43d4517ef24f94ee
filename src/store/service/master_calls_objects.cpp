// SPDX-License-Identifier: Apache-2.0
#include <re2/re2.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/put_start.h"
#include "store/protocol/joined_replies.h"
#include "store/service/master_calls.h"
#include "store/service/remove_in_parts.h"
#include "store/service/tenant_name.h"

namespace mooncake::store {

namespace {

constexpr size_t kKeysAtOnce = 2048;   // under one hold of the lock: some milliseconds
constexpr size_t kStartsAtOnce = 128;  // writes that are started between two looks at the clock
constexpr Duration kHoldMax = 4ms;     // of the lock, about: making room for a value may cost as much as hundreds of others
constexpr int64_t kPatternMemoryMax = 8 << 20;
// Instructions of a compiled pattern: where it needs all of them, a byte of a key costs some nanoseconds for each. ".{255}" has 2044.
constexpr int kPatternProgramMax = 4096;
// Who starts to write this little ends it at once: sooner than a core that went to sleep would be awake again.
constexpr uint64_t kSoonBytes = 1 << 20;
constexpr Duration kSoon = 30us, kSoonPerKiB = 100ns;

uint64_t bytes_of(std::span<const PutItem> items) {
    uint64_t bytes = 0;
    for (const PutItem& item : items) bytes += std::min(item.length, kSoonBytes + 1);
    return bytes;
}

/// Strangers see a code only; who runs the master should know what to do.
void warn_of_stranger(std::string_view tenant) {
    MC_LOG_WARNING_EVERY(10s, "values of tenant '{}' are refused: it has no quota (PUT /api/v1/tenant_quotas?tenant_id= gives it one)",
                         valid_tenant_name(tenant) ? tenant.substr(0, 64) : "?");
}

/// Null: it is none, or one that would take too long.
std::shared_ptr<const re2::RE2> compile(std::string_view text) {
    re2::RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(kPatternMemoryMax);
    auto pattern = std::make_shared<const re2::RE2>(re2::StringPiece(text.data(), text.size()), options);
    return pattern->ok() && pattern->ProgramSize() <= kPatternProgramMax ? pattern : nullptr;
}

/// Calls `one(part)` for parts of at most kKeysAtOnce items; others have their turn in between.
template <typename Item, typename One>
void in_parts(const LockedMaster& master, std::span<const Item> items, One&& one) {
    for (;;) {
        const size_t count = std::min(items.size(), kKeysAtOnce);
        one(items.first(count));
        items = items.subspan(count);
        if (items.empty()) return;
        master.give_way();
    }
}

/// Until the clock says that others have waited long enough; true: all is done.
bool start_some(PutStarter& starter, size_t items, Transaction& transaction, Time now) {
    if (items <= StartedRequests::kLong) return starter.run(transaction, now, SIZE_MAX);
    for (size_t started = 0; started < kKeysAtOnce; started += kStartsAtOnce) {
        if (starter.run(transaction, now, kStartsAtOnce)) return true;
        if (Clock::now() - now >= kHoldMax) break;
    }
    return false;
}

}  // namespace

void MasterCalls::attach_objects(rpc::Server& server) {
    server.handle(rpc::Method::kStoreExist, handler("exist", decode_keys_request, &MasterCalls::exist));
    server.handle(rpc::Method::kStoreGetReplicas, handler("get_replicas", decode_keys_request, &MasterCalls::get_replicas));
    server.handle(rpc::Method::kStorePutStart, handler("put_start", decode_put_start_request, &MasterCalls::put_start));
    server.handle(rpc::Method::kStorePutEnd, handler("put_end", decode_put_end_request, &MasterCalls::put_end));
    server.handle(rpc::Method::kStorePutRevoke, handler("put_revoke", decode_put_revoke_request, &MasterCalls::put_revoke));
    server.handle(rpc::Method::kStoreRemove, handler("remove", decode_remove_request, &MasterCalls::remove));
    server.handle(rpc::Method::kStoreRemoveMatching,
                  handler("remove_matching", decode_remove_matching_request, &MasterCalls::remove_matching));
    server.handle(rpc::Method::kStoreReplicaClear, handler("replica_clear", decode_replica_clear_request, &MasterCalls::replica_clear));
}

void MasterCalls::exist(const ReceivedKeys& received, Answer answer) {
    ExistReply reply;
    const Incarnation process = answer->peer().incarnation;
    in_parts(parts_.master, received.request.keys, [&](std::span<const std::string_view> keys) {
        KeysRequest request = received.request;
        request.keys = keys;
        append(reply, run([&](Transaction& transaction, Time now) {
                   parts_.hub.asked(transaction.state(), process, now);
                   return store::exist(transaction, request, now);
               }));
    });
    answer->reply(encode_exist_reply(reply));
    parts_.metrics.exist(reply);
}

void MasterCalls::get_replicas(const ReceivedKeys& received, Answer answer) {
    GetReply reply;
    uint64_t on_disk = 0, on_disk_bytes = 0;
    const Incarnation process = answer->peer().incarnation;
    in_parts(parts_.master, received.request.keys, [&](std::span<const std::string_view> keys) {
        KeysRequest request = received.request;
        request.keys = keys;
        append(reply, run([&](Transaction& transaction, Time now) {
                   parts_.hub.asked(transaction.state(), process, now);
                   const TierTotals& tiers = transaction.state().tiers().totals;
                   const uint64_t reads = tiers.reads, bytes = tiers.read_bytes;
                   GetReply part = store::get_replicas(transaction, request, now);
                   on_disk += tiers.reads - reads;
                   on_disk_bytes += tiers.read_bytes - bytes;
                   return part;
               }));
    });
    reply.epoch = epoch_;
    answer->reply(encode_get_reply(reply));
    parts_.metrics.get_replicas(reply, on_disk, on_disk_bytes);
}

template <typename Item>
void MasterCalls::rely_on(EventHub::Caused& caused, std::string_view tenant, std::span<const Item> items) const {
    if (!parts_.hub.may_rely()) return;
    in_parts(parts_.master, items, [&](std::span<const Item> part) {
        parts_.master.look([&](const MasterState& state, Time) {
            for (const Item& item : part) parts_.hub.rely_on(state, tenant, item.key, caused);
            return true;
        });
    });
}

void MasterCalls::put_start(const ReceivedPutStart& received, Answer answer) {
    const StartedRequests::Entry entry = starting_.enter(received.request);
    if (!entry) return answer->fail(Error(Code::kBusy, "the same request is being carried out"));
    PutStarter starter(received.request, received.replace);
    const auto start = [&](Transaction& transaction, Time now) {
        require_memory();
        return start_some(starter, received.request.items.size(), transaction, now);
    };
    EventHub::Caused caused;
    while (!run_noting(caused, start)) parts_.master.give_way();
    caused.change = 0;  // what is evicted to make room is no news that anybody must have heard first
    // A value that is said to be there, or a write that was started before: should we be killed now, its node must know of it as well.
    rely_on(caused, received.request.tenant, std::span(received.request.items));
    PutStartReply reply = starter.take_reply();
    reply.epoch = epoch_;
    if (const uint64_t bytes = bytes_of(received.request.items); bytes <= kSoonBytes)
        answer->expect_next(kSoon + kSoonPerKiB * (bytes >> 10));
    answer_when_told(caused, std::move(answer), encode_put_start_reply(reply));
    parts_.metrics.put_start(received.request, reply);
    // The tenant is checked once for all keys.
    if (!reply.items.empty() && reply.items.front().code == StoreCode::kTenantNotRegistered) warn_of_stranger(received.request.tenant);
}

void MasterCalls::answer_when_told(const EventHub::Caused& caused, Answer answer, rpc::Bytes body) {
    if (caused.nothing()) return answer->reply(std::move(body));
    const Time next = parts_.hub.answer_when_told(caused, std::move(answer), std::move(body), Clock::now());
    if (next != Time::max()) parts_.jobs.wake_by(next);
}

void MasterCalls::put_end(const ReceivedPutEnd& received, Answer answer) {
    CodesReply reply;
    EventHub::Caused caused;
    in_parts(parts_.master, received.request.items, [&](std::span<const PutEndItem> items) {
        PutEndRequest request = received.request;
        request.items = items;
        append(reply, run_noting(caused, [&](Transaction& transaction, Time now) { return store::put_end(transaction, request, now); }));
    });
    rely_on(caused, received.request.tenant, std::span(received.request.items));  // it may have ended before
    parts_.metrics.put_end(reply);
    answer_when_told(caused, std::move(answer), encode_codes_reply(reply));
}

void MasterCalls::put_revoke(const ReceivedPutRevoke& received, Answer answer) {
    CodesReply reply;
    in_parts(parts_.master, received.request.items, [&](std::span<const PutEndItem> items) {
        PutRevokeRequest request = received.request;
        request.items = items;
        append(reply, run([&](Transaction& transaction, Time now) { return store::put_revoke(transaction, request, now); }));
    });
    answer->reply(encode_codes_reply(reply));
    parts_.metrics.put_revoke(reply);
}

void MasterCalls::remove(const ReceivedRemove& received, Answer answer) {
    CodesReply reply;
    EventHub::Caused caused;
    in_parts(parts_.master, received.request.keys, [&](std::span<const std::string_view> keys) {
        RemoveRequest request = received.request;
        request.keys = keys;
        append(reply, run_noting(caused, [&](Transaction& transaction, Time now) { return store::remove(transaction, request, now); }));
    });
    // Who hears that it is not there shall not find it there after our death: somebody else's removal must be known by now, too.
    if (std::find(reply.codes.begin(), reply.codes.end(), StoreCode::kObjectNotFound) != reply.codes.end()) parts_.hub.rely_on_all(caused);
    parts_.hub.rely_on_held(caused);
    parts_.metrics.remove(reply);
    answer_when_told(caused, std::move(answer), encode_codes_reply(reply));
}

void MasterCalls::replica_clear(const ReceivedReplicaClear& received, Answer answer) {
    CodesReply reply;
    EventHub::Caused caused;
    in_parts(parts_.master, received.request.keys, [&](std::span<const std::string_view> keys) {
        ReplicaClearRequest request = received.request;
        request.keys = keys;
        append(reply,
               run_noting(caused, [&](Transaction& transaction, Time now) { return store::replica_clear(transaction, request, now); }));
    });
    parts_.hub.rely_on_held(caused);
    parts_.metrics.replica_clear(reply);
    answer_when_told(caused, std::move(answer), encode_codes_reply(reply));
}

void MasterCalls::remove_matching(const ReceivedRemoveMatching& received, Answer answer) {
    const CountedCall counted = received.pattern.empty() ? CountedCall::kRemoveAll : CountedCall::kRemoveByRegex;
    Removal::Wish wish{.tenant = std::string(received.tenant), .force = received.force};
    if (!received.pattern.empty()) {
        const std::shared_ptr<const re2::RE2> pattern = compile(received.pattern);
        if (!pattern) {
            parts_.metrics.call(counted, false);
            return answer->reply(encode_remove_matching_reply(static_cast<int64_t>(StoreCode::kInvalidParams)));
        }
        wish.matches = [pattern](std::string_view key) {  // which the master may keep
            return re2::RE2::PartialMatch(re2::StringPiece(key.data(), key.size()), *pattern);
        };
        wish.cost = static_cast<size_t>(pattern->ProgramSize());
    }
    // What is written while it waits for its turn is not meant.
    const auto removal = std::make_shared<Removal>(begin_removal(parts_.master, std::move(wish)));
    // A std::function must be copyable, an answer is not.
    const auto shared = std::make_shared<Answer>(std::move(answer));
    auto remove = [this, removal, counted, shared] {
        // Who was told that it took too long must not find it done later.
        if ((*shared)->abandoned() || (*shared)->deadline().passed())
            return (*shared)->fail(Error(Code::kTimedOut, "the removal did not begin in time"));
        const EventHub::Position before = parts_.hub.position();
        const auto count = remove_in_parts(parts_.master, *removal, [stop = parts_.worker.stop_token()] { return stop.stop_requested(); });
        parts_.jobs.touch();
        parts_.metrics.call(counted, count.has_value());
        if (!count) return (*shared)->fail(Error(Code::kUnavailable, "the master is being stopped", ESHUTDOWN));
        EventHub::Caused caused;
        caused.add(before, parts_.hub.position());  // by others as well, which does no harm
        parts_.hub.rely_on_all(caused);             // and what others have removed before is said to be gone, too
        parts_.hub.rely_on_held(caused);
        answer_when_told(caused, std::move(*shared), encode_remove_matching_reply(static_cast<int64_t>(*count)));
    };
    const auto posted = parts_.worker.post(contained_task("remove_matching", std::move(remove)));
    if (posted) return;
    if (posted.error().code() != Code::kNoSpace) return (*shared)->fail(posted.error());
    (*shared)->fail(Error(Code::kBusy, "too many removals by pattern at once"));
}

}  // namespace mooncake::store
