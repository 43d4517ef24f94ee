// SPDX-License-Identifier: Apache-2.0
// What the master's core costs on one core, without network: memory per object, and keys per second for the hot operations.
//   master_bench [objects]
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "store/allocation/random.h"
#include "store/master/testing/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {
namespace {

constexpr size_t kBatch = 1000;
constexpr uint64_t kValue = 64 * 1024;
constexpr uint64_t kNodes = 16;
constexpr ClientId kClient{1, 1};

/// Of this thread: what others do on the machine counts as little as possible.
std::chrono::nanoseconds cpu_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

size_t heap_bytes() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/// As long as those of inference engines.
std::string key_of(size_t i) {
    return format_text("model-70b@tp_rank:3@pcp0@dcp0@pp_rank:0@group:0@{:016x}{:016x}{:016x}", i * 0x9e3779b97f4a7c15, i, ~i);
}

class Bench {
public:
    explicit Bench(size_t objects, bool log = false, uint64_t capacity_objects = 0) : objects_(objects), log_(log) {
        MasterOptions options;
        options.high_watermark = 1.0;
        state_ = std::make_unique<MasterState>(options);
        const uint64_t size = (capacity_objects == 0 ? objects * 2 : capacity_objects) * kValue / kNodes;
        for (uint64_t n = 1; n <= kNodes; ++n) {
            Transaction t(*state_);
            remount(t, {.client = {2, n}}, now_);
            mount_segment(
                t, {.client = {2, n}, .segment = {.id = {3, n}, .name = format_text("node{}:1", n), .base = n << 44, .size = size}}, now_);
        }
    }

    void keys(size_t from, size_t count) {
        names_.clear();
        for (size_t i = from; i < from + count; ++i) names_.push_back(key_of(i));
    }
    void shuffle(uint64_t seed) {
        Random random(seed);
        for (size_t i = names_.size(); i > 1; --i) std::swap(names_[i - 1], names_[random.below(i)]);
    }
    double put() {
        return each_batch([this](std::span<const std::string_view> keys) {
            std::vector<PutItem> items(keys.size());
            for (size_t i = 0; i < keys.size(); ++i) items[i] = {.key = keys[i], .length = kValue};
            auto t = transaction();
            const PutStartReply started = put_start(t, {.client = kClient, .request_id = ++request_, .config = {}, .items = items}, now_);
            std::vector<PutEndItem> ends(keys.size());
            for (size_t i = 0; i < keys.size(); ++i) ends[i] = {.key = keys[i], .generation = started.items[i].generation, .checksum = i};
            for (const PutStartItem& item : started.items) failures_ += item.code != StoreCode::kOk;
            for (const StoreCode code : put_end(t, {.client = kClient, .items = ends}, now_).codes) failures_ += code != StoreCode::kOk;
        });
    }
    double get() {
        return each_batch([this](std::span<const std::string_view> keys) {
            auto t = transaction();
            for (const GetItem& item : get_replicas(t, {.keys = keys}, now_).items) failures_ += item.code != StoreCode::kOk;
        });
    }
    double probe() {
        return each_batch([this](std::span<const std::string_view> keys) {
            auto t = transaction();
            for (const int32_t result : exist(t, {.keys = keys}, now_).results) failures_ += result != 1;
        });
    }
    double drop() {
        return each_batch([this](std::span<const std::string_view> keys) {
            auto t = transaction();
            for (const StoreCode code : remove(t, {.keys = keys, .force = true}, now_).codes) failures_ += code != StoreCode::kOk;
        });
    }
    void pass(Duration time) { now_ += time; }
    size_t failures() const { return failures_; }
    MasterState& state() { return *state_; }
    size_t key_bytes() const {
        size_t sum = 0;
        for (const std::string& name : names_) sum += name.size();
        return sum;
    }

private:
    Transaction transaction() {
        changes_.clear();
        return Transaction(*state_, log_ ? &changes_ : nullptr);
    }
    /// Keys per second. The keys of a batch lie one after the other, as in a message that was just received.
    double each_batch(const std::function<void(std::span<const std::string_view>)>& run) {
        std::chrono::duration<double> spent{0};
        std::string message;
        std::vector<std::string_view> keys;
        for (size_t at = 0; at < names_.size(); at += kBatch) {
            const size_t end = std::min(at + kBatch, names_.size());
            message.clear();
            keys.clear();
            for (size_t i = at; i < end; ++i) message += names_[i];
            for (size_t i = at, offset = 0; i < end; offset += names_[i++].size())
                keys.emplace_back(message.data() + offset, names_[i].size());
            const auto start = cpu_time();
            run(keys);
            spent += cpu_time() - start;
        }
        return static_cast<double>(names_.size()) / spent.count();
    }

