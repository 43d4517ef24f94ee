// SPDX-License-Identifier: Apache-2.0
// Values of very different lengths in a full pool, some of them leased: what the master's core refuses, and how young what it evicts is.
//   mixed_sizes [seed] [segments] [MB/s] [scenario]
// Age is measured in bytes put since a value was put or read, in capacities of the pool: a perfect order evicts nothing much younger than 1.
#include <time.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/allocation/random.h"
#include "store/master/testing/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr ClientId kClient{1, 1};

struct Kind {
    uint64_t length;
    double bytes_share;   // of what is put
    bool spread = false;  // up to twice as long
};

class Load final : public StateObserver {
public:
    Load(uint64_t seed, uint64_t segments, uint64_t bytes, double bytes_per_second)
        : random_(seed), bytes_per_second_(bytes_per_second), capacity_(bytes), state_(MasterOptions{}, this) {
        Transaction t(state_);
        remount(t, {.client = kClient}, now_);
        for (uint64_t n = 1; n <= segments; ++n)
            mount_segment(
                t,
                {.client = kClient,
                 .segment = {.id = {3, n}, .name = format_text("node{}:1", n), .base = n << 40, .size = bytes / segments, .endpoint = "e"}},
                now_);
    }

    void put(const Kind& kind) {
        const uint64_t length = kind.length + (kind.spread ? random_.below(kind.length) : 0);
        const std::string key = format_text("k{}", ++number_);
        const PutItem item{.key = key, .length = length};
        tick(length);
        Transaction t(state_);
        const timespec before = cpu();
        const PutStartReply reply = put_start(t, {.client = kClient, .request_id = number_, .config = {}, .items = {&item, 1}}, now_);
        spent(before, kind.length);
        if (reply.items[0].code != StoreCode::kOk) {
            ++refused_[kind.length];
            return;
        }
        ++done_[kind.length];
        bytes_put_ += length;
        const PutEndItem end{.key = key, .generation = reply.items[0].generation, .checksum = 1};
        put_end(t, {.client = kClient, .items = {&end, 1}}, now_);
        known_[reply.items[0].generation] = {number_, length, bytes_put_};
        recent_.push_back({number_, reply.items[0].generation, length, bytes_put_});
        while (!recent_.empty() && recent_.front().at + capacity_ / 2 < bytes_put_) recent_.pop_front();
    }
    /// One of those put while the last half of the pool was written.
    void get() {
        if (recent_.empty()) return;
        const Recent one = recent_[random_.below(recent_.size())];
        const std::string key = format_text("k{}", one.number);
        const std::string_view view = key;
        tick(one.length);
        Transaction t(state_);
        const GetReply reply = get_replicas(t, {.keys = {&view, 1}}, now_);
        if (reply.items[0].code != StoreCode::kOk) {
            ++missed_;
            return;
        }
        ++hit_;
        if (const auto found = known_.find(one.generation); found != known_.end()) found->second.used = bytes_put_;
    }
    void mix(const std::vector<Kind>& kinds, double gets_per_put, double capacities) {
        double counts = 0;
        for (const Kind& kind : kinds) counts += kind.bytes_share / static_cast<double>(kind.length);
        const uint64_t end = bytes_put_ + static_cast<uint64_t>(capacities * static_cast<double>(capacity_));
        for (uint64_t tries = 0; bytes_put_ < end && tries < 30'000'000; ++tries) {
            double dice = static_cast<double>(random_.below(1 << 30)) / (1 << 30) * counts;
            size_t drawn = 0;
            while (drawn + 1 < kinds.size() && (dice -= kinds[drawn].bytes_share / static_cast<double>(kinds[drawn].length)) > 0) ++drawn;
            put(kinds[drawn]);
            for (gets_due_ += gets_per_put; gets_due_ >= 1; gets_due_ -= 1) get();
            if (state_.segments().used_bytes() * 100 > capacity_ * 80) {
                used_sum_ += static_cast<double>(state_.segments().used_bytes() - state_.quarantine().bytes()) /
                             static_cast<double>(capacity_);
                ++used_count_;
            }
        }
    }
    void restart() {
        refused_.clear(), done_.clear(), spent_.clear(), longest_.clear();
        hit_ = missed_ = 0;
        young_ = {};
        evicted_bytes_ = 0;
        used_sum_ = 0;
        used_count_ = 0;
    }
    void print(const char* what) {
        std::printf("%-10s", what);
        for (const auto& [length, count] : done_)
            std::printf(" | %lu KiB: %lu, refused %.3f %%, %.2f us, at most %.0f", length / kKiB, count,
                        100.0 * static_cast<double>(refused_[length]) / static_cast<double>(count + refused_[length]),
                        spent_[length] / static_cast<double>(count + refused_[length]) / 1e3, longest_[length] / 1e3);
        const double evicted = std::max<double>(static_cast<double>(evicted_bytes_), 1);
        std::printf(" | evicted younger than 1/8 %.2f %%, 1/4 %.2f %%, 1/2 %.2f %% | young misses %.3f %% | used %.1f %%\n",
                    100 * static_cast<double>(young_[0]) / evicted, 100 * static_cast<double>(young_[1]) / evicted,
                    100 * static_cast<double>(young_[2]) / evicted,
                    100.0 * static_cast<double>(missed_) / std::max<double>(1, static_cast<double>(hit_ + missed_)),
                    100 * used_sum_ / std::max<double>(1, static_cast<double>(used_count_)));
        if (const Result<> agreed = check_state(state_); !agreed) std::printf("%s\n", agreed.error().to_string().c_str());
        std::fflush(stdout);
    }

