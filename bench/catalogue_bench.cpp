// SPDX-License-Identifier: Apache-2.0
// What the master's event stream costs a node on one core, without network: to decode its events and to keep them in the catalogue, and what that takes
// of memory. The pool is full: a round plans a batch and drops as many (one update, as put_start sends it), then fills the batch (another).
//   catalogue_bench [objects, default 262144] [rounds, default 8192] [part of the name of a case]
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "store/allocation/random.h"
#include "store/node/catalogue.h"
#include "store/protocol/messages_events.h"

namespace mooncake::store {
namespace {

constexpr size_t kBatch = 128;
constexpr uint64_t kStride = 4096 + 64;
constexpr ClientId kWriter{7, 7};

size_t heap_bytes() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

struct Case {
    const char* name;
    size_t key_bytes;
    bool random_drops;         // else the oldest go first
    uint64_t generation_step;  // the other generations are on other nodes
    uint64_t segments;
};

class Bench {
public:
    Bench(const Case& what, size_t objects) : what_(what) {
        for (uint64_t s = 0; s < what.segments; ++s)
            catalogue_.add_segment(
                {.id = segment(s), .name = "here:1", .base = 1 << 30, .size = uint64_t{1} << 44, .endpoint = {}, .protocol = {}});
        apply(EventWriter().encode({.sequence = 1, .reset = true, .complete = true}));
        const size_t heap_before = heap_bytes();
        for (size_t i = 0; i < objects; i += kBatch) {
            apply(plan(false));
            apply(fill());
        }
        heap_ = heap_bytes() - heap_before - live_.size() * sizeof(Live);
    }

    void run(size_t rounds) {
        for (size_t i = 0; i < rounds; ++i) {
            const auto planned = plan(true);
            const auto filled = fill();
            apply(planned);
            apply(filled);
            decode_.push_back(spent_decoding_);
            apply_.push_back(spent_applying_);
            spent_decoding_ = spent_applying_ = Duration::zero();
        }
    }
    void print() {
        const auto objects = static_cast<double>(live_.size());
        std::printf("%-44s %7.1f %7.1f %7.1f   %7.1f %7.1f\n", what_.name, median_ns(decode_), median_ns(apply_),
                    median_ns(decode_) + median_ns(apply_), static_cast<double>(heap_) / objects,
                    static_cast<double>(catalogue_.memory_bytes()) / objects);
    }

private:
    struct Live {
        uint64_t generation, place;
    };

    static double median_ns(std::vector<Duration>& times) {
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        return std::chrono::duration<double, std::nano>(*middle).count() / kBatch;
    }
    SegmentId segment(uint64_t place) const { return {3, 1 + place % what_.segments}; }

    /// Takes the place of as many others, unless the pool is not full yet.
    std::vector<std::byte> plan(bool full) {
        EventWriter writer;
        for (size_t i = 0; i < kBatch; ++i) {
            const uint64_t number = ++planned_;
            generation_ += what_.generation_step;
            uint64_t place = number;
            if (full) {
                if (what_.random_drops) std::swap(live_.front(), live_[random_.below(live_.size())]);
                place = live_.front().place;
                writer.dropped({.segment = segment(place), .generation = live_.front().generation, .quarantine = {}});
                live_.pop_front();
            }
            key_ = format_text("{:012x}", number * 0x9e3779b97f4a7c15 >> 16);
            if (what_.key_bytes > key_.size()) key_.insert(0, what_.key_bytes - key_.size(), 'k');
            writer.planned({.segment = segment(place),
                            .offset = place * kStride,
                            .length = 4096,
                            .generation = generation_,
                            .tenant = "default",
                            .key = key_,
                            .group = {},
                            .writer = kWriter});
            live_.push_back({generation_, place});
        }
        return writer.encode({.sequence = 2});
    }
    std::vector<std::byte> fill() const {
        EventWriter writer;
        for (size_t i = live_.size() - kBatch; i < live_.size(); ++i)
            writer.filled({.segment = segment(live_[i].place), .generation = live_[i].generation, .checksum = i});
        return writer.encode({.sequence = 3});
    }
    void apply(const std::vector<std::byte>& body) {
        const Time before = Clock::now();
        const auto update = decode_event_view(body);
        if (!update) std::abort();
        const Time decoded = Clock::now();
        catalogue_.apply(*update, decoded);
        spent_decoding_ += decoded - before;
        spent_applying_ += Clock::now() - decoded;
    }

    const Case what_;
    Random random_{1};
    Catalogue catalogue_;
    std::deque<Live> live_;
    std::string key_;
    uint64_t planned_ = 0, generation_ = 0;
    size_t heap_ = 0;
    Duration spent_decoding_{0}, spent_applying_{0};
    std::vector<Duration> decode_, apply_;
};

}  // namespace
}  // namespace mooncake::store

int main(int argc, char** argv) {
    using namespace mooncake::store;
    const size_t objects = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 262144;
    const size_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8192;
    std::printf("%zu objects; medians of %zu rounds of %zu keys\n", objects, rounds, kBatch);
    std::printf("%-44s %7s %7s %7s   %7s %7s\n", "ns per key: planned + filled + dropped", "decode", "apply", "both", "heap B", "own B");
    const char* only = argc > 3 ? argv[3] : "";
    for (const Case& what : {Case{"keys of 12, the oldest go", 12, false, 1, 1}, Case{"keys of 96, the oldest go", 96, false, 1, 1},
                             Case{"keys of 12, any go", 12, true, 1, 1}, Case{"keys of 96, any go", 96, true, 1, 1},
                             Case{"keys of 96, the oldest go, one of 16 nodes", 96, false, 16, 1},
                             Case{"keys of 96, the oldest go, four segments", 96, false, 1, 4}}) {
        if (std::string_view(what.name).find(only) == std::string_view::npos) continue;
        Bench bench(what, objects);
        bench.run(rounds);
        bench.print();
    }
    return 0;
}
