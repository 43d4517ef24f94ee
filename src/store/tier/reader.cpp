// SPDX-License-Identifier: Apache-2.0
#include "store/tier/reader.h"

#include <algorithm>
#include <utility>

#include "store/tier/read_task.h"
#include "store/tier/transfer.h"

namespace mooncake::store::log {

namespace {

constexpr uint64_t kSlack = 2 * kBlockBytes;  // before and behind a part that does not begin and end at a block
constexpr uint64_t kSmallBytes = kChunkBytes + kSlack;
constexpr uint64_t kLargeBytes = Reader::kPieceBytes + kSlack;

}  // namespace

class Reader::Task final : public ReadState {
public:
    using ReadState::ReadState;
};

struct Reader::Piece final : TransferHook {
    Piece(Reader& reader, TaskPtr task, Kind kind) : owner(reader), read(std::move(task)), needs(kind) {}

    void start() {
        const uint64_t from = read->location().payload_offset() + part.at;
        const uint64_t begin = from / kBlockBytes * kBlockBytes;
        skip = from - begin;
        transfer.start(*read->location().file->disk, DiskOp::Kind::kRead, begin, memory, round_to_blocks(skip + part.bytes), *this);
    }
    void on_transferred(Transfer&, int error) noexcept override {
        const std::unique_ptr<Piece> self(this);
        if (error == 0) {
            read->accept(part, {memory + skip, part.bytes});
        } else {
            read->refuse(part, Error(disk_code(error), format_text("cannot read '{}'", file_name(read->location().file->number)), error));
        }
        owner.release(*this);
    }

