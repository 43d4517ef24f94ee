// SPDX-License-Identifier: Apache-2.0
// Block hit ratio of the master's core on a request trace, beside that of a plain LRU of the same size.
//   trace_hits TRACE.jsonl CAPACITY_BLOCKS [fast]
// Each request asks for all its blocks, reads the longest prefix that is there, and puts the rest. By default time passes as the
// trace says; with `fast`, as if the requests came one right after the other.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kBlock = 64 * 1024;
constexpr ClientId kClient{1, 1};
constexpr Duration kBlockTime = 30us;  // of one block's put or get, in `fast`

struct Request {
    Duration at{0};
    std::vector<uint64_t> blocks;
};

std::vector<Request> read_trace(const char* path) {
    std::vector<Request> requests;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const auto json = nlohmann::json::parse(line);
        requests.push_back({std::chrono::milliseconds(json["timestamp"].get<int64_t>()), json["hash_ids"].get<std::vector<uint64_t>>()});
    }
    return requests;
}

struct Score {
    uint64_t asked = 0, hit = 0, refused = 0;
    double ratio() const { return asked == 0 ? 0 : 100.0 * static_cast<double>(hit) / static_cast<double>(asked); }
};

/// All blocks of a request inserted, the last one first, so that a prefix outlives what needs it.
Score plain_lru(const std::vector<Request>& requests, size_t capacity) {
    Score score;
    std::list<uint64_t> order;  // youngest first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places;
    for (const Request& request : requests) {
        score.asked += request.blocks.size();
        for (const uint64_t block : request.blocks) {
            if (!places.contains(block)) break;
            ++score.hit;
        }
        for (auto at = request.blocks.rbegin(); at != request.blocks.rend(); ++at) {
            if (const auto found = places.find(*at); found != places.end()) {
                order.splice(order.begin(), order, found->second);
                continue;
            }
            order.push_front(*at);
            places[*at] = order.begin();
            if (order.size() > capacity) {
                places.erase(order.back());
                order.pop_back();
            }
        }
    }
    return score;
}

class Replay {
public:
    explicit Replay(uint64_t capacity) : state_(MasterOptions{}) {
        Transaction transaction(state_);
        remount(transaction, {.client = kClient}, now_);
        mount_segment(transaction,
                      {.client = kClient, .segment = {.id = {3, 1}, .name = "node:1", .base = 1 << 20, .size = capacity * kBlock}}, now_);
    }

    void run(const Request& request, bool fast) {
        if (!fast) now_ = start_ + request.at;
        std::vector<std::string> names;
        for (const uint64_t block : request.blocks) names.push_back(std::to_string(block));
        const std::vector<std::string_view> keys(names.begin(), names.end());
        Transaction transaction(state_);
        heartbeat(transaction, kClient, now_);
        size_t there = 0;
        for (const int32_t one : exist(transaction, {.keys = keys}, now_).results) {
            if (one != 1) break;
            ++there;
        }
        size_t hit = 0;
        if (there != 0)
            for (const GetItem& item : get_replicas(transaction, {.keys = std::span(keys).first(there)}, now_).items)
                hit += item.code == StoreCode::kOk;
        score.asked += keys.size();
        score.hit += hit;
        put(transaction, std::span(keys).subspan(hit));
        if (fast) now_ += kBlockTime * static_cast<int64_t>(keys.size());
        while (run_jobs(transaction, now_).more) {}
    }

    Score score;

private:
    void put(Transaction& transaction, std::span<const std::string_view> keys) {
        if (keys.empty()) return;
        std::vector<PutItem> items;
        for (const auto key : keys) items.push_back({.key = key, .length = kBlock});
        const auto started = put_start(transaction, {.client = kClient, .request_id = ++request_, .config = {}, .items = items}, now_);
        std::vector<PutEndItem> ends;
        for (size_t i = 0; i < keys.size(); ++i) {
            if (started.items[i].code == StoreCode::kOk)
                ends.push_back({.key = keys[i], .generation = started.items[i].generation, .checksum = 1});
            else if (started.items[i].code != StoreCode::kObjectAlreadyExists) ++score.refused;
        }
        put_end(transaction, {.client = kClient, .items = ends}, now_);
    }

    MasterState state_;
    const Time start_ = Time{} + 1h;
    Time now_ = start_;
    uint64_t request_ = 0;
};

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: trace_hits TRACE.jsonl CAPACITY_BLOCKS [fast]\n");
        return 2;
    }
    const auto requests = read_trace(argv[1]);
    const uint64_t capacity = std::strtoull(argv[2], nullptr, 10);
    const bool fast = argc > 3 && std::strcmp(argv[3], "fast") == 0;
    Replay replay(capacity);
    for (const Request& request : requests) replay.run(request, fast);
    std::printf("%zu requests, %lu blocks asked, capacity %lu: hit %.2f %%, put refused %lu; plain LRU %.2f %%\n", requests.size(),
                replay.score.asked, capacity, replay.score.ratio(), replay.score.refused, plain_lru(requests, capacity).ratio());
    return 0;
}

}  // namespace
}  // namespace mooncake::store

int main(int argc, char** argv) { return mooncake::store::main(argc, argv); }
