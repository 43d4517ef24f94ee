// SPDX-License-Identifier: Apache-2.0
#include "mooncake/transfer_engine_c.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/border.h"
#include "capi/calls.h"
#include "capi/graceful_shutdown.h"
#include "capi/live_engines.h"
#include "engine/codes.h"
#include "engine/engine.h"

// Each function checks what C cannot (NULL, dead engines), calls the engine and turns the result into a number. Those that may throw end in
// MC_BORDER.
namespace {

using namespace mooncake;  // NOLINT(google-build-using-namespace): this file is the border
using capi::EngineUse;

constexpr size_t kItemsMax = size_t{1} << 24;  // of one call: more can only be a mistake

int invalid_call() noexcept { return public_code(Code::kInvalidArgument); }
int invalid_batch_call() noexcept { return status_code(Code::kInvalidArgument); }
int broken_call() noexcept { return public_code(Code::kInternal); }
int broken_batch_call() noexcept { return status_code(Code::kInternal); }

capi::EngineHandle handle_of(transfer_engine_t engine) noexcept { return reinterpret_cast<uintptr_t>(engine); }
transfer_engine_t to_c(capi::EngineHandle handle) noexcept {
    static_assert(sizeof(transfer_engine_t) == sizeof(capi::EngineHandle));
    return reinterpret_cast<transfer_engine_t>(handle);  // NOLINT(performance-no-int-to-ptr)
}
EngineUse use(transfer_engine_t engine) noexcept { return capi::use_engine(handle_of(engine)); }

std::string text_or(const char* text, const char* otherwise) { return text != nullptr ? text : otherwise; }
Notification to_notification(const notify_msg_t& message) { return {text_or(message.name, ""), text_or(message.msg, "")}; }

segment_id_t to_c(const Result<SegmentId>& segment) noexcept { return segment ? *segment : public_code(segment); }

Result<std::vector<Request>> to_requests(const transfer_request* entries, size_t count) {
    if (entries == nullptr && count != 0) return fail(Code::kInvalidArgument, "{} requests at no address", count);
    if (count > kItemsMax) return fail(Code::kNoSpace, "{} requests in one call", count);
    std::vector<Request> requests;
    requests.reserve(count);
    for (const transfer_request& entry : std::span(entries, count)) {
        if (entry.opcode != OPCODE_READ && entry.opcode != OPCODE_WRITE)
            return fail(Code::kInvalidArgument, "{} is no opcode", entry.opcode);
        requests.push_back({.direction = entry.opcode == OPCODE_READ ? Direction::kRead : Direction::kWrite,
                            .local = static_cast<std::byte*>(entry.source),
                            .segment = entry.target_id,
                            .remote = entry.target_offset,
                            .length = entry.length});
    }
    return requests;
}

int submit(transfer_engine_t engine, batch_id_t batch, const transfer_request* entries, size_t count, const Notification* notification) {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine) return invalid_batch_call();
    auto requests = to_requests(entries, count);
    if (!requests) return status_code(requests);
    return status_code(use_of_engine->submit(batch, *requests, notification));
}

char* duplicate(const std::string& text) noexcept {
    auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

}  // namespace

// ---- engine

transfer_engine_t createTransferEngine(const char* metadata_conn_string, const char* local_server_name, const char* /*ip_or_host_name*/,
                                       uint64_t /*rpc_port*/, int /*auto_discover*/) try {
    if (metadata_conn_string == nullptr || local_server_name == nullptr) return nullptr;
    auto handle = capi::start_engine({.local_name = local_server_name, .metadata = metadata_conn_string, .options = load_options()});
    return handle ? to_c(*handle) : nullptr;
}
MC_BORDER(nullptr)

void destroyTransferEngine(transfer_engine_t engine) { capi::remove_engine(handle_of(engine)); }

int discoverTopology(transfer_engine_t engine) { return use(engine) ? 0 : invalid_call(); }

int getLocalIpAndPort(transfer_engine_t engine, char* buf_out, size_t buf_len) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || buf_out == nullptr || buf_len == 0) return invalid_call();
    capi::copy_text(capi::local_address(*use_of_engine), buf_out, buf_len);
    return 0;
}
MC_BORDER(broken_call())

transport_t installTransport(transfer_engine_t engine, const char* proto, void** /*args*/) try {
    if (!use(engine) || proto == nullptr) return nullptr;
    return const_cast<char*>(capi::transport_for(proto));
}
MC_BORDER(nullptr)

int uninstallTransport(transfer_engine_t engine, const char* proto) { return use(engine) && proto != nullptr ? 0 : invalid_call(); }

void enableGracefulShutdown(transfer_engine_t engine) try {
    if (!use(engine)) return;
    auto enabled = capi::close_on_exit(handle_of(engine));
    if (!enabled) MC_LOG_ERROR("the engine will not be closed on signals: {}", enabled.error().to_string());
}
MC_BORDER()

// ---- segments

segment_id_t openSegment(transfer_engine_t engine, const char* segment_name) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || segment_name == nullptr) return invalid_call();
    return to_c(capi::open_segment(*use_of_engine, segment_name));
}
MC_BORDER(broken_call())

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char* segment_name) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || segment_name == nullptr) return invalid_call();
    return to_c(capi::reopen_segment(*use_of_engine, segment_name));
}
MC_BORDER(broken_call())

