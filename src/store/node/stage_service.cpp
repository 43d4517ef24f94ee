// SPDX-License-Identifier: Apache-2.0
#include "store/node/stage_service.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "store/protocol/messages_segments.h"
#include "store/protocol/messages_tiers.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr Duration kReadPatience = 10s;  // whatever the caller says
constexpr Duration kTidyInterval = 500ms;

StoreCode code_of(Code code) {
    switch (code) {
        case Code::kOk: return StoreCode::kOk;
        case Code::kNotFound: return StoreCode::kObjectNotFound;
        case Code::kInvalidArgument: return StoreCode::kInvalidParams;
        case Code::kCorrupt: return StoreCode::kChecksumMismatch;
        case Code::kBusy: return StoreCode::kNoAvailableHandle;
        case Code::kCancelled: return StoreCode::kUnavailableInCurrentStatus;
        default: return StoreCode::kInvalidRead;
    }
}

/// Of a part, at most so many bytes. What is cut ends with a chunk, so that its hashes are those of the value; 0: not even one fits.
uint64_t cut_to(uint64_t offset, uint64_t length, uint64_t most) {
    if (most >= length) return length;
    const uint64_t end = (offset + most) / kChunkBytes * kChunkBytes;
    return end > offset ? end - offset : 0;
}

}  // namespace

/// One question, from its arrival to its answer.
struct StageService::Request final : CompletionHook {
    struct Item {
        std::string key, texts;  // `texts`: of the value, which the read borrows
        uint64_t generation = 0, offset = 0, length = 0;
    };

    void on_done(Completion&) noexcept override {
        std::unique_ptr<Request> self(this);
        StageService& service = *owner;
        service.setup_.reads.end(reads.size());
        Lock lock(service.mutex_);
        service.read_.push_back(std::move(self));
        service.changed_.notify_one();
    }

    StageService* owner = nullptr;
    std::unique_ptr<rpc::Responder> responder;
    std::string peer;
    Time arrived = Clock::now();
    std::vector<Item> items;
    std::vector<StagedPart> parts;  // of each item
    std::vector<TierRead> reads;    // of those that were handed to the disk
    std::vector<size_t> item_of;    // each read
    std::vector<StagingArena::Room> rooms;
    uint64_t bytes = 0;
    Completion completion{nullptr, this};
};

Result<std::unique_ptr<StageService>> StageService::create(const Setup& setup, const StageOptions& options) {
    const EngineOptions& engine = setup.engine->options();
    MC_ASSIGN_OR_RETURN(
        auto server,
        rpc::Server::create({.host = engine.bind_address,
                             .port_min = engine.port_min,
                             .port_max = engine.port_max,
                             .backlog = engine.listen_backlog,
                             .queued_requests_max = 64,
                             .hello = {.incarnation = setup.engine->incarnation(), .features = 0, .software = "mooncake node"}}));
    std::unique_ptr<StageService> service(new StageService(setup, options, std::move(server)));
    for (size_t i = 0; i < kThreads; ++i) {
        MC_ASSIGN_OR_RETURN(auto thread, try_start_thread(format_text("mc-disk-stage-{}", i),
                                                          [self = service.get()](const std::stop_token& stop) { self->run(stop); }));
        service->threads_.push_back(std::move(thread));
    }
    service->server_->start();
    return service;
}

StageService::StageService(const Setup& setup, const StageOptions& options, std::unique_ptr<rpc::Server> server)
    : setup_(setup), options_(options), arena_(setup.engine, options.arena),
      leases_(arena_, {.bytes_each = std::max(options.arena.bytes_max / 2, arena_.piece_max())}), server_(std::move(server)) {
    server_->handle(rpc::Method::kNodeStage, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        on_stage(body, std::move(responder));
    });
    server_->handle(rpc::Method::kNodeRelease, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        on_release(body, std::move(responder));
    });
}

StageService::~StageService() { stop(); }

void StageService::stop() {
    server_->stop();
    for (std::jthread& thread : threads_) thread.request_stop();
    threads_.clear();
}

void StageService::on_stage(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
    auto received = decode_stage_request(body);
    if (!received) return responder->fail(received.error());
    auto request = std::make_unique<Request>();
    request->owner = this;
    request->peer = responder->peer().address;
    request->responder = std::move(responder);
    request->parts.resize(received->items.size());
    const bool ours = received->request.segment == setup_.segment;
    for (const StageItem& item : received->items)
        request->items.push_back(
            {.key = std::string(item.key), .texts = {}, .generation = item.generation, .offset = item.offset, .length = item.length});
    if (ours) {
        Lock lock(mutex_);
        if (requests_ < options_.requests_max) {
            ++requests_;
            asked_.push_back(std::move(request));
            changed_.notify_one();
            return;
        }
    }
    for (StagedPart& part : request->parts) part.code = ours ? StoreCode::kNoAvailableHandle : StoreCode::kSegmentNotFound;
    if (ours) setup_.metrics.stage_refusals.add(request->parts.size());
    request->responder->reply(encode_stage_reply({.parts = request->parts, .hashes = {}, .engine = setup_.engine->incarnation()}));
}

