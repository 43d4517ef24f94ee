// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "failures.h"
#include "transfer_engine.h"

namespace mooncake::python {

namespace {

/// A failed state always brings an error, but an empty one would say nothing.
Error error_of(const TransferStatus& status) {
    if (!status.error.message().empty()) return status.error;
    return error(status.state == TransferState::kTimedOut ? Code::kTimedOut : Code::kInternal, "the batch ended in state {}",
                 static_cast<int>(status.state));
}

bool is_terminal(TransferState state) noexcept { return state != TransferState::kWaiting && state != TransferState::kPending; }

/// Waits for one batch and frees it.
Result<> finish(Engine& engine, BatchId batch) {
    Result<TransferStatus> status = engine.wait_batch(batch);
    if (!status) return Unexpected(std::move(status).error());
    (void)engine.free_batch(batch);
    if (status->state != TransferState::kCompleted) return Unexpected(error_of(*status));
    return {};
}

}  // namespace

int TransferEngine::run(const char* call, const Text& target, Direction direction, const BlockList& list, const Notification* notify,
                        nb::handle after) {
    Engine* const engine = use(call);
    if (engine == nullptr) return -1;
    if (list.blocks().empty() && notify == nullptr) return 0;
    if (direction == Direction::kRead) list.require_writable();
    const WorkPoint point = work_from(after);
    const Result<uint64_t> moved = without_gil(
        [&] { return engine->transfer(target, direction, list.blocks(), engine->transfer_deadline(list.bytes()), notify, {}, point); });
    return moved ? 0 : failed(call, moved.error());
}

int TransferEngine::transfer_one(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                                 Direction direction, const Notification* notify, nb::handle after) {
    BlockList list;
    list.assign(LocalMemory::from(buffer, length, "buffer", "length"), number_from(peer_address, "peer_buffer_address"));
    return run(call, target, direction, list, notify, after);
}

int TransferEngine::transfer_batch(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses, nb::handle lengths,
                                   Direction direction, const Notification* notify, nb::handle after) {
    BlockList list;
    if (!list.parse(buffers, peer_addresses, lengths)) return failed(call, error(Code::kInvalidArgument, "the lists are not equally long"));
    return run(call, target, direction, list, notify, after);
}

BatchId TransferEngine::submit(const char* call, const Text& target, Direction direction, BlockList& list, Connect connect,
                               nb::handle after) {
    Engine* const engine = use(call);
    if (engine == nullptr) return 0;
    if (direction == Direction::kRead) list.require_writable();
    const WorkPoint point = work_from(after);
    const Result<BatchId> batch = without_gil([&] {
        return list.blocks().empty() ? engine->allocate_batch(1)
                                     : engine->submit(target, direction, list.blocks(), nullptr, {}, connect, point);
    });
    if (!batch) {
        record_failure(call, batch.error());
        return 0;
    }
    if (list.has_views()) batch_objects_.emplace(*batch, list.take_views());
    return *batch;
}

BatchId TransferEngine::submit_one(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                                   Direction direction, nb::handle after) {
    BlockList list;
    list.assign(LocalMemory::from(buffer, length, "buffer", "length"), number_from(peer_address, "peer_buffer_address"));
    return submit(call, target, direction, list, Connect::kFirst, after);
}

BatchId TransferEngine::submit_batch(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses,
                                     nb::handle lengths, Direction direction, Connect connect, nb::handle after) {
    BlockList list;
    if (list.parse(buffers, peer_addresses, lengths)) return submit(call, target, direction, list, connect, after);
    record_failure(call, error(Code::kInvalidArgument, "the lists are not equally long"));
    return 0;
}

void TransferEngine::put_on_stream(const char* call, const Text& target, Direction direction, BlockList& list, nb::handle stream) {
    Engine& engine = require(call);
    if (direction == Direction::kRead) list.require_writable();
    const WorkPoint point = stream_from(stream);
    const Result<BatchId> batch = without_gil([&] { return engine.transfer_on_stream(target, direction, list.blocks(), point); });
    if (!batch) raise_failure(call, batch.error());
    // Those that are over have freed themselves, and are not known any more.
    std::erase_if(on_stream_, [&](BatchId one) {
        const Result<bool> over = engine.await_batch(one, Deadline(Time{}));
        if (over && !*over) return false;
        batch_objects_.erase(one);
        return true;
    });
    if (!list.has_views()) return;
    batch_objects_.emplace(*batch, list.take_views());
    on_stream_.push_back(*batch);
}

void TransferEngine::one_on_stream(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                                   Direction direction, nb::handle stream) {
    BlockList list;
    list.assign(LocalMemory::from(buffer, length, "buffer", "length"), number_from(peer_address, "peer_buffer_address"));
    put_on_stream(call, target, direction, list, stream);
}

void TransferEngine::batch_on_stream(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses,
                                     nb::handle lengths, Direction direction, nb::handle stream) {
    BlockList list;
    if (!list.parse(buffers, peer_addresses, lengths)) raise_failure(call, error(Code::kInvalidArgument, "the lists are not equally long"));
    put_on_stream(call, target, direction, list, stream);
}

int TransferEngine::get_batch_transfer_status(nb::handle batch_ids) {
    constexpr const char* kCall = "get_batch_transfer_status";
    const std::vector<BatchId> batches = NumberList(batch_ids, "batch_ids").values();
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<> all = without_gil([&] {
        Result<> first;
        for (const BatchId batch : batches) {
            Result<> done = finish(*engine, batch);
            if (first && !done) first = std::move(done);
        }
        return first;
    });
    for (const BatchId batch : batches) batch_objects_.erase(batch);
    return all ? 0 : failed(kCall, all.error());
}

int TransferEngine::transfer_check_status(nb::handle batch_id) {
    constexpr const char* kCall = "transfer_check_status";
    const BatchId batch = number_from(batch_id, "batch_id");
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<TransferStatus> status = without_gil([&] {
        Result<TransferStatus> now = engine->batch_status(batch);
        if (now && is_terminal(now->state) && now->state != TransferState::kTimedOut) (void)engine->free_batch(batch);
        return now;
    });
    if (!status) return failed(kCall, status.error());
    if (!is_terminal(status->state)) return 0;
    if (status->state == TransferState::kTimedOut) {
        record_failure(kCall, error_of(*status));
        return -2;
    }
    batch_objects_.erase(batch);
    return status->state == TransferState::kCompleted ? 1 : failed(kCall, error_of(*status));
}

int TransferEngine::cancel(nb::handle batch_id) {
    constexpr const char* kCall = "cancel";
    const BatchId batch = number_from(batch_id, "batch_id");
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<> done = without_gil([&] { return engine->cancel_batch(batch); });
    return done ? 0 : failed(kCall, done.error());
}

std::unique_ptr<PreparedCalls> TransferEngine::prepare(const Text& target, nb::handle buffers, nb::handle peer_addresses,
                                                       nb::handle lengths) {
    constexpr const char* kCall = "prepare";
    BlockList list;
    if (!list.parse(buffers, peer_addresses, lengths)) throw nb::value_error("prepare: the lists are not equally long");
    Engine& engine = require(kCall);
    auto prepared = without_gil([&] { return engine.prepare(target, list.blocks()); });
    if (!prepared) raise_failure(kCall, prepared.error());
    return std::make_unique<PreparedCalls>(engine_, std::move(*prepared), list.take_views());
}

// ---- prepared transfers

PreparedCalls::PreparedCalls(EngineRef engine, std::unique_ptr<PreparedTransfer> prepared, std::vector<BufferView> objects)
    : objects_(std::move(objects)), engine_(std::move(engine)), prepared_(std::move(prepared)) {}

PreparedCalls::~PreparedCalls() {
    if (!engine_.ours()) {
        (void)prepared_.release();  // as the engine itself
    } else if (exiting()) {
        prepared_.reset();
    } else {
        without_gil([this] {
            for (const BatchId batch : submitted_) (void)engine_->await_batch(batch);  // before the objects go
            return prepared_.reset(), 0;
        });
    }
}

void PreparedCalls::prune() {
    std::erase_if(submitted_, [this](BatchId batch) {
        const Result<bool> over = engine_->await_batch(batch, Deadline(Time{}));
        return !over || *over;
    });
}

bool PreparedCalls::usable(const char* call) const {
    if (engine_.ours() && !exiting()) return true;
    slow_down_at_exit();
    record_failure(call, engine_unusable());
    return false;
}

void PreparedCalls::require_writable(Direction direction) const {
    if (direction == Direction::kWrite) return;
    for (const BufferView& object : objects_)
        if (!object.writable()) throw nb::buffer_error("the object to read into is read-only");
}

int PreparedCalls::run(Direction direction, nb::handle after) {
    const char* const call = direction == Direction::kWrite ? "PreparedTransfer.write" : "PreparedTransfer.read";
    require_writable(direction);
    if (!usable(call)) return -1;
    const WorkPoint point = work_from(after);
    const Result<uint64_t> moved = without_gil([&] { return prepared_->run(direction, point); });
    return moved ? 0 : failed(call, moved.error());
}

BatchId PreparedCalls::submit(Direction direction, nb::handle after) {
    const char* const call = direction == Direction::kWrite ? "PreparedTransfer.submit_write" : "PreparedTransfer.submit_read";
    require_writable(direction);
    if (!usable(call)) return 0;
    const WorkPoint point = work_from(after);
    const Result<BatchId> batch = without_gil([&] { return prepared_->submit(direction, point); });
    if (!batch) {
        record_failure(call, batch.error());
        return 0;
    }
    constexpr size_t kPruneAt = 64;
    if (submitted_.size() >= kPruneAt) prune();
    if (!objects_.empty()) submitted_.push_back(*batch);
    return *batch;
}

}  // namespace mooncake::python
