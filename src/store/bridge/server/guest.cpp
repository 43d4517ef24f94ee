// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/server/guest.h"

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/log.h"
#include "store/protocol/messages_tasks.h"

namespace mooncake::store::bridge {

Result<std::shared_ptr<Entry>> Entry::create(StoreClient& node, MemoryFile file, uint64_t length) {
    if (!file) return fail(Code::kRefused, "memory without a file");
    MC_ASSIGN_OR_RETURN(Mapping mapping, file.map(true, length));  // refuses what may shrink
    if (mapping.length() != length) return fail(Code::kRefused, "a file of {} bytes where {} were told", mapping.length(), length);
    std::byte* const address = mapping.address();
    auto entry = std::make_shared<Entry>(node, std::move(mapping));
    if (const StoreCode code = node.register_buffer(address, length); code != StoreCode::kOk) {
        Lock lock(entry->mutex_);
        entry->closed_ = true;
        return fail(Code::kNoSpace, "memory of a client cannot be registered: {}", store_code_name(code));
    }
    return entry;
}

std::byte* Entry::at(uint64_t offset, uint64_t length) const noexcept {
    return offset <= mapping_.length() && length <= mapping_.length() - offset ? mapping_.address() + offset : nullptr;
}

void Entry::close() {
    Lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    gate_.close();
    // A closed engine has let go of it already.
    (void)node_.unregister_buffer(mapping_.address());
    mapping_ = Mapping();
}

Guest::Guest(StoreClient& node, BootId boot, net::Socket socket, Limits limits)
    : node_(node), boot_(boot), limits_(limits), socket_(std::move(socket)), sessions_(node.other_sessions()) {}

std::shared_ptr<Entry> Guest::entry(uint32_t number) {
    const std::shared_lock lock(entries_mutex_);
    const auto found = entries_.find(number);
    return found != entries_.end() ? found->second : nullptr;
}

StoreCode Guest::map(const SharedPiece& piece, MemoryFile file) {
    {
        const std::unique_lock lock(entries_mutex_);
        if (piece.entry == 0 || entries_.contains(piece.entry)) return StoreCode::kInvalidParams;
        if (entries_.size() >= kEntriesMax || piece.length > limits_.memory_max - shared_bytes_) {
            MC_LOG_WARNING_EVERY(1s, "a client shares {} pieces of memory of {} bytes, and may not share {} more", entries_.size(),
                                 shared_bytes_, piece.length);
            return StoreCode::kBufferOverflow;
        }
        shared_bytes_ += piece.length;
    }
    auto made = Entry::create(node_, std::move(file), piece.length);
    const std::unique_lock lock(entries_mutex_);
    if (made && entries_.emplace(piece.entry, *made).second) {
        table_version_.fetch_add(1, std::memory_order_acq_rel);
        return StoreCode::kOk;
    }
    shared_bytes_ -= piece.length;
    if (!made) MC_LOG_WARNING_EVERY(1s, "memory of a client is refused: {}", made.error().to_string());
    return StoreCode::kInvalidParams;
}

StoreCode Guest::unmap(uint32_t number) {
    std::shared_ptr<Entry> going;
    {
        const std::unique_lock lock(entries_mutex_);
        const auto found = entries_.find(number);
        if (found == entries_.end()) return StoreCode::kInvalidParams;
        going = std::move(found->second);
        entries_.erase(found);
        shared_bytes_ -= going->length();
        table_version_.fetch_add(1, std::memory_order_acq_rel);
    }
    going->close();
    return StoreCode::kOk;
}

bool Guest::serve(Frame frame) {
    const Head& head = frame.head;
    if (head.kind == Kind::kAnswer || head.kind == Kind::kStale) return false;
    const bool known = head.boot() == boot_ && head.table <= table_version_.load(std::memory_order_acquire);
    if (head.kind != Kind::kHello && !known) return answer(head, Kind::kStale, {});
    if (head.kind == Kind::kCreateTask) {
        auto task = decode_task_request(frame.body);
        if (task) task->request.tenant = {};  // ours, whatever it says
        return task && answer(head, Kind::kAnswer, encode_task_reply(node_.create_task(task->request)));
    }
    if (head.kind == Kind::kQueryTask) {
        const auto task = decode_task_query(frame.body);
        if (!task) return false;
        const auto info = node_.query_task(*task);
        return answer(head, Kind::kAnswer, info ? encode_task_info(*info) : std::vector<std::byte>());
    }
    auto request = decode_request(frame.body);
    if (!request) return false;
    const Head saved = head;
    return answer(saved, Kind::kAnswer, encode_reply(run(saved.kind, *request, std::move(frame.file))));
}

bool Guest::answer(const Head& request, Kind kind, std::vector<std::byte> body) {
    const Head head{.kind = kind,
                    .request = request.request,
                    .boot_high = boot_.high,
                    .boot_low = boot_.low,
                    .table = table_version_.load(std::memory_order_acquire)};
    Lock lock(out_mutex_);
    if (out_.empty()) {
        const auto sent = send_frame(socket_.fd(), head, body);
        if (sent) return true;
        if (sent.error().code() != Code::kBusy) return false;
    }
    out_bytes_ += sizeof head + body.size();
    if (out_bytes_ > kUnsentBytesMax) return false;
    out_.push_back({head, std::move(body)});
    unsent_.store(true, std::memory_order_release);
    return true;
}

bool Guest::flush() {
    Lock lock(out_mutex_);
    while (!out_.empty()) {
        const Unsent& next = out_.front();
        const auto sent = send_frame(socket_.fd(), next.head, next.body);
        if (!sent) return sent.error().code() == Code::kBusy;
        out_bytes_ -= sizeof next.head + next.body.size();
        out_.pop_front();
    }
    unsent_.store(false, std::memory_order_release);
    return true;
}

}  // namespace mooncake::store::bridge
