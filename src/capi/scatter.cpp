// SPDX-License-Identifier: Apache-2.0
#include "capi/scatter.h"

#include "capi/api_convert.h"
#include "capi/calls.h"
#include "engine/engine.h"

namespace mooncake::api {

namespace {

bool inside(uint64_t offset, uint64_t length, uint64_t capacity) noexcept { return offset <= capacity && length <= capacity - offset; }

Result<> check(const ScatterTransferRange& range) {
    if (range.opcode != TransferRequest::READ && range.opcode != TransferRequest::WRITE)
        return fail(Code::kInvalidArgument, "{} is no opcode", static_cast<int>(range.opcode));
    const size_t count = range.lengths.size();
    if (range.local_offsets.size() != count || range.remote_offsets.size() != count)
        return fail(Code::kInvalidArgument, "{} lengths, {} local offsets and {} remote offsets", count, range.local_offsets.size(),
                    range.remote_offsets.size());
    if (range.local_buffer == nullptr && count != 0) return fail(Code::kInvalidArgument, "a range without a local buffer");
    if (range.remote_base_offset + range.remote_size < range.remote_base_offset)
        return fail(Code::kInvalidArgument, "the remote range wraps around");
    for (size_t i = 0; i < count; ++i) {
        if (!inside(range.local_offsets[i], range.lengths[i], range.local_capacity))
            return fail(Code::kInvalidArgument, "fragment {} leaves the local buffer of {} bytes", i, range.local_capacity);
        if (!inside(range.remote_offsets[i], range.lengths[i], range.remote_size))
            return fail(Code::kInvalidArgument, "fragment {} leaves the remote range of {} bytes", i, range.remote_size);
    }
    return {};
}

std::byte* local_of(const ScatterTransferRange& range, size_t fragment) {
    return static_cast<std::byte*>(range.local_buffer) + range.local_offsets[fragment];
}

/// All fragments as one task: the cheapest form, but with one outcome for all.
Result<BatchId> submit_together(Engine& engine, const ScatterTransferRange& range) {
    std::vector<Block> blocks;
    blocks.reserve(range.lengths.size());
    for (size_t i = 0; i < range.lengths.size(); ++i)
        blocks.push_back({local_of(range, i), range.remote_base_offset + range.remote_offsets[i], range.lengths[i]});
    MC_ASSIGN_OR_RETURN(const SegmentId segment, capi::connect_segment(engine, range.remote_segment));
    MC_ASSIGN_OR_RETURN(const std::string name, engine.segment_name_of(segment));
    return engine.submit(name, to_direction(range.opcode), blocks);
}

Result<BatchId> submit_each(Engine& engine, const ScatterTransferRange& range) {
    MC_ASSIGN_OR_RETURN(const SegmentId segment, capi::connect_segment(engine, range.remote_segment));
    std::vector<Request> requests;
    requests.reserve(range.lengths.size());
    for (size_t i = 0; i < range.lengths.size(); ++i)
        requests.push_back({.direction = to_direction(range.opcode),
                            .local = local_of(range, i),
                            .segment = segment,
                            .remote = range.remote_base_offset + range.remote_offsets[i],
                            .length = range.lengths[i]});
    MC_ASSIGN_OR_RETURN(const BatchId batch, engine.allocate_batch(requests.size()));
    auto submitted = engine.submit(batch, requests);
    if (submitted) return batch;
    (void)engine.free_batch(batch);
    return Unexpected(std::move(submitted).error());
}

}  // namespace

std::unique_ptr<ScatterTransferOperation::Impl> ScatterTransferOperation::Impl::submit(capi::EngineHandle handle,
                                                                                       std::span<const ScatterTransferRange> ranges) {
    auto operation = std::make_unique<Impl>(handle);
    const capi::EngineUse engine = capi::use_engine(handle);
    operation->outcome_ = engine ? Status::OK() : no_engine();
    // Everything that can be known to fail is found before the first byte moves.
    for (const ScatterTransferRange& range : ranges) {
        if (!operation->outcome_.ok()) return operation;
        operation->outcome_ = to_status(check(range));
        if (operation->outcome_.ok()) operation->outcome_ = to_status(capi::connect_segment(*engine, range.remote_segment));
    }
    for (const ScatterTransferRange& range : ranges) {
        if (!operation->outcome_.ok()) break;
        operation->outcome_ = to_status(operation->start(*engine, range));
    }
    return operation;
}

ScatterTransferOperation::Impl::~Impl() { (void)wait(Deadline::never()); }

Result<> ScatterTransferOperation::Impl::start(Engine& engine, const ScatterTransferRange& range) {
    if (range.lengths.empty()) return {};
    MC_ASSIGN_OR_RETURN(const BatchId batch, range.on_fragment ? submit_each(engine, range) : submit_together(engine, range));
    Part& part = parts_.emplace_back();
    part.batch = batch;
    part.fragments = range.lengths.size();
    part.on_fragment = range.on_fragment;
    part.done.add(1);
    auto watched = engine.on_batch_done(batch, [&done = part.done] { done.succeed(0); });
    if (!watched) part.done.fail(std::move(watched).error());
    return {};
}

Status ScatterTransferOperation::Impl::wait(Deadline deadline) {
    while (!parts_.empty()) {
        if (!wait_for(parts_.front(), deadline)) return Status::Clock("the scatter operation is still running");
        collect(parts_.front());
        parts_.pop_front();
    }
    return outcome_;
}

bool ScatterTransferOperation::Impl::wait_for(Part& part, Deadline deadline) {
    // An engine that goes away ends its batches; the look at it now and then only makes sure that nobody waits for ever. As
    // long as it exists it may still call back, so leaving earlier is not possible.
    while (!part.done.wait(deadline.earlier(Deadline::after(500ms)))) {
        if (!capi::engine_exists(handle_)) return true;
        if (deadline.passed()) return false;
    }
    return true;
}

void ScatterTransferOperation::Impl::collect(Part& part) {
    const capi::EngineUse engine = capi::use_engine(handle_);
    if (!engine) {
        if (outcome_.ok()) outcome_ = no_engine();
        for (size_t i = 0; part.on_fragment && i < part.fragments; ++i) part.on_fragment(i, outcome_);
        return;
    }
    const auto batch = engine->batch_status(part.batch);
    Status status = !batch ? to_status(batch.error()) : batch->state == TransferState::kCompleted ? Status::OK() : to_status(batch->error);
    if (outcome_.ok()) outcome_ = std::move(status);
    if (part.on_fragment) report(*engine, part);
    (void)engine->free_batch(part.batch);
}

void ScatterTransferOperation::Impl::report(Engine& engine, Part& part) {
    for (size_t i = 0; i < part.fragments; ++i) {
        const auto task = engine.task_status(part.batch, i);
        const bool completed = task && task->state == TransferState::kCompleted;
        part.on_fragment(i, completed ? Status::OK() : to_status(task ? task->error : task.error()));
    }
}

// ---- the face

ScatterTransferOperation::ScatterTransferOperation() noexcept = default;
ScatterTransferOperation::ScatterTransferOperation(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
ScatterTransferOperation::ScatterTransferOperation(ScatterTransferOperation&& other) noexcept = default;
ScatterTransferOperation& ScatterTransferOperation::operator=(ScatterTransferOperation&& other) noexcept = default;
ScatterTransferOperation::~ScatterTransferOperation() = default;

Status ScatterTransferOperation::wait() { return impl_ ? impl_->wait(Deadline::never()) : Status::OK(); }

Status ScatterTransferOperation::waitFor(std::chrono::nanoseconds time) {
    return impl_ ? impl_->wait(Deadline::after(time)) : Status::OK();
}

}  // namespace mooncake::api
