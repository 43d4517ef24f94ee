// SPDX-License-Identifier: Apache-2.0
#include "store/node/warm_journal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/incarnation.h"
#include "base/log.h"
#include "store/protocol/messages_events.h"

namespace mooncake::store {

namespace {

constexpr size_t kFlushBytes = 1 << 20;

struct FileStanding {
    uint64_t heard_life, heard_event;
    uint64_t followed_epoch, missed_epoch, whole_epoch, whole_update, last_update;
    uint64_t flags;
};
constexpr uint64_t kFollowing = 1, kWhole = 2, kForgotten = 4;

struct FileEnd {
    int64_t time_ns;
    uint64_t orderly;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

template <typename T>
bool load(std::span<const std::byte> payload, T& value) {
    if (payload.size() < sizeof value) return false;  // a later version may say more
    std::memcpy(&value, payload.data(), sizeof value);
    return true;
}

FileStanding to_file(const Standing& one) {
    return {.heard_life = one.heard.life,
            .heard_event = one.heard.event,
            .followed_epoch = one.followed_epoch,
            .missed_epoch = one.missed_epoch,
            .whole_epoch = one.whole_epoch,
            .whole_update = one.whole_update,
            .last_update = one.last_update,
            .flags = (one.following ? kFollowing : 0) | (one.whole ? kWhole : 0) | (one.forgotten ? kForgotten : 0)};
}

Standing from_file(const FileStanding& file) {
    return {.heard = {file.heard_life, file.heard_event},
            .followed_epoch = file.followed_epoch,
            .missed_epoch = file.missed_epoch,
            .whole_epoch = file.whole_epoch,
            .whole_update = file.whole_update,
            .last_update = file.last_update,
            .following = (file.flags & kFollowing) != 0,
            .whole = (file.flags & kWhole) != 0,
            .forgotten = (file.flags & kForgotten) != 0};
}

int64_t to_ns(Time time) { return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count(); }
Time from_ns(int64_t ns) { return Time(std::chrono::nanoseconds(ns)); }

/// The time, then the update as in the event stream, of which only what concerns this segment and the node's standing is kept.
std::vector<std::byte> encode_update(const EventView& update, const SegmentId& segment, Time now) {
    EventWriter writer;
    for (const RangePlannedView& range : update.planned)
        if (range.segment == segment) writer.planned(range);
    for (const RangeFilled& range : update.filled)
        if (range.segment == segment) writer.filled(range);
    for (const RangeDropped& range : update.dropped)
        if (range.segment == segment) writer.dropped(range);
    for (const Behind& behind : update.behind) writer.behind(behind);
    for (const ClientId& client : update.caught_up) writer.caught_up(client);
    const std::vector<std::byte> body = writer.encode(
        {.sequence = update.sequence, .reset = update.reset, .complete = update.complete, .now = update.now});
    const int64_t time = to_ns(now);
    std::vector<std::byte> payload(sizeof time + body.size());
    std::memcpy(payload.data(), &time, sizeof time);
    std::memcpy(payload.data() + sizeof time, body.data(), body.size());
    return payload;
}

}  // namespace

WarmJournal::WarmJournal(Setup setup, Remembered remembered, uint64_t written)
    : file_(setup.file), catalogue_(setup.catalogue), header_(setup.header), salt_(setup.header.salt), remembered_(std::move(remembered)),
      written_(written), compact_at_(2 * written + kBytesMin) {}

Result<> WarmJournal::start_anew(Time now) {
    Lock lock(mutex_);
    write_all(now);
    if (dead_) return fail(Code::kNoSpace, "the journal cannot be written");
    return {};
}

void WarmJournal::heard(const EventView& update, Time now) {
    Lock lock(mutex_);
    if (dead_) return;
    remembered_.hear(update, header_.client);
    // Two rounds of an event stream that has just begun would have to be told apart.
    if (written_ >= compact_at_ && !catalogue_.streaming()) return write_all(now);
    append(warm::RecordKind::kUpdate, encode_update(update, header_.segment, now));
    flush();
}

void WarmJournal::stream_ended(bool orderly, Time now) {
    Lock lock(mutex_);
    if (dead_) return;
    remembered_.standing.end(orderly);
    append(warm::RecordKind::kEnd, bytes_of(FileEnd{.time_ns = to_ns(now), .orderly = orderly ? 1u : 0u}));
    flush();
}

void WarmJournal::stands(const Standing& standing) {
    Lock lock(mutex_);
    if (dead_) return;
    const bool following = standing.following || remembered_.standing.following;
    remembered_.standing = standing;
    remembered_.standing.following = following;
    append_standing();
    flush();
}

void WarmJournal::missed(bool begins) {
    Lock lock(mutex_);
    if (dead_) return;
    append(warm::RecordKind::kMissed, bytes_of(uint64_t{begins ? 1u : 0u}));
    flush();
}

void WarmJournal::discard() {
    Lock lock(mutex_);
    if (std::exchange(dead_, true)) return;
    file_.discard();
}

bool WarmJournal::broken() const {
    Lock lock(mutex_);
    return dead_;
}

void WarmJournal::append(warm::RecordKind kind, std::span<const std::byte> payload) {
    warm::append_record(buffer_, salt_, written_ + buffer_.size(), kind, payload);
}

void WarmJournal::append_standing() { append(warm::RecordKind::kStanding, bytes_of(to_file(remembered_.standing))); }

void WarmJournal::flush() {
    if (dead_) return;
    const auto appended = file_.append(buffer_);
    if (!appended) return give_up(appended.error());
    written_ += buffer_.size();
    buffer_.clear();
    if (buffer_.capacity() > 4 * kFlushBytes) buffer_ = {};
}

void WarmJournal::give_up(const Error& why) {
    MC_LOG_ERROR("the journal cannot be written, so that values will not outlive this process: {}", why.to_string());
    dead_ = true;
    file_.discard();
}

void WarmJournal::write_all(Time now) {
    buffer_.clear();
    if (const auto begun = file_.begin_anew(); !begun) return give_up(begun.error());
    warm::Header header = header_;
    header.salt = salt_ = random_u64();
    std::array<std::byte, warm::kHeaderBytes> head{};
    warm::encode_header(header, head);
    buffer_.assign(head.begin(), head.end());
    written_ = 0;
    // As an event stream that told all of it.
    EventView first;
    first.reset = true;
    first.behind.assign(remembered_.behind.all().begin(), remembered_.behind.all().end());
    append(warm::RecordKind::kUpdate, encode_update(first, header_.segment, now));
    const bool exact = catalogue_.save(header_.segment, now, [&](const EventView& part) MC_REQUIRES(mutex_) {
        append(warm::RecordKind::kUpdate, encode_update(part, header_.segment, now));
        if (buffer_.size() >= kFlushBytes) flush();
    });
    EventView last;
    last.complete = true;
    append(warm::RecordKind::kUpdate, encode_update(last, header_.segment, now));
    if (!exact) append(warm::RecordKind::kEnd, bytes_of(FileEnd{.time_ns = to_ns(now), .orderly = 0}));
    append_standing();
    flush();
    if (dead_) return;
    if (const auto done = file_.commit(); !done) return give_up(done.error());
    compact_at_ = 2 * written_ + kBytesMin;
}

WarmReplay replay_journal(std::span<const std::byte> file, const warm::Header& header, Catalogue* catalogue, Time now) {
    WarmReplay replay;
    Remembered& remembered = replay.remembered;
    replay.bytes = warm::for_each_record(file, header.salt, [&](warm::RecordKind kind, std::span<const std::byte> payload) {
        if (kind == warm::RecordKind::kUpdate) {
            int64_t time = 0;
            if (!load(payload, time)) return false;
            const auto update = decode_event_view(payload.subspan(sizeof time));
            if (!update) return false;
            if (catalogue != nullptr) catalogue->apply(*update, std::min(from_ns(time), now));
            remembered.hear(*update, header.client);
            ++replay.updates;
        } else if (kind == warm::RecordKind::kEnd) {
            FileEnd end{};
            if (!load(payload, end)) return false;
            if (catalogue != nullptr) catalogue->stream_ended(end.orderly != 0);
            remembered.standing.end(end.orderly != 0);
        } else if (kind == warm::RecordKind::kMissed) {
            uint64_t begins = 0;
            if (!load(payload, begins)) return false;
            if (catalogue != nullptr) begins != 0 ? catalogue->begin_missed() : catalogue->end_missed();
        } else if (kind == warm::RecordKind::kStanding) {
            FileStanding standing{};
            if (!load(payload, standing)) return false;
            remembered.standing = from_file(standing);
        }
        return true;
    });
    Standing& standing = remembered.standing;
    replay.whole = replay.bytes == file.size();
    // What lies behind may have been the end, or the beginning of another life: nobody knows.
    if (!replay.whole && standing.followed_epoch != 0) standing.following = true;
    // Who followed is told the rest by the same master, and reports nothing to another.
    replay.exact = standing.following && standing.whole;
    if (catalogue != nullptr) catalogue->stream_ended(!standing.following);
    if (standing.following && standing.missed_epoch == 0) standing.missed_epoch = standing.followed_epoch;
    standing.whole = false;
    return replay;
}

}  // namespace mooncake::store