    Reader& owner;
    const TaskPtr read;
    const Kind needs;
    ReadState::Part part;
    std::byte* memory = nullptr;
    uint64_t skip = 0;
    Transfer transfer;
};

Reader::Reader(const Index& index, TimerQueue& clock, Options options, OnCorrupt on_corrupt)
    : index_(index), clock_(clock), options_(options), on_corrupt_(std::move(on_corrupt)) {}

Reader::~Reader() { close(); }

Result<> Reader::start() {
    const Lock lock(mutex_);
    MC_ASSIGN_OR_RETURN(small_, BufferPool::create(options_.small_buffers, kSmallBytes));
    MC_ASSIGN_OR_RETURN(large_, BufferPool::create(options_.large_buffers, kLargeBytes));
    return {};
}

void Reader::refuse(TierRead& object, Completion& completion, Error error) {
    object.result = error.code();
    completion.fail(std::move(error));
}

void Reader::read(std::span<TierRead> objects, Deadline deadline, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    bool any = false;
    // The last answer may be the end of the caller's objects: nothing of them is looked at afterwards.
    for (size_t i = 0, count = objects.size(); i < count; ++i) any |= begin(objects[i], deadline, completion);
    if (any) pump();
}

bool Reader::begin(TierRead& object, Deadline deadline, Completion& completion) {
    auto found = index_.find(object.tenant, object.key, Index::For::kUse);
    if (!found || (object.generation != 0 && object.generation != found->generation)) {
        refuse(object, completion, error(Code::kNotFound, "no '{}'", object.key));
        return false;
    }
    if (object.offset > found->length || object.into.size() > found->length - object.offset) {
        refuse(object, completion, error(Code::kInvalidArgument, "'{}' has only {} bytes", object.key, found->length));
        return false;
    }
    if (deadline.passed()) {
        ++timed_out;
        refuse(object, completion, error(Code::kTimedOut, "no time to read '{}'", object.key));
        return false;
    }
    if (object.into.empty()) {
        object.result = Code::kOk;
        completion.succeed(0);
        return false;
    }
    Code refused = Code::kOk;
    {
        const Lock lock(mutex_);
        refused = closed_ ? Code::kCancelled : tasks_ >= options_.reads_max ? Code::kBusy : Code::kOk;
        if (refused == Code::kOk) ++tasks_;
    }
    if (refused != Code::kOk) {
        refuse(object, completion, error(refused, "cannot read '{}' now", object.key));
        return false;
    }
    auto task = std::make_shared<Task>(object, std::move(*found), completion);
    if (!deadline.is_never()) {
        task->timer = clock_.at(deadline.at(), [this, late = std::weak_ptr<Task>(task)] {
            const TaskPtr read = late.lock();
            if (read == nullptr) return;
            read->stop(error(Code::kTimedOut, "the disk is too slow"));
            if (!read->claim_answer()) return;
            ++timed_out;
            read->answer();
            task_ended();
        });
    }
    enqueue(std::move(task), true);
    return true;
}

void Reader::enqueue(TaskPtr task, bool first_time) {
    const auto part = task->peek_part(kPieceBytes);
    if (!part) return;  // all of it is with the disk, or it has ended
    Kind kind = part->bytes <= kChunkBytes ? kSmall : kLarge;
    if (task->straight_to(*part) != nullptr) kind = kDirect;
    const Lock lock(mutex_);
    // A part of it is on its way, and whoever brings that back answers it.
    if (closed_ && !first_time) return task->stop(error(Code::kCancelled, "closed"));
    waiting_[kind].push_back(std::move(task));
}

std::unique_ptr<Reader::Piece> Reader::next_piece() {
    for (size_t kind = 0; kind < kKinds; ++kind) {
        auto& queue = waiting_[kind];
        while (!queue.empty()) {
            std::byte* memory = kind == kSmall ? small_.take() : kind == kLarge ? large_.take() : nullptr;
            if (kind == kDirect ? direct_free_ == 0 : memory == nullptr) break;
            auto piece = std::make_unique<Piece>(*this, std::move(queue.front()), static_cast<Kind>(kind));
            queue.pop_front();
            const auto part = piece->read->take_part(kind == kSmall ? kChunkBytes : kPieceBytes);
            if (!part) {  // it has ended meanwhile
                if (memory != nullptr) (kind == kSmall ? small_ : large_).give_back(memory);
                continue;
            }
            piece->part = *part;
            piece->memory = kind == kDirect ? piece->read->straight_to(*part) : memory;
            if (kind == kDirect) --direct_free_;
            ++pieces_;
            return piece;
        }
    }
    return nullptr;
}

void Reader::pump() {
    {
        const Lock lock(mutex_);
        if (std::exchange(pumping_, true)) {
            again_ = true;
            return;
        }
    }
    while (true) {
        std::unique_ptr<Piece> piece;
        {
            const Lock lock(mutex_);
            again_ = false;
            piece = next_piece();
            pressed_.store(!waiting_[kSmall].empty() || !waiting_[kLarge].empty(), std::memory_order_relaxed);
            if (piece == nullptr && !again_) {
                pumping_ = false;
                changed_.notify_all();
                return;
            }
        }
        if (piece == nullptr) continue;
        enqueue(piece->read, false);  // behind all others
        piece.release()->start();     // its own from here on
    }
}

void Reader::release(Piece& piece) {
    {
        const Lock lock(mutex_);
        if (piece.needs == kDirect) {
            ++direct_free_;
        } else {
            (piece.needs == kSmall ? small_ : large_).give_back(piece.memory);
        }
    }
    if (piece.read->claim_answer()) {
        const TaskPtr read = piece.read;
        if (read->timer != 0) clock_.cancel(read->timer);
        switch (read->code()) {
            case Code::kOk: read_bytes += read->request().into.size(); break;
            case Code::kTimedOut: ++timed_out; break;
            case Code::kCorrupt:
                ++corrupt;
                on_corrupt_(read->request().tenant, read->request().key, read->location().generation);
                break;
            default: ++errors; break;
        }
        read->answer();
        task_ended();
    }
    pump();
    const Lock lock(mutex_);
    --pieces_;  // the last thing: close() waits for it
    changed_.notify_all();
}

void Reader::task_ended() {
    const Lock lock(mutex_);
    --tasks_;
    changed_.notify_all();
}

void Reader::close() {
    std::vector<TaskPtr> waiting;
    {
        const Lock lock(mutex_);
        closed_ = true;
        for (auto& queue : waiting_)
            for (TaskPtr& task : queue) waiting.push_back(std::move(task));
        for (auto& queue : waiting_) queue.clear();
    }
    for (const TaskPtr& task : waiting) {
        task->stop(error(Code::kCancelled, "closed"));
        if (!task->claim_answer()) continue;
        if (task->timer != 0) clock_.cancel(task->timer);
        task->answer();
        task_ended();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
        mutex_.is_held();
        return tasks_ == 0 && pieces_ == 0 && !pumping_;
    });
}

}  // namespace mooncake::store::log
