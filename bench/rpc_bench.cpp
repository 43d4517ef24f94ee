// SPDX-License-Identifier: Apache-2.0
// Round trips of 64-byte requests and replies over loopback, client and server in one process.
//   rpc_bench [seconds per case, default 2]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/completion.h"
#include "rpc/rpc.h"

namespace {

using namespace mooncake;

constexpr size_t kBodyBytes = 64;
constexpr auto kMethod = rpc::Method::kProbe;

struct Target {
    rpc::Client& client;
    const std::string address;
};

void report(const char* name, std::vector<Duration>& times, Duration elapsed) {
    std::sort(times.begin(), times.end());
    const auto micros = [&](double share) {
        const auto at = static_cast<size_t>(share * static_cast<double>(times.size() - 1));
        return std::chrono::duration<double, std::micro>(times[at]).count();
    };
    const double rate = static_cast<double>(times.size()) / std::chrono::duration<double>(elapsed).count();
    std::printf("%-28s %10.0f round trips/s   p50 %8.2f us   p99 %8.2f us\n", name, rate, micros(0.5), micros(0.99));
}

void check(const Result<rpc::Bytes>& reply) {
    if (reply && reply->size() == kBodyBytes) return;
    std::fprintf(stderr, "call failed: %s\n", reply ? "wrong size" : reply.error().to_string().c_str());
    std::exit(1);
}

/// `threads` blocking callers.
void run_blocking(const char* name, Target target, int threads, Duration duration) {
    std::vector<std::vector<Duration>> times(static_cast<size_t>(threads));
    const Time begin = Clock::now(), end = begin + duration;
    {
        std::vector<std::jthread> callers;
        for (auto& mine : times) {
            callers.emplace_back([&mine, &target, end] {
                const rpc::Bytes body(kBodyBytes);
                for (Time now = Clock::now(); now < end;) {
                    check(target.client.call(target.address, kMethod, body, Deadline::after(10s)));
                    const Time after = Clock::now();
                    mine.push_back(after - now);
                    now = after;
                }
            });
        }
    }
    const Duration elapsed = Clock::now() - begin;
    std::vector<Duration> all;
    for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
    report(name, all, elapsed);
}

/// `outstanding` calls under way at any time; each answer starts the next from its callback.
class Pipeline {
public:
    Pipeline(Target target, size_t outstanding, Duration duration) : target_(target), end_(Clock::now() + duration) {
        done_.add(static_cast<uint32_t>(outstanding));
        for (size_t i = 0; i < outstanding; ++i) next();
        done_.wait(Deadline::never());
    }
    std::vector<Duration> times;

private:
    void next() {
        const Time begin = Clock::now();
        target_.client.call_async(target_.address, kMethod, rpc::Bytes(kBodyBytes), Deadline::after(10s),
                                  [this, begin](Result<rpc::Bytes> reply) {
                                      check(reply);
                                      const Time now = Clock::now();
                                      times.push_back(now - begin);  // callbacks of one connection run one after another
                                      if (now < end_) next();
                                      else done_.succeed(0);
                                  });
    }

    const Target target_;
    const Time end_;
    Completion done_;
};

void run_pipeline(const char* name, Target target, size_t outstanding, Duration duration) {
    const Time begin = Clock::now();
    Pipeline pipeline(target, outstanding, duration);
    report(name, pipeline.times, Clock::now() - begin);
}

}  // namespace

int main(int argc, char** argv) {
    const Duration duration = std::chrono::seconds(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
    auto server = rpc::Server::create({});
    if (!server) {
        std::fprintf(stderr, "%s\n", server.error().to_string().c_str());
        return 1;
    }
    (*server)->handle(kMethod, [](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        responder->reply(rpc::Bytes(body.begin(), body.end()));
    });
    (*server)->start();
    const auto client = rpc::Client::create({});
    const Target target{*client, format_text("127.0.0.1:{}", (*server)->port())};
    check(client->call(target.address, kMethod, rpc::Bytes(kBodyBytes), Deadline::after(10s)));
    run_blocking("1 outstanding, blocking", target, 1, duration);
    run_pipeline("1 outstanding, callbacks", target, 1, duration);
    run_blocking("8 outstanding, blocking", target, 8, duration);
    run_pipeline("64 outstanding, callbacks", target, 64, duration);
    client->stop();
    (*server)->stop();
    return 0;
}
