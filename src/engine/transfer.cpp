// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <optional>

#include "base/log.h"
#include "base/memory_probe.h"
#include "engine/core.h"
#include "engine/pairs.h"

namespace mooncake {

bool worth_another_attempt(const Error& error) noexcept {
    switch (error.code()) {
        case Code::kUnavailable:   // the link broke
        case Code::kStale:         // the peer restarted
        case Code::kNotSupported:  // this transport cannot; the next one may
        case Code::kRefused:
        case Code::kCorrupt: return true;
        default: return false;
    }
}

namespace {

constexpr std::string_view kInDoubt =
    "the peer is in doubt: it may still apply bytes it has received, and is fenced before it is used again";

}  // namespace

bool is_unfit(const Error& error) noexcept { return error.code() == Code::kNotSupported || error.code() == Code::kRefused; }

Error judge_failure(Session& session, const std::shared_ptr<Link>& link, Error error, Deadline deadline) {
    if (error.code() == Code::kNotRegistered && !session.confirm(link, deadline))
        return Error(Code::kStale, format_text("the peer is going away or has restarted; it said: {}", error.message()));
    session.report_failure(link);
    return error;
}

Error final_error(const Error& error, Direction direction, const Session& session, const Link& link) {
    std::string message = format_text("{} over {}: {}", session.name(), link.path(), error.message());
    const bool broken = error.code() == Code::kUnavailable || error.code() == Code::kCancelled;  // the latter: the engine is closed
    if (broken && direction == Direction::kWrite) message += format_text("; {}", kInDoubt);
    return Error(error.code(), std::move(message), error.system_errno());
}

bool may_go_over(Link& failed, const Link& next, Direction direction, Completion& completion) {
    if (direction == Direction::kRead || failed.transport == next.transport) return true;
    if (failed.descriptor.incarnation != next.descriptor.incarnation) return true;  // with the process went its memory
    const Error reason(Code::kUnavailable, "it goes on over another transport");
    return failed.peer->cancel(completion, reason, Deadline::after(kFenceTime)) == Stopped::kEverywhere;
}

Error stopped_error(Code code, std::string_view why, Stopped stopped) {
    const std::string_view meaning = stopped == Stopped::kEverywhere ? "nothing of it moves any more" : kInDoubt;
    return Error(code, format_text("{}; {}", why, meaning), code == Code::kTimedOut ? ETIMEDOUT : ECANCELED);
}

Error unreachable_error(const Error& error, Direction direction, bool tried) {
    if (!tried || direction == Direction::kRead) return error;
    return Error(error.code(), format_text("{}; {}", error.message(), kInDoubt), error.system_errno());
}

Result<> check_blocks(std::span<const Block> blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
        const Block& block = blocks[i];
        if (block.length == 0) continue;
        if (block.local == nullptr || block.remote == 0) return fail(Code::kInvalidArgument, "entry {}: null address", i);
        if (block.remote + block.length < block.remote || reinterpret_cast<uint64_t>(block.local) + block.length < block.length)
            return fail(Code::kInvalidArgument, "entry {}: {} bytes wrap around the end of memory", i, block.length);
    }
    return {};
}

Result<> check_reach(std::span<const Slice> slices) {
    constexpr uint64_t kLong = 1 << 30;
    for (const Slice& slice : slices)
        if (slice.length >= kLong && slice.region == nullptr && !is_mapped(slice.local + slice.length - 1))
            return fail(Code::kNotRegistered, "local memory at {}+{} is not mapped up to its end", static_cast<void*>(slice.local),
                        slice.length);
    return {};
}

