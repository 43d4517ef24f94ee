// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"

namespace mooncake {

/// Engine over its parts: checks that it is open, then asks the part that knows. Thread-safe.
class EngineImpl final : public Engine {
public:
    explicit EngineImpl(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}
    ~EngineImpl() override;
    Result<> close() override;

    const std::string& segment_name() const noexcept override { return parts_->name; }
    uint16_t rpc_port() const noexcept override { return parts_->server->port(); }
    Incarnation incarnation() const noexcept override { return parts_->incarnation; }
    const EngineOptions& options() const noexcept override { return parts_->config.options; }
    metrics::Registry& metrics() noexcept override { return parts_->metrics; }
    std::string topology_json() const override;
    bool maps_peers() const noexcept override { return parts_->router->maps_peers(); }

    Result<> register_memory(void* address, uint64_t length, std::string_view location, bool remote_accessible, Access most) override;
    Result<> register_memory_batch(std::span<const Permission> ranges, std::string_view location) override;
    Result<> unregister_memory(void* address) override;
    Result<> unregister_memory_batch(std::span<void* const> addresses) override;
    Result<void*> allocate_memory(uint64_t length, std::string_view location) override;
    Result<void*> adopt_memory(SharedMemory memory, std::string_view location) override;
    Result<> free_memory(void* address) override;
    std::vector<BufferRecord> buffers() const override;
    MemoryKind memory_kind(const void* address, uint64_t length) const noexcept override {
        return parts_->registry->kind_of(static_cast<const std::byte*>(address), length);
    }
    const Devices& devices() const noexcept override { return *parts_->config.memory; }

    Result<SegmentId> open_segment(const std::string& name, Deadline deadline) override;
    Result<> connect_to(const std::string& name, Incarnation life, Deadline deadline) override;
    Result<SegmentId> connect_segment(const std::string& name, Deadline deadline) override;
    Result<> warm_up(const std::string& name, Deadline deadline) override;
    Result<> refresh_segment(const std::string& name, Deadline deadline) override;
    Result<> reconnect(const std::string& name, Deadline deadline) override;
    Result<std::string> segment_name_of(SegmentId segment) const override;
    Result<SegmentDescriptor> describe(const std::string& name, uint32_t buffers_max, Deadline deadline) override;
    Result<> probe(const std::string& name, Deadline deadline) override;
    bool connected(const std::string& name) override;

    Deadline transfer_deadline(uint64_t bytes) const noexcept override;
    Result<uint64_t> transfer(const std::string& target, Direction direction, std::span<const Block> blocks, Deadline deadline,
                              const Notification* notification, Incarnation life, const WorkPoint& after) override;
    Result<std::unique_ptr<PreparedTransfer>> prepare(const std::string& target, std::span<const Block> blocks) override;

    Result<BatchId> allocate_batch(size_t capacity) override;
    Result<> submit(BatchId batch, std::span<const Request> requests, const Notification* notification) override;
    Result<BatchId> submit(const std::string& target, Direction direction, std::span<const Block> blocks, const Notification* notification,
                           Incarnation life, Connect connect, const WorkPoint& after) override;
    Result<BatchId> transfer_on_stream(const std::string& target, Direction direction, std::span<const Block> blocks,
                                       const WorkPoint& stream) override;
    Result<TransferStatus> task_status(BatchId batch, size_t task) override;
    Result<TransferStatus> batch_status(BatchId batch) override;
    Result<TransferStatus> wait_batch(BatchId batch, Deadline deadline) override;
    Result<bool> await_batch(BatchId batch, Deadline deadline) override;
    Result<> cancel_batch(BatchId batch) override;
    Result<> begin_cancel(BatchId batch) override;
    Result<> free_batch(BatchId batch) override;
    Result<> on_batch_done(BatchId batch, std::function<void()> callback) override;

    Result<> send_notification(const std::string& target, const Notification& notification, Deadline deadline) override;
    std::vector<Notification> take_notifications() override;

private:
    /// Proof that the engine is open, or the error that every call returns when it is not.
    Result<Gate::Pass> enter() const;
    /// What a call that gives memory back answers on a closed engine: nothing before the memory is ours alone.
    Result<> refuse_return(Error refused);
    Result<> add_region(MemoryRegion region);
    /// To the life that the calling thread deals with, which is filled in. `began`: for the metrics.
    Result<uint64_t> transfer_for_caller(Session& session, CallerLife& caller, Incarnation& life, Direction direction,
                                         std::span<const Slice> slices, Completion& completion, Deadline deadline, Time began);
    Result<uint64_t> transfer_to(Session& session, Incarnation life, Direction direction, std::span<const Slice> slices,
                                 Completion& completion, Deadline deadline, Time began);
    struct Manner {
        const Notification* notification = nullptr;
        Incarnation life = {};
        Connect connect = Connect::kFirst;
    };
    Result<BatchId> submit_behind(const std::string& target, Direction direction, std::span<const Block> blocks, const Manner& manner,
                                  Behind behind);
    /// A transfer on a stream has ended: the stream goes on, or the process ends.
    void end_on_stream(BatchId batch, StreamGate& gate) noexcept;
    bool forked() const noexcept { return fork_generation() != born_; }

    const uint32_t born_ = fork_generation();
    std::unique_ptr<EngineParts> parts_;
    Mutex stream_mutex_;
    std::optional<Error> stream_failure_ MC_GUARDED_BY(stream_mutex_);  // that the next transfer on a stream returns
};

/// A PreparedTransfer of one EngineImpl.
std::unique_ptr<PreparedTransfer> make_prepared(EngineParts& parts, std::shared_ptr<Session> session, std::vector<Block> blocks,
                                                std::function<Result<Gate::Pass>()> enter);

}  // namespace mooncake
