// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/client/thin_client.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/border.h"
#include "base/log.h"
#include "base/memory_probe.h"
#include "net/address.h"
#include "store/protocol/messages_objects.h"
#include "store/protocol/messages_tasks.h"

namespace mooncake::store::bridge {

namespace {

constexpr auto kClosed = StoreCode::kUnavailableInCurrentStatus;
constexpr uint64_t kBufferMost = uint64_t{1} << 40;

NodeLine::Options line_options(const StoreOptions& options) { return {.reconnect_wait = options.node_wait}; }

}  // namespace

tl::expected<std::unique_ptr<StoreClient>, StoreCode> ThinClient::create(ThinConfig config) try {
    const auto address = net::HostPort::parse(config.server_address);
    if (!address || address->port == 0 || config.buffer_bytes > kBufferMost) {
        MC_LOG_ERROR("a node at '{}', with {} bytes of working memory: host:port and at most 1 TiB are expected", config.server_address,
                     config.buffer_bytes);
        return tl::unexpected(StoreCode::kInvalidParams);
    }
    auto client = std::make_unique<ThinClient>(std::move(config), address->port);
    if (const StoreCode code = client->start(); code != StoreCode::kOk) return tl::unexpected(code);
    return client;
}
MC_BORDER(tl::unexpected(StoreCode::kInternalError))

ThinClient::ThinClient(ThinConfig config, uint16_t port) : line_(port, line_options(config.options)) {
    store_config_.segment_bytes = 0;
    store_config_.buffer_bytes = config.buffer_bytes;
    store_config_.options = std::move(config.options);
}

ThinClient::~ThinClient() {
    if (fork_generation() == born_) close();
}

void ThinClient::close() {
    if (fork_generation() != born_) return;
    line_.close();
    gate_.close();
}

StoreCode ThinClient::start() {
    if (const auto connected = line_.connect(); !connected) {
        MC_LOG_ERROR("no node to attach to: {}", connected.error().to_string());
        return StoreCode::kRpcFail;
    }
    if (store_config_.buffer_bytes == 0) return StoreCode::kOk;
    auto memory = HostBlock::allocate(store_config_.buffer_bytes, 0, false);
    if (!memory) {
        MC_LOG_ERROR("no working memory: {}", memory.error().to_string());
        return StoreCode::kBufferOverflow;
    }
    working_ = std::move(*memory);
    const auto entry = line_.share(working_);
    if (!entry) {
        MC_LOG_ERROR("no working memory: {}", entry.error().to_string());
        return code_of(entry.error());
    }
    staging_ = std::make_unique<StagingPool>(working_->data(), working_->length());
    const std::unique_lock lock(shared_mutex_);
    shared_.emplace(working_->data(), Shared{.entry = *entry, .uses = 1, .block = working_});
    return StoreCode::kOk;
}

StoreCode ThinClient::code_of(const Error& error) {
    switch (error.code()) {
        case Code::kCancelled: return kClosed;
        case Code::kTimedOut: return StoreCode::kRpcTimeout;
        case Code::kNoSpace: return StoreCode::kBufferOverflow;
        case Code::kRefused: return StoreCode::kInvalidParams;
        default: return StoreCode::kRpcFail;
    }
}

// ---- asking

Reply ThinClient::ask(Kind kind, const Request& request, size_t count, bool repeatable) {
    Reply reply;
    StoreCode why = kClosed;
    if (const auto pass = enter()) {
        const auto answer = line_.call(kind, encode_request(request), repeatable);
        auto decoded = answer ? decode_reply(*answer) : Result<Reply>(Unexpected(answer.error()));
        if (decoded && decoded->numbers.size() == count) return std::move(*decoded);
        why = decoded ? StoreCode::kRpcFail : code_of(decoded.error());
        if (why != kClosed)
            MC_LOG_WARNING_EVERY(1s, "a call was not answered: {}", decoded ? "the answer makes no sense" : decoded.error().to_string());
    }
    reply.numbers.assign(count, static_cast<int64_t>(why));
    return reply;
}

std::vector<StoreCode> ThinClient::ask_codes(Kind kind, const Request& request, size_t count) {
    std::vector<StoreCode> codes;
    codes.reserve(count);
    if (count == 0) return codes;
    for (const int64_t number : ask(kind, request, count).numbers) codes.push_back(static_cast<StoreCode>(number));
    return codes;
}

std::vector<ValueInfo> ThinClient::ask_values(Kind kind, std::span<const std::string_view> keys) {
    if (keys.empty()) return {};
    Request request;
    request.keys = keys;
    Reply reply = ask(kind, request, keys.size());
    if (reply.values.size() == keys.size()) return std::move(reply.values);
    std::vector<ValueInfo> values(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) values[i].code = static_cast<StoreCode>(reply.numbers[i]);
    return values;
}

int64_t ThinClient::ask_number(Kind kind, const Request& request) { return ask(kind, request, 1).numbers.front(); }

bool ThinClient::master_reachable() {
    const auto pass = enter();
    if (!pass) return false;
    const auto answer = line_.call_once(Kind::kPing, encode_request({}));
    const auto reply = answer ? decode_reply(*answer) : Result<Reply>(Unexpected(answer.error()));
    return reply && !reply->numbers.empty() && reply->numbers.front() == 1;
}

std::vector<ValueInfo> ThinClient::find(std::span<const std::string_view> keys) { return ask_values(Kind::kFind, keys); }
std::vector<ValueInfo> ThinClient::locate(std::span<const std::string_view> keys) { return ask_values(Kind::kLocate, keys); }

std::vector<int32_t> ThinClient::exist(std::span<const std::string_view> keys) {
    std::vector<int32_t> results;
    results.reserve(keys.size());
    if (keys.empty()) return results;
    Request request;
    request.keys = keys;
    for (const int64_t number : ask(Kind::kExist, request, keys.size()).numbers) results.push_back(static_cast<int32_t>(number));
    return results;
}

std::vector<StoreCode> ThinClient::remove(std::span<const std::string_view> keys, bool force) {
    Request request;
    request.keys = keys;
    request.flag = force;
    return ask_codes(Kind::kRemove, request, keys.size());
}

int64_t ThinClient::remove_by_regex(std::string_view pattern, bool force) {
    if (pattern.size() > kPatternBytesMax) return static_cast<int64_t>(StoreCode::kInvalidParams);
    Request request;
    request.text = pattern;
    request.flag = force;
    return ask_number(Kind::kRemoveByRegex, request);
}

int64_t ThinClient::remove_all(bool force) {
    Request request;
    request.flag = force;
    return ask_number(Kind::kRemoveAll, request);
}

std::vector<StoreCode> ThinClient::replica_clear(std::span<const std::string_view> keys, std::string_view segment_name) {
    if (segment_name.size() > kNameBytesMax) return std::vector<StoreCode>(keys.size(), StoreCode::kInvalidParams);
    Request request;
    request.keys = keys;
    request.text = segment_name;
    return ask_codes(Kind::kReplicaClear, request, keys.size());
}

uint64_t ThinClient::far_disk_reads() { return static_cast<uint64_t>(std::max<int64_t>(0, ask_number(Kind::kDiskReads, {}))); }

TaskReply ThinClient::create_task(const TaskRequest& request) {
    const auto pass = enter();
    if (!pass) return {.code = kClosed};
    // Not twice: there would be two tasks.
    const auto answer = line_.call(Kind::kCreateTask, encode_task_request(request), false);
    const auto reply = answer ? decode_task_reply(*answer) : Result<TaskReply>(Unexpected(answer.error()));
    return reply ? *reply : TaskReply{.code = code_of(reply.error())};
}

tl::expected<TaskInfo, StoreCode> ThinClient::query_task(const TaskId& task) {
    const auto pass = enter();
    if (!pass) return tl::unexpected(kClosed);
    const auto answer = line_.call(Kind::kQueryTask, encode_task_query(task));
    if (!answer) return tl::unexpected(code_of(answer.error()));
    if (answer->empty()) return tl::unexpected(StoreCode::kTaskNotFound);
    auto info = decode_task_info(*answer);
    if (!info) return tl::unexpected(StoreCode::kRpcFail);
    return std::move(*info);
}

// ---- memory

std::byte* ThinClient::allocate_shared(uint64_t bytes) {
    const auto pass = enter();
    if (!pass) return nullptr;
    const auto address = allocate_host_memory(bytes);
    if (!address) {
        MC_LOG_WARNING("no memory to share: {}", address.error().to_string());
        return nullptr;
    }
    Lock lock(register_mutex_);
    pool_.emplace_back(static_cast<std::byte*>(*address), [](std::byte* memory) { (void)free_host_memory(memory); });
    return pool_.back().get();
}

StoreCode ThinClient::register_buffer(void* address, uint64_t length) {
    const auto pass = enter();
    if (!pass) return kClosed;
    auto* const start = static_cast<std::byte*>(address);
    if (start == nullptr || length == 0 || reinterpret_cast<uintptr_t>(start) + length < length) return StoreCode::kInvalidParams;
    auto block = find_host_memory(address, length);
    if (block == nullptr || block->fd() < 0) {
        MC_LOG_WARNING_EVERY(
            60s,
            "{} bytes at {} are not from alloc_from_mem_pool or MooncakeHostMemAllocator, or lie in huge pages: values there "
            "are copied through the working memory",
            length, address);
        buffers_.add(start, length);
        return StoreCode::kOk;
    }
    Lock registering(register_mutex_);
    {
        const std::unique_lock lock(shared_mutex_);
        const auto known = shared_.find(block->data());
        if (known != shared_.end()) {
            ++known->second.uses;
            buffers_.add(start, length);
            return StoreCode::kOk;
        }
    }
    const auto entry = line_.share(block);
    if (!entry) {
        MC_LOG_WARNING("cannot register {} bytes at {}: {}", length, address, entry.error().to_string());
        return code_of(entry.error());
    }
    const std::unique_lock lock(shared_mutex_);
    shared_.emplace(block->data(), Shared{.entry = *entry, .uses = 1, .block = block});
    buffers_.add(start, length);
    return StoreCode::kOk;
}

StoreCode ThinClient::unregister_buffer(void* address) {
    const auto pass = enter();
    if (!pass) return kClosed;
    Lock registering(register_mutex_);
    if (!buffers_.remove(static_cast<std::byte*>(address))) return StoreCode::kInvalidParams;
    Shared going;
    {
        const std::unique_lock lock(shared_mutex_);
        auto found = shared_.upper_bound(static_cast<std::byte*>(address));
        if (found == shared_.begin()) return StoreCode::kOk;
        --found;
        if (static_cast<uint64_t>(static_cast<std::byte*>(address) - found->first) >= found->second.block->length()) return StoreCode::kOk;
        if (--found->second.uses != 0) return StoreCode::kOk;
        going = std::move(found->second);
        shared_.erase(found);
    }
    line_.unshare(going.entry);
    return StoreCode::kOk;
}

std::optional<SharedPiece> ThinClient::shared_piece(const Piece& piece) const {
    const std::shared_lock lock(shared_mutex_);
    auto found = shared_.upper_bound(piece.data);
    if (found == shared_.begin()) return std::nullopt;
    --found;
    const auto offset = static_cast<uint64_t>(piece.data - found->first);
    const uint64_t length = found->second.block->length();
    if (offset > length || piece.length > length - offset) return std::nullopt;
    return SharedPiece{.entry = found->second.entry, .offset = offset, .length = piece.length};
}

std::optional<Piece> ThinClient::registered_range(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    if (working_ && at >= working_->data() && at < working_->data() + working_->length())
        return Piece{working_->data(), working_->length()};
    const auto range = buffers_.find_mapped(at, Clock::now());
    if (!range) return std::nullopt;
    return Piece{range->first, range->second};
}

MemoryLoan ThinClient::drop_unreadable(std::span<Piece> sources) {
    for (Piece& source : sources)
        if (source.data != nullptr && !shared_piece(source) && !is_readable(source.data, source.length)) source.data = nullptr;
    return {};
}

MemoryLoan ThinClient::look_at(std::span<const Piece> targets) {
    MemoryLoan loan;
    loan.unsure = std::any_of(targets.begin(), targets.end(), [this](const Piece& target) { return !shared_piece(target); });
    return loan;
}

StagingBuffer ThinClient::stage(uint64_t length) {
    const auto pass = enter();
    return pass && staging_ ? staging_->take(length) : StagingBuffer();
}

std::vector<bool> ThinClient::are_shared(std::span<void* const> addresses) {
    std::vector<SharedPiece> pieces;
    for (void* const address : addresses) pieces.push_back(shared_piece({static_cast<std::byte*>(address), 1}).value_or(SharedPiece{}));
    Request request;
    request.pieces = pieces;
    std::vector<bool> known;
    for (const int64_t number : ask(Kind::kIsMapped, request, pieces.size()).numbers) known.push_back(number == 1);
    return known;
}

// ---- what only nodes do

MountedSegments ThinClient::mount_file(const FileToMount&) {
    return {.code = StoreCode::kUnavailableInCurrentMode, .segments = {}, .bytes = 0};
}
MountedSegments ThinClient::mount_memory(uint64_t, std::string_view, std::string_view) {
    return {.code = StoreCode::kUnavailableInCurrentMode, .segments = {}, .bytes = 0};
}
StoreCode ThinClient::unmount(std::span<const SegmentId>, Duration) { return StoreCode::kUnavailableInCurrentMode; }
StoreCode ThinClient::unmount_disk(Duration) { return StoreCode::kUnavailableInCurrentMode; }

}  // namespace mooncake::store::bridge
