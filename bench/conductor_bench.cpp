// SPDX-License-Identifier: Apache-2.0
// How many placements the scheduler makes in a second: conductor_bench [PREFILL DECODE REQUESTS BLOCKS]. One thread, no I/O.
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "conductor/schedule/scheduler.h"
#include "metrics/metrics.h"

int main(int argc, char** argv) {
    using namespace mooncake;
    using namespace mooncake::conductor;
    const auto argument = [&](int at, long otherwise) { return argc > at ? std::atol(argv[at]) : otherwise; };
    const long prefills = argument(1, 50), decodes = argument(2, 50), requests = argument(3, 50'000), blocks = argument(4, 24);
    Scheduler scheduler({.window = 1s});
    for (long i = 0; i < prefills; ++i) (void)scheduler.add_instance({.name = fmt::format("p{}", i), .role = Role::kPrefill});
    for (long i = 0; i < decodes; ++i) (void)scheduler.add_instance({.name = fmt::format("d{}", i), .role = Role::kDecode});
    metrics::Histogram nanoseconds;
    std::deque<RequestId> open;
    Time now{};
    const Time began = Clock::now();
    for (long i = 0; i < requests; ++i, now += 10ms) {
        Request request{.id = static_cast<RequestId>(i), .tokens = static_cast<uint64_t>(blocks) * 512};
        // A thousand conversations, each with a beginning of its own and an end that is new.
        for (long b = 0; b < blocks; ++b)
            request.blocks.push_back(static_cast<BlockHash>(b < blocks / 2 ? (i % 1000) * 1000 + b : 1'000'000 + i * 1000 + b));
        const Time before = Clock::now();
        const auto placed = scheduler.submit(std::move(request), now);
        nanoseconds.observe(static_cast<uint64_t>((Clock::now() - before).count()));
        if (std::holds_alternative<Placement>(placed)) open.push_back(static_cast<RequestId>(i));
        for (const auto& start : scheduler.take_ready(now))
            scheduler.prefill_done(start.request, now, start.expected_seconds, std::nullopt);
        while (open.size() > 2000) {  // about as many decode at the same time
            scheduler.finished(open.front(), now);
            open.pop_front();
        }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    const auto times = nanoseconds.snapshot();
    std::printf("%ld prefill and %ld decode instances, %ld blocks: %.0f requests/s; placing one takes p50 %.1f us, p99 %.1f us\n", prefills,
                decodes, blocks, static_cast<double>(requests) / seconds, static_cast<double>(times.quantile(0.5)) / 1e3,
                static_cast<double>(times.quantile(0.99)) / 1e3);
    return 0;
}
