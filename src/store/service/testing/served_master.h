// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "rpc/rpc.h"
#include "store/protocol/messages.h"
#include "store/service/master_server.h"
#include "store/service/testing/stream_listener.h"

namespace mooncake::store::testing {

inline Deadline soon() { return Deadline::after(kPatience); }

/// Follows one client's event stream over a connection of its own and, unless told otherwise, acknowledges what it is asked to.
class Following {
public:
    Following(std::string address, ClientId client, bool acknowledges = true)
        : address_(std::move(address)), client_(client), acknowledges_(acknowledges) {
        call_ = rpc_->call_stream(
            address_, rpc::Method::kStoreFollow, encode_client_request(client_), [this](std::span<const std::byte> part) { take(part); },
            [this](Result<rpc::Bytes> end) {
                Lock lock(mutex_);
                end_ = end ? Error(Code::kOk, "ended") : end.error();
            });
    }
    ~Following() { rpc_->stop(); }

    std::vector<EventUpdate> updates() {
        Lock lock(mutex_);
        return updates_;
    }
    std::vector<EventUpdate> take() {
        Lock lock(mutex_);
        return std::exchange(updates_, {});
    }
    std::optional<Error> end() {
        Lock lock(mutex_);
        return end_;
    }
    bool wait_complete() {
        return eventually([&] {
            Lock lock(mutex_);
            return complete_;
        });
    }
    bool wait_end() {
        return eventually([&] { return end().has_value(); });
    }
    void acknowledge(uint64_t sequence) {
        rpc_->call_async(address_, rpc::Method::kStoreAcknowledge, encode_acknowledgement({client_, sequence}), soon(), [](auto) {});
    }
    void cancel() { rpc_->cancel(call_); }

private:
    void take(std::span<const std::byte> part) {
        auto update = decode_event_update(part);
        MC_CHECK(update);
        if (update->acknowledge && acknowledges_) acknowledge(update->sequence);
        Lock lock(mutex_);
        complete_ |= update->complete;
        updates_.push_back(std::move(*update));
    }

    const std::string address_;
    const ClientId client_;
    const bool acknowledges_;
    Mutex mutex_;
    std::vector<EventUpdate> updates_ MC_GUARDED_BY(mutex_);
    bool complete_ MC_GUARDED_BY(mutex_) = false;
    std::optional<Error> end_ MC_GUARDED_BY(mutex_);
    std::unique_ptr<rpc::Client> rpc_ = rpc::Client::create({});
    uint64_t call_ = 0;
};

/// Calls a master by bare messages. Thread-safe.
class Caller {
public:
    explicit Caller(std::string address) : address_(std::move(address)) {}

    Result<rpc::Bytes> call(rpc::Method method, const rpc::Bytes& body) { return rpc_->call(address_, method, body, soon()); }
    const std::string& address() const noexcept { return address_; }

    RemountReply remount(const RemountRequest& request) {
        return decode_remount_reply(call(rpc::Method::kStoreRemount, encode_remount_request(request)).value()).value();
    }
    StoreCode mount(const ClientId& client, const SegmentSpec& segment) {
        return decode_code_reply(call(rpc::Method::kStoreMount, encode_mount_request({client, segment})).value()).value();
    }
    /// Makes the client known, with one segment.
    void join(const ClientId& client, uint64_t number) {
        remount({.client = client, .segments = {}});
        if (number != 0) MC_CHECK(mount(client, segment(number)) == StoreCode::kOk);
    }
    static SegmentSpec segment(uint64_t number, uint64_t size = 64 << 20) {
        return {.id = {7, number},
                .name = format_text("host:{}", number),
                .base = number << 40,
                .size = size,
                .endpoint = "e",
                .protocol = "tcp"};
    }
    HeartbeatReply heartbeat(const ClientId& client) {
        return decode_heartbeat_reply(call(rpc::Method::kStorePing, encode_client_request(client)).value()).value();
    }
    PutStartReply put_start(const ClientId& client, const std::vector<std::string>& keys, bool replace = false, uint64_t length = 100) {
        std::vector<PutItem> items;
        for (const auto& key : keys) items.push_back({.key = key, .length = length, .group = {}});
        return decode_put_start_reply(
                   call(rpc::Method::kStorePutStart,
                        encode_put_start_request({.client = client, .tenant = {}, .config = {}, .items = items}, replace))
                       .value())
            .value();
    }
    CodesReply put_end(const ClientId& client, const std::vector<std::string>& keys, uint64_t checksum = 1) {
        std::vector<PutEndItem> items;
        for (const auto& key : keys) items.push_back({.key = key, .generation = 0, .checksum = checksum});
        return decode_codes_reply(
                   call(rpc::Method::kStorePutEnd, encode_put_end_request({.client = client, .tenant = {}, .items = items})).value())
            .value();
    }
    void put(const ClientId& client, const std::vector<std::string>& keys) {
        for (const PutStartItem& item : put_start(client, keys).items) MC_CHECK(item.code == StoreCode::kOk);
        for (const StoreCode code : put_end(client, keys).codes) MC_CHECK(code == StoreCode::kOk);
    }
    GetReply get(const std::vector<std::string>& names) {
        const std::vector<std::string_view> keys(names.begin(), names.end());
        return decode_get_reply(
                   call(rpc::Method::kStoreGetReplicas, encode_keys_request({.tenant = {}, .keys = keys, .unreachable = {}})).value())
            .value();
    }
    ExistReply exist(const std::vector<std::string>& names) {
        const std::vector<std::string_view> keys(names.begin(), names.end());
        return decode_exist_reply(
                   call(rpc::Method::kStoreExist, encode_keys_request({.tenant = {}, .keys = keys, .unreachable = {}})).value())
            .value();
    }
    CodesReply remove(const std::vector<std::string>& names, bool force) {
        const std::vector<std::string_view> keys(names.begin(), names.end());
        return decode_codes_reply(
                   call(rpc::Method::kStoreRemove, encode_remove_request({.tenant = {}, .keys = keys, .force = force})).value())
            .value();
    }
    int64_t remove_matching(std::string_view pattern, bool force) {
        return decode_remove_matching_reply(
                   call(rpc::Method::kStoreRemoveMatching, encode_remove_matching_request({}, pattern, force)).value())
            .value();
    }
    SegmentsReply segments() { return decode_segments_reply(call(rpc::Method::kStoreSegments, {}).value()).value(); }
    StoreCode goodbye(const ClientId& client) {
        return decode_code_reply(call(rpc::Method::kStoreGoodbye, encode_client_request(client)).value()).value();
    }

private:
    const std::string address_;
    const std::unique_ptr<rpc::Client> rpc_ = rpc::Client::create({});
};

}  // namespace mooncake::store::testing