int closeSegment(transfer_engine_t engine, segment_id_t /*segment_id*/) { return use(engine) ? 0 : invalid_call(); }

int removeLocalSegment(transfer_engine_t engine, const char* segment_name) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || segment_name == nullptr) return invalid_call();
    return public_code(capi::forget_segment(*use_of_engine, segment_name));
}
MC_BORDER(broken_call())

int syncSegmentCache(transfer_engine_t engine) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine) return invalid_call();
    capi::refresh_segments(*use_of_engine, "");
    return 0;
}
MC_BORDER(broken_call())

int warmupEfaSegment(transfer_engine_t engine, const char* segment_name) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || segment_name == nullptr) return invalid_call();
    return public_code(use_of_engine->warm_up(segment_name, Deadline::after(use_of_engine->options().connect_timeout)));
}
MC_BORDER(broken_call())

// ---- memory

int registerLocalMemory(transfer_engine_t engine, void* addr, size_t length, const char* location, int remote_accessible) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine) return invalid_call();
    return public_code(use_of_engine->register_memory(addr, length, text_or(location, "*"), remote_accessible != 0));
}
MC_BORDER(broken_call())

int unregisterLocalMemory(transfer_engine_t engine, void* addr) try {
    const EngineUse use_of_engine = use(engine);
    return use_of_engine ? public_code(use_of_engine->unregister_memory(addr)) : invalid_call();
}
MC_BORDER(broken_call())

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t* buffer_list, size_t buffer_len, const char* location) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || (buffer_list == nullptr && buffer_len != 0) || buffer_len > kItemsMax) return invalid_call();
    std::vector<Permission> ranges;
    ranges.reserve(buffer_len);
    for (const buffer_entry_t& entry : std::span(buffer_list, buffer_len))
        ranges.push_back({.range = {reinterpret_cast<uintptr_t>(entry.addr), entry.length}});
    return public_code(use_of_engine->register_memory_batch(ranges, text_or(location, "*")));
}
MC_BORDER(broken_call())

int unregisterLocalMemoryBatch(transfer_engine_t engine, void** addr_list, size_t addr_len) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || (addr_list == nullptr && addr_len != 0) || addr_len > kItemsMax) return invalid_call();
    return public_code(use_of_engine->unregister_memory_batch(std::span<void* const>(addr_list, addr_len)));
}
MC_BORDER(broken_call())

// ---- batches

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine) return INVALID_BATCH;
    return use_of_engine->allocate_batch(batch_size).value_or(INVALID_BATCH);
}
MC_BORDER(INVALID_BATCH)

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count) try {
    return submit(engine, batch_id, entries, count, nullptr);
}
MC_BORDER(broken_batch_call())

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count,
                             notify_msg_t notify_msg) try {
    const Notification notification = to_notification(notify_msg);
    return submit(engine, batch_id, entries, count, &notification);
}
MC_BORDER(broken_batch_call())

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status* status) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || status == nullptr) return invalid_batch_call();
    const auto task = use_of_engine->task_status(batch_id, task_id);
    if (!task) return status_code(task);
    status->status = static_cast<int>(task->state);
    status->transferred_bytes = task->bytes;
    return 0;
}
MC_BORDER(broken_batch_call())

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id) try {
    const EngineUse use_of_engine = use(engine);
    return use_of_engine ? status_code(use_of_engine->free_batch(batch_id)) : invalid_batch_call();
}
MC_BORDER(broken_batch_call())

// ---- messages

notify_msg_t* getNotifsFromEngine(transfer_engine_t engine, int* size) try {
    if (size == nullptr) return nullptr;
    *size = 0;
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine) return nullptr;
    const std::vector<Notification> notifications = use_of_engine->take_notifications();
    if (notifications.empty()) return nullptr;
    auto* messages = static_cast<notify_msg_t*>(std::calloc(notifications.size(), sizeof(notify_msg_t)));
    if (messages == nullptr) return nullptr;
    for (size_t i = 0; i < notifications.size(); ++i) messages[i] = {duplicate(notifications[i].name), duplicate(notifications[i].message)};
    *size = static_cast<int>(notifications.size());
    return messages;
}
MC_BORDER(nullptr)

int freeNotifsMsgBuf(notify_msg_t* msg, int size) {
    if (msg == nullptr) return size == 0 ? 0 : invalid_call();
    for (int i = 0; i < size; ++i) {
        std::free(msg[i].name);
        std::free(msg[i].msg);
    }
    std::free(msg);
    return 0;
}

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || target_id > uint64_t{std::numeric_limits<SegmentId>::max()}) return invalid_call();
    return public_code(capi::notify(*use_of_engine, static_cast<SegmentId>(target_id), to_notification(notify_msg)));
}
MC_BORDER(broken_call())

// ---- insight

int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t* /*stats*/, size_t* count) {
    if (count == nullptr) return invalid_call();
    *count = 0;
    return use(engine) ? 0 : invalid_call();
}

int showLinks(transfer_engine_t engine, char* buf, size_t len, int json) try {
    const EngineUse use_of_engine = use(engine);
    if (!use_of_engine || buf == nullptr || len == 0) return -1;
    capi::copy_text(capi::describe_links(*use_of_engine, json != 0), buf, len);
    return 0;
}
MC_BORDER(broken_call())