namespace {

Result<uint64_t> attempt(Link& link, Direction direction, std::span<const Slice> slices, Completion& completion, Deadline deadline,
                         Time began) {
    completion.reset();
    completion.add(static_cast<uint32_t>(slices.size()));
    begin_attempt(slices);
    submit_or_fail(*link.peer, direction, slices, Submit::kWait);
    if (!link.peer->wait(completion, deadline)) {
        const Stopped stopped = link.peer->cancel(completion, Error(Code::kTimedOut, "deadline passed"), Deadline::after(kFenceTime));
        // It may have finished at the last moment; only a failure is reported as a time-out.
        if (completion.failed()) {
            link.metrics->of(direction).failures->add();
            return Unexpected(stopped_error(Code::kTimedOut, "deadline passed during the transfer", stopped));
        }
    }
    auto moved = completion.result();
    PathMetrics::PerDirection& metrics = link.metrics->of(direction);
    if (!moved) [[unlikely]] {
        metrics.failures->add();
        return moved;
    }
    metrics.bytes->add(*moved);
    metrics.transfers->add();
    metrics.latency_ns->observe(static_cast<uint64_t>((Clock::now() - began).count()));
    return moved;
}

/// One transfer on the calling thread, while it runs.
struct Run {
    EngineCore& core;
    Session& session;
    Incarnation& life;
    const Direction direction;
    const Deadline deadline;
    const Time began;
    bool renewed = false;  // the peer was asked again what memory it has
};

/// Bytes of one pair of kinds.
struct Part {
    KindPair pair;
    std::vector<Slice> slices;
    Completion completion;
    std::shared_ptr<Link> failed;  // where they were refused before
};

/// A peer refused these bytes: whether that is because they are not of the kinds that we took them for. Asks it, once.
bool mistaken(Run& run, const Error& error, const Link& link, KindPair pair, std::span<const Slice> slices) {
    if (error.code() != Code::kNotSupported || std::exchange(run.renewed, true) || !run.session.renew(link, run.deadline)) return false;
    return common_pair(slices, *run.core.registry, *link.memory) != pair;
}

/// A first attempt that failed.
struct Tried {
    Link& link;
    Result<uint64_t> outcome;
};

/// Moves bytes of one pair, attempts and all. Nothing: the pair was a mistake. `tried`: how that went until now, or null; `failed`: the link
/// they failed on before, if they did, and afterwards.
[[gnu::noinline]] Result<std::optional<uint64_t>> run_part(Run& run, KindPair pair, std::span<const Slice> slices, Completion& completion,
                                                           Tried* tried, std::shared_ptr<Link>& failed) {
    Session& session = run.session;
    Error last;
    Need need{.pair = pair};
    for (int tries = 1;; ++tries) {
        Result<std::shared_ptr<Link>> held(nullptr);
        if (tried == nullptr) held = session.link_to(run.life, run.deadline, need);
        if (!held && is_unfit(last)) return Unexpected(final_error(last, run.direction, session, *failed));  // nor is there another way
        if (!held) return Unexpected(unreachable_error(held.error(), run.direction, failed != nullptr));
        Link& link = tried != nullptr ? tried->link : **held;
        if (failed && !may_go_over(*failed, link, run.direction, completion))
            return Unexpected(final_error(last, run.direction, session, *failed));
        auto moved = tried != nullptr ? std::move(std::exchange(tried, nullptr)->outcome)
                                      : attempt(link, run.direction, slices, completion, run.deadline, Clock::now());
        if (moved) return *moved;
        failed = link.shared_from_this();
        last = judge_failure(session, failed, std::move(moved).error(), run.deadline);
        const bool again = worth_another_attempt(last) && tries < kAttemptsMax && !run.deadline.passed() &&
                           !run.core.closing.load(std::memory_order_acquire);
        if (!again) return Unexpected(final_error(last, run.direction, session, link));
        MC_LOG_WARNING_EVERY(1s, "{} over {}: {}; trying again", session.name(), link.path(), last.to_string());
        if (mistaken(run, last, *failed, pair, slices)) return std::nullopt;
        if (is_unfit(last)) need.unfit.push_back(failed->transport);
    }
}

/// Appends a part for each pair.
void split(std::span<const Slice> slices, PeerMemory& memory, const std::shared_ptr<Link>& failed, std::deque<Part>& parts) {
    const size_t before = parts.size();
    const PeerMemory::Reading remote(memory);
    for (const Slice& slice : slices) {
        split_by_pair(slice, remote, [&](KindPair pair, Slice piece) {
            const auto found = std::find_if(parts.begin() + static_cast<ptrdiff_t>(before), parts.end(),
                                            [&](const Part& one) { return one.pair == pair; });
            const bool known = found != parts.end();
            Part& part = known ? *found : parts.emplace_back();
            if (!known) {
                part.pair = pair;
                part.failed = failed;
            }
            piece.completion = &part.completion;
            part.slices.push_back(piece);
        });
    }
}

/// Bytes of several pairs, one pair after the other.
Result<uint64_t> run_parts(Run& run, std::span<const Slice> slices, PeerMemory& memory, const std::shared_ptr<Link>& failed) {
    std::deque<Part> parts;
    split(slices, memory, failed, parts);
    uint64_t total = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        Part& part = parts[i];
        MC_ASSIGN_OR_RETURN(const auto moved, run_part(run, part.pair, part.slices, part.completion, nullptr, part.failed));
        if (moved) total += *moved;
        else split(part.slices, *part.failed->memory, part.failed, parts);
    }
    return total;
}

[[gnu::noinline]] Result<uint64_t> run_on(Run& run, KindPair pair, std::span<const Slice> slices, Completion& completion, Tried* tried) {
    std::shared_ptr<Link> failed;
    MC_ASSIGN_OR_RETURN(const auto moved, run_part(run, pair, slices, completion, tried, failed));
    if (moved) return *moved;
    return run_parts(run, slices, *failed->memory, failed);
}

Result<uint64_t> run_over(Run& run, std::span<const Slice> slices, Completion& completion, Link& link) {
    const auto pair = common_pair(slices, *run.core.registry, *link.memory);
    if (!pair) [[unlikely]]
        return run_parts(run, slices, *link.memory, nullptr);
    if (!link.transport->capabilities().pairs.has(*pair)) [[unlikely]]
        return run_on(run, *pair, slices, completion, nullptr);
    auto moved = attempt(link, run.direction, slices, completion, run.deadline, run.began);
    if (moved) [[likely]]
        return moved;
    Tried tried{.link = link, .outcome = std::move(moved)};
    return run_on(run, *pair, slices, completion, &tried);
}

}  // namespace

Result<uint64_t> run_transfer(EngineCore& core, Session& session, Incarnation& life, Direction direction, std::span<const Slice> slices,
                              Completion& completion, Deadline deadline, Time began) {
    if (slices.empty()) return 0;
    MC_RETURN_IF_ERROR(check_reach(slices));
    // Every link carries host memory, and knows what else its peer has.
    Link* link = session.borrow(life);
    std::shared_ptr<Link> held;
    if (link == nullptr) {
        MC_ASSIGN_OR_RETURN(held, session.link_to(life, deadline));
        link = held.get();
    }
    Run run{.core = core, .session = session, .life = life, .direction = direction, .deadline = deadline, .began = began};
    return run_over(run, slices, completion, *link);
}

}  // namespace mooncake