void StageService::on_release(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
    const auto request = decode_release_request(body);
    if (!request) return responder->fail(request.error());
    leases_.release(responder->peer().address, request->leases, Clock::now());
    responder->reply(encode_code_reply(StoreCode::kOk));
}

void StageService::run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        std::unique_ptr<Request> read, asked;
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, stop, kTidyInterval, [this]() MC_NO_THREAD_ANALYSIS { return !read_.empty() || !asked_.empty(); });
            mutex_.is_held();
            // Who has been read for is answered first: that makes room.
            auto& queue = read_.empty() ? asked_ : read_;
            if (!queue.empty()) {
                (read_.empty() ? asked : read) = std::move(queue.front());
                queue.pop_front();
            }
        }
        if (stop.stop_requested()) return;
        if (read) finish(*read);
        else if (asked) begin(std::move(asked));
        else {
            const Time now = Clock::now();
            setup_.metrics.expired_leases.add(leases_.expire(now));
            arena_.tidy(now);
            setup_.metrics.staging_bytes.set(static_cast<int64_t>(arena_.slab_bytes()));
        }
    }
}

void StageService::begin(std::unique_ptr<Request> request) {
    if (request->responder->abandoned()) return finish(*request);
    request->reads.reserve(request->items.size());
    for (size_t i = 0; i < request->items.size(); ++i) begin_item(*request, i);
    if (request->reads.empty()) return finish(*request);
    Request* const asked = request.release();  // it comes back when the disk has answered
    setup_.reads.begin(asked->reads.size());
    setup_.tier.read(asked->reads, asked->responder->deadline().earlier(Deadline::after(kReadPatience)), asked->completion);
}

void StageService::begin_item(Request& request, size_t i) {
    Request::Item& item = request.items[i];
    StagedPart& part = request.parts[i];
    const auto object = setup_.tier.find(item.generation, item.texts);
    if (!object || object->key != item.key) {
        part.code = StoreCode::kObjectNotFound;
        return;
    }
    if (item.offset > object->length || item.length > object->length - item.offset) {
        part.code = StoreCode::kInvalidParams;
        return;
    }
    if (item.length == 0) return;
    std::optional<StagingArena::Room> room;
    uint64_t bytes = 0;
    // Less, where there is not enough: the reader asks for the rest.
    for (uint64_t most = std::min({item.length, arena_.piece_max(), options_.request_bytes_max - request.bytes}); !room && most != 0;
         most /= 2) {
        bytes = cut_to(item.offset, item.length, most);
        if (bytes == 0) break;
        room = leases_.take(request.peer, bytes, Clock::now());
    }
    if (!room) {
        part.code = StoreCode::kNoAvailableHandle;
        setup_.metrics.stage_refusals.add();
        return;
    }
    part.length = bytes;
    request.bytes += bytes;
    request.rooms.push_back(*room);
    request.item_of.push_back(i);
    request.reads.push_back({.tenant = object->tenant,
                             .key = object->key,
                             .generation = item.generation,
                             .offset = item.offset,
                             .into = {room->data, bytes},
                             .direct = item.offset % kChunkBytes == 0});
}

void StageService::settle(Request& request, size_t n, StageReply& reply, Time now) {
    StagedPart& part = request.parts[request.item_of[n]];
    const TierRead& read = request.reads[n];
    if (read.result != Code::kOk || request.responder->abandoned()) {
        leases_.give_back(request.peer, request.rooms[n], now);
        part = {.code = read.result == Code::kOk ? StoreCode::kRpcTimeout : code_of(read.result)};
        setup_.metrics.stage_failures.add();
        return;
    }
    part.address = reinterpret_cast<uint64_t>(read.into.data());
    part.first_hash = static_cast<uint32_t>(reply.hashes.size());
    for (uint64_t at = read.offset, end = read.offset + read.into.size(); at < end;) {
        const uint64_t next = std::min((at / kChunkBytes + 1) * kChunkBytes, end);
        reply.hashes.push_back(hash_bytes(read.into.subspan(at - read.offset, next - at)));
        at = next;
    }
    part.hash_count = static_cast<uint32_t>(reply.hashes.size()) - part.first_hash;
    part.lease = leases_.grant(request.peer, request.rooms[n], now + options_.lease);
    setup_.metrics.staged.add();
    setup_.metrics.staged_bytes.add(part.length);
}

void StageService::finish(Request& request) {
    // The reader counts from when it asked, we from when the bytes are there.
    StageReply reply{.parts = {}, .hashes = {}, .engine = setup_.engine->incarnation()};
    const Time now = Clock::now();
    reply.lease_time = options_.lease + (now - request.arrived);
    for (size_t n = 0; n < request.reads.size(); ++n) settle(request, n, reply, now);
    reply.parts = std::move(request.parts);
    request.responder->reply(encode_stage_reply(reply));
    Lock lock(mutex_);
    --requests_;
}

}  // namespace mooncake::store
