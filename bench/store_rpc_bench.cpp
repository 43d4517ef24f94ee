// SPDX-License-Identifier: Apache-2.0
// Calls to the store's master over loopback, master and client in one process: codec alone, round trips, keys per second. Times of calls are
// also given in round trips of an empty call to the same server.
//   store_rpc_bench [seconds per case, default 1]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/rpc.h"
#include "store/protocol/messages.h"
#include "store/service/master_server.h"

namespace {

using namespace mooncake;
using namespace mooncake::store;

constexpr ClientId kClient{1, 2};
constexpr uint64_t kSegmentBytes = uint64_t{64} << 30;  // never touched: the master only counts

Duration case_time = 1s;

void must(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
}

/// Median time of one call, called for case_time.
double median_us(const std::function<void()>& call) {
    for (int i = 0; i < 20; ++i) call();
    std::vector<Duration> times;
    const Time end = Clock::now() + case_time;
    for (Time now = Clock::now(); now < end;) {
        call();
        const Time after = Clock::now();
        times.push_back(after - now);
        now = after;
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return std::chrono::duration<double, std::micro>(times[times.size() / 2]).count();
}

std::vector<std::string> make_names(size_t count, const std::string& prefix) {
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back(format_text("{}-0123456789abcdef0123456789abcdef-{:06}", prefix, i));
    return names;
}

struct Batch {
    explicit Batch(std::vector<std::string> some_names) : names(std::move(some_names)), keys(names.begin(), names.end()) {
        for (const std::string_view key : keys) {
            starts.push_back({.key = key, .length = 4096, .group = {}});
            ends.push_back({.key = key, .generation = 0, .checksum = 1});
        }
    }
    std::vector<std::string> names;
    std::vector<std::string_view> keys;
    std::vector<PutItem> starts;
    std::vector<PutEndItem> ends;

    KeysRequest ask() const { return {.tenant = {}, .keys = keys, .unreachable = {}}; }
    rpc::Bytes start_body() const {
        return encode_put_start_request({.client = kClient, .tenant = {}, .config = {}, .items = starts}, false);
    }
    rpc::Bytes end_body() const { return encode_put_end_request({.client = kClient, .tenant = {}, .items = ends}); }
};

void bench_codec() {
    const Batch batch(make_names(1000, "codec"));
    const auto row = [](const char* name, const std::function<void()>& call) { std::printf("%-44s %8.2f us\n", name, median_us(call)); };
    const auto keys = encode_keys_request(batch.ask());
    row("keys request, 1000: encode", [&] { must(!encode_keys_request(batch.ask()).empty(), "encode"); });
    row("keys request, 1000: decode", [&] { must(decode_keys_request(keys).has_value(), "decode"); });
    GetReply reply;
    for (uint32_t i = 0; i < 1000; ++i) {
        reply.items.push_back({.first_replica = i, .replica_count = 1, .length = 4096, .checksum = i, .generation = i});
        reply.replicas.push_back({1, i});
    }
    const auto got = encode_get_reply(reply);
    row("get reply, 1000: encode", [&] { must(!encode_get_reply(reply).empty(), "encode"); });
    row("get reply, 1000: decode", [&] { must(decode_get_reply(got).has_value(), "decode"); });
    const auto start = batch.start_body();
    row("put start request, 1000: encode", [&] { must(!batch.start_body().empty(), "encode"); });
    row("put start request, 1000: decode", [&] { must(decode_put_start_request(start).has_value(), "decode"); });
    EventWriter writer;
    const auto fill = [&] {
        writer.clear();
        for (const std::string_view key : batch.keys) writer.planned({.length = 4096, .tenant = "default", .key = key, .group = {}});
        return writer.encode({.sequence = 1});
    };
    const auto update = fill();
    row("feed update, 1000 planned: write and encode", [&] { must(!fill().empty(), "encode"); });
    row("feed update, 1000 planned: decode", [&] { must(decode_event_update(update).has_value(), "decode"); });
}

/// One client of a served master, with a node's event stream if wanted.
class Bench {
public:
    explicit Bench(bool follows) {
        call(rpc::Method::kStoreRemount, encode_remount_request({.client = kClient, .segments = {}}));
        const SegmentSpec segment{.id = {3, 4}, .name = "here:1", .base = 1 << 30, .size = kSegmentBytes, .endpoint = {}, .protocol = {}};
        call(rpc::Method::kStoreMount, encode_mount_request({kClient, segment}));
        if (!follows) return;
        stream_->call_stream(
            address_, rpc::Method::kStoreFollow, encode_client_request(kClient),
            [this](std::span<const std::byte> part) {
                const auto update = decode_event_update(part);
                must(update.has_value(), "feed");
                if (update->acknowledge)
                    stream_->call_async(address_, rpc::Method::kStoreAcknowledge, encode_acknowledgement({kClient, update->sequence}),
                                        Deadline::after(10s), [](auto) {});
            },
            [](auto) {});
    }
    ~Bench() { stream_->stop(); }

    rpc::Bytes call(rpc::Method method, const rpc::Bytes& body) {
        auto reply = client_->call(address_, method, body, Deadline::after(10s));
        must(reply.has_value(), "call");
        return std::move(*reply);
    }
    double probe_us() {
        return median_us([this] { call(rpc::Method::kProbe, {}); });
    }
    void row(const char* name, size_t keys, double probe, const std::function<void()>& one) {
        call(rpc::Method::kStorePing, encode_client_request(kClient));
        const double time = median_us(one);
        std::printf("%-44s %8.2f us  %6.2f x probe  %10.0f keys/s\n", name, time, time / probe, static_cast<double>(keys) * 1e6 / time);
    }

    void run() {
        const double probe = probe_us();
        std::printf("%-44s %8.2f us\n", "probe", probe);
        const Batch thousand(make_names(1000, "t")), hundred(make_names(128, "h")), one(make_names(1, "o"));
        for (const Batch* batch : {&thousand, &hundred, &one}) {
            call(rpc::Method::kStorePutStart, batch->start_body());
            call(rpc::Method::kStorePutEnd, batch->end_body());
        }
        row("ping", 1, probe, [this] { call(rpc::Method::kStorePing, encode_client_request(kClient)); });
        row("exist x 1", 1, probe, [&] { exist(one); });
        row("exist x 1000", 1000, probe, [&] { exist(thousand); });
        row("get x 1", 1, probe, [&] { get(one); });
        row("get x 128", 128, probe, [&] { get(hundred); });
        size_t round = 0;
        row("put start + end x 1", 1, probe, [&] { put(Batch(make_names(1, format_text("p1-{}", ++round)))); });
        row("put start + end x 128", 128, probe, [&] { put(Batch(make_names(128, format_text("p128-{}", ++round)))); });
    }

private:
    void exist(const Batch& batch) {
        const auto reply = decode_exist_reply(call(rpc::Method::kStoreExist, encode_keys_request(batch.ask())));
        must(reply && reply->results.size() == batch.keys.size() && reply->results[0] == 1, "exist");
    }
    void get(const Batch& batch) {
        const auto reply = decode_get_reply(call(rpc::Method::kStoreGetReplicas, encode_keys_request(batch.ask())));
        must(reply && reply->items.size() == batch.keys.size() && reply->items[0].code == StoreCode::kOk, "get");
    }
    void put(const Batch& batch) {
        const auto started = decode_put_start_reply(call(rpc::Method::kStorePutStart, batch.start_body()));
        must(started && started->items[0].code == StoreCode::kOk, "put start");
        const auto ended = decode_codes_reply(call(rpc::Method::kStorePutEnd, batch.end_body()));
        must(ended && ended->codes[0] == StoreCode::kOk, "put end");
    }

    std::unique_ptr<MasterServer> server_ = [] {
        auto server = MasterServer::create({.core = {.client_ttl = 1h}});
        must(server.has_value(), "master");
        (*server)->start();
        return std::move(*server);
    }();
    const std::string address_ = format_text("127.0.0.1:{}", server_->port());
    const std::unique_ptr<rpc::Client> client_ = rpc::Client::create({});
    const std::unique_ptr<rpc::Client> stream_ = rpc::Client::create({});
};

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) case_time = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(0.01, std::atof(argv[1]))));
    bench_codec();
    std::printf("\nnobody follows\n");
    Bench(false).run();
    std::printf("\nthe node follows\n");
    Bench(true).run();
    return 0;
}