    void range_planned(const MasterState&, SegmentNumber, WriteId) override {}
    void range_planned_for_copy(const MasterState&, SegmentNumber, CopyId) override {}
    void range_filled(const MasterState&, SegmentNumber, uint64_t, uint64_t) override {}
    void value_outdated(const MasterState&, ObjectId) override {}
    void copy_ordered(const MasterState&, CopyId) override {}
    void segment_removed(const MasterState&, SegmentNumber) override {}
    void range_dropped(const MasterState&, SegmentNumber, uint64_t generation, Duration, bool) override {
        const auto found = known_.find(generation);
        if (found == known_.end()) return;
        const double age = static_cast<double>(bytes_put_ - found->second.used) / static_cast<double>(capacity_);
        evicted_bytes_ += found->second.length;
        for (size_t i = 0; i < young_.size(); ++i)
            if (age < 0.125 * static_cast<double>(1 << i)) young_[i] += found->second.length;
        known_.erase(found);
    }

private:
    struct Known {
        uint64_t number, length, used;
    };
    struct Recent {
        uint64_t number, generation, length, at;
    };
    static timespec cpu() {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return time;
    }
    void spent(const timespec& before, uint64_t length) {
        const timespec after = cpu();
        const double ns = static_cast<double>(after.tv_sec - before.tv_sec) * 1e9 + static_cast<double>(after.tv_nsec - before.tv_nsec);
        spent_[length] += ns;
        longest_[length] = std::max(longest_[length], ns);
    }
    void tick(uint64_t length) {
        now_ += std::chrono::nanoseconds(2000 + static_cast<int64_t>(static_cast<double>(length) / bytes_per_second_ * 1e9));
        if (now_ - heartbeat_answered_ < 200ms) return;
        heartbeat_answered_ = now_;
        Transaction t(state_);
        heartbeat(t, kClient, now_);
        while (run_jobs(t, now_).more) {}
    }

    Random random_;
    const double bytes_per_second_;
    const uint64_t capacity_;
    Time now_{1000s}, heartbeat_answered_{};
    uint64_t number_ = 0, bytes_put_ = 0, hit_ = 0, missed_ = 0, evicted_bytes_ = 0, used_count_ = 0;
    double used_sum_ = 0, gets_due_ = 0;
    std::array<uint64_t, 3> young_{};
    std::map<uint64_t, uint64_t> refused_, done_;
    std::map<uint64_t, double> spent_, longest_;
    std::unordered_map<uint64_t, Known> known_;  // by generation
    std::deque<Recent> recent_;
    MasterState state_;
};

}  // namespace
}  // namespace mooncake::store

int main(int argc, char** argv) {
    using namespace mooncake::store;
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t segments = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const double speed = (argc > 3 ? std::strtod(argv[3], nullptr) : 2000) * 1e6;
    const std::string only = argc > 4 ? argv[4] : "";
    const auto wanted = [&](const char* name) { return only.empty() || only == name; };
    const auto scenario = [&](const char* name, const std::vector<Kind>& kinds, double gets) {
        if (!wanted(name)) return;
        Load load(seed, segments, 2 * kGiB, speed);
        load.mix(kinds, gets, 2);
        load.restart();
        load.mix(kinds, gets, 3);
        load.print(name);
    };
    // All three lengths have an equal share of the bytes; a twentieth small; nothing but small and large.
    scenario("thirds", {{4 * kKiB, 1}, {kMiB, 1}, {16 * kMiB, 1}}, 0.5);
    scenario("some", {{4 * kKiB, 0.05}, {kMiB, 0.4}, {16 * kMiB, 0.55}}, 0.5);
    scenario("few", {{4 * kKiB, 0.005}, {kMiB, 0.3}, {16 * kMiB, 0.695}}, 0.5);
    scenario("extremes", {{4 * kKiB, 0.5}, {16 * kMiB, 0.5}}, 0.5);
    scenario("any", {{4 * kKiB, 1}, {12 * kKiB, 1}, {60 * kKiB, 1}, {200 * kKiB, 1}, {kMiB, 1}, {3 * kMiB, 1}, {10 * kMiB, 1}}, 0.5);
    std::vector<Kind> uneven;
    for (uint64_t length = kKiB; length < 16 * kMiB; length *= 2) uneven.push_back({length, 1, true});
    scenario("uneven", uneven, 0.5);
    if (wanted("phases")) {  // each finds a pool full of the other, which is being read
        Load load(seed, segments, 2 * kGiB, speed);
        load.mix({{4 * kKiB, 1}}, 0.5, 1.2);
        load.restart();
        for (const uint64_t length : {16 * kMiB, 4 * kKiB, kMiB, 4 * kKiB, 16 * kMiB}) {
            load.mix({{length, 1}}, 0.5, 0.4);
            load.print(mooncake::format_text("phase {}", length / kKiB).c_str());
            load.restart();
        }
    }
    return 0;
}