    size_t objects_;
    bool log_;
    Time now_{1000s};
    uint64_t request_ = 0;
    size_t failures_ = 0;
    std::vector<Change> changes_;
    std::vector<std::string> names_;
    std::unique_ptr<MasterState> state_;
};

void print(const char* what, double keys_per_second) { std::printf("%-44s %8.2f M keys/s\n", what, keys_per_second / 1e6); }

void hot_operations(size_t objects, bool log) {
    std::printf("-- %zu objects, batches of %zu, %s\n", objects, kBatch, log ? "changes kept for a log" : "no log");
    Bench bench(objects, log);
    bench.keys(0, objects);
    const size_t names = heap_bytes();
    print("put (start + end)", bench.put());
    const size_t after = heap_bytes();
    std::printf("%-44s %8.1f bytes (key of %zu not counted)\n", "memory per object",
                static_cast<double>(after - names - bench.key_bytes()) / static_cast<double>(objects), bench.key_bytes() / objects);
    bench.shuffle(1);
    print("get, random order", bench.get());
    print("exist, random order", bench.probe());
    bench.keys(objects, objects);
    print("exist, all missing", bench.probe());
    bench.keys(0, objects);
    bench.shuffle(2);
    print("remove, random order, all leased", bench.drop());
    if (bench.failures() != objects) std::printf("unexpected failures: %zu\n", bench.failures() - objects);
}

/// So many that they fill all nodes to the last byte.
size_t whole(size_t objects) { return objects - objects % kNodes; }

/// A full pool: every put evicts one. Cost must not depend on how many there are.
void eviction(size_t objects) {
    Bench bench(objects, false, objects);
    bench.keys(0, objects);
    bench.put();
    bench.keys(objects, std::min<size_t>(objects, 200'000));
    print(format_text("put into a full pool of {}", objects).c_str(), bench.put());
    if (bench.failures() != 0) std::printf("unexpected failures: %zu\n", bench.failures());
    if (const Result<> agreed = check_state(bench.state()); !agreed) std::printf("%s\n", agreed.error().to_string().c_str());
}

/// The same, with a probe of every key before: all are leased softly.
void eviction_under_probes(size_t objects) {
    Bench bench(objects, false, objects);
    bench.keys(0, objects);
    bench.put();
    bench.probe();
    bench.keys(objects, std::min<size_t>(objects / 2, 200'000));
    print(format_text("the same, every key probed before ({})", objects).c_str(), bench.put());
    if (bench.failures() != 0) std::printf("unexpected failures: %zu\n", bench.failures());
}

/// In parts, as a node tells them: in the order in which they were written, which on a node that has run for a while is any order of
/// addresses.
void adoption(size_t objects, bool scattered) {
    constexpr size_t kPart = 2048;
    std::vector<std::string> names;
    std::vector<size_t> places;
    std::vector<HeldObject> held;
    for (size_t i = 0; i < objects; ++i) names.push_back(key_of(i));
    for (size_t i = 0; i < objects; ++i) places.push_back(i);
    Random random(3);
    for (size_t i = objects; scattered && i > 1; --i) std::swap(places[i - 1], places[random.below(i)]);
    for (size_t i = 0; i < objects; ++i)
        held.push_back(
            {.tenant = "default", .key = names[i], .offset = places[i] * kValue, .length = kValue, .generation = i + 1, .checksum = i});
    HeldSegment segment{.segment = {.id = {3, 1}, .name = "node:1", .base = 1 << 20, .size = objects * kValue}};
    MasterState state({});
    Transaction t(state);
    size_t adopted = 0;
    const auto start = cpu_time();
    for (size_t at = 0; at < objects; at += kPart) {
        segment.objects = std::span(held).subspan(at, std::min(kPart, objects - at));
        segment.more = at + kPart < objects;
        adopted += remount(t, {.client = {2, 1}, .segments = {&segment, 1}}, Time{1000s}).segments[0].adopted;
    }
    const std::chrono::duration<double> spent = cpu_time() - start;
    print(scattered ? "the same, scattered" : "adopt what a node reports", static_cast<double>(adopted) / spent.count());
}

void print_ms(const char* what, std::chrono::nanoseconds spent) {
    std::printf("%-44s %8.2f ms\n", what, std::chrono::duration<double, std::milli>(spent).count());
}

template <typename Operation>
std::chrono::nanoseconds cpu_of(Operation&& operation) {
    const auto start = cpu_time();
    operation();
    return cpu_time() - start;
}

/// A pool of one node with room for so many values of 64 bytes, and a segment that nobody can reach.
struct SmallValues {
    static constexpr Time kNow{1000s};
    explicit SmallValues(size_t values) : state(MasterOptions{.high_watermark = 1.0}) {
        Transaction t(state);
        remount(t, {.client = {2, 1}}, kNow);
        mount_segment(t, {.client = {2, 1}, .segment = {.id = {3, 1}, .name = "node1:1", .base = 1 << 20, .size = values * 64}}, kNow);
    }
    PutStartReply start(std::span<const PutItem> items, ClientId client = kClient) {
        Transaction t(state);
        return put_start(t, {.client = client, .request_id = ++request, .config = {}, .items = items}, kNow);
    }
    MasterState state;
    uint64_t request = 0;
};

/// A group per value, and room for half of them.
void refused_groups(size_t count) {
    SmallValues pool(count / 2);
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back(key_of(i));
    std::vector<PutItem> items;
    for (const std::string& name : names) items.push_back({.key = name, .length = 64, .group = name});
    print_ms(format_text("put_start, {} groups, half refused", count).c_str(), cpu_of([&] { pool.start(items); }));
}

/// Asked by somebody who cannot reach one node.
void group_past_a_hung_node(size_t count) {
    SmallValues pool(count);
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back(key_of(i));
    std::vector<PutItem> items;
    for (const std::string& name : names) items.push_back({.key = name, .length = 64, .group = "request"});
    const PutStartReply started = pool.start(items);
    std::vector<PutEndItem> ends;
    for (size_t i = 0; i < count; ++i) ends.push_back({.key = names[i], .generation = started.items[i].generation});
    Transaction t(pool.state);
    put_end(t, {.client = kClient, .items = ends}, SmallValues::kNow);
    const std::vector<std::string_view> keys(names.begin(), names.end());
    const uint32_t hung = 77;
    print_ms(format_text("exist, a group of {} past a hung node", count).c_str(), cpu_of([&] {
                 exist(t, {.keys = keys, .unreachable = {&hung, 1}}, SmallValues::kNow);
             }));
}

/// Clients that die between put_start and put_end: all of them, and the longest of the runs in which they are ended.
void vanished_writers(size_t clients, size_t writes) {
    SmallValues pool(clients * writes);
    for (size_t c = 0; c < clients; ++c) {
        std::vector<std::string> names;
        for (size_t w = 0; w < writes; ++w) names.push_back(key_of(c * writes + w));
        std::vector<PutItem> items;
        for (const std::string& name : names) items.push_back({.key = name, .length = 64});
        pool.start(items, {5, c + 1});
    }
    const Time later = SmallValues::kNow + pool.state.options().client_ttl;
    Transaction t(pool.state);
    heartbeat(t, {2, 1}, later);
    std::chrono::nanoseconds all{0}, longest{0};
    for (bool more = true; more;) {
        const auto spent = cpu_of([&] { more = run_jobs(t, later).more; });
        all += spent;
        longest = std::max(longest, spent);
    }
    print_ms(format_text("{} writers of {} vanish", clients, writes).c_str(), all);
    print_ms("  the longest hold of it", longest);
}

/// One node with everything goes.
void departure(size_t count) {
    SmallValues pool(count);
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back(key_of(i));
    std::vector<PutItem> items;
    for (const std::string& name : names) items.push_back({.key = name, .length = 64});
    const PutStartReply started = pool.start(items);
    std::vector<PutEndItem> ends;
    for (size_t i = 0; i < count; ++i) ends.push_back({.key = names[i], .generation = started.items[i].generation});
    Transaction t(pool.state);
    put_end(t, {.client = kClient, .items = ends}, SmallValues::kNow);
    const size_t full = heap_bytes();
    print_ms(format_text("a node with {} values leaves", count).c_str(), cpu_of([&] { goodbye(t, {2, 1}, SmallValues::kNow); }));
    std::printf("%-44s %8.1f MiB of %.1f\n", "  memory that is given back", static_cast<double>(full - heap_bytes()) / (1 << 20),
                static_cast<double>(full) / (1 << 20));
}

}  // namespace
}  // namespace mooncake::store

int main(int argc, char** argv) {
    using namespace mooncake::store;
    const size_t objects = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
    hot_operations(objects, false);
    hot_operations(objects, true);
    std::printf("-- eviction and recovery\n");
    eviction(whole(objects / 10));
    eviction(whole(objects));
    eviction_under_probes(whole(objects / 10));
    eviction_under_probes(whole(objects));
    adoption(objects, false);
    adoption(objects, true);
    std::printf("-- what must not grow with the square of anything\n");
    refused_groups(objects / 20);
    refused_groups(objects / 10);
    group_past_a_hung_node(objects / 20);
    group_past_a_hung_node(objects / 10);
    vanished_writers(50, objects / 500);
    vanished_writers(500, objects / 1000);
    departure(objects);
    return 0;
}
