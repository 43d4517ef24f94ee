// SPDX-License-Identifier: Apache-2.0
#include "store/tier/appender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "store/tier/transfer.h"

namespace mooncake::store::log {

Appender::Appender(Disk& disk, FileTable& files, Index& index, uint64_t file_bytes)
    : disk_(disk), files_(files), index_(index), file_bytes_(file_bytes),
      random_((uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()) {}

Result<> Appender::start() { return stream_.start(); }

bool Appender::fits(uint64_t record_bytes) const noexcept {
    if (current_ == nullptr) return false;
    const uint64_t waiting = round_to_blocks(pending_removals_.size() + kFixedHeaderBytes);
    return current_->end_block * kBlockBytes + waiting + record_bytes + current_->directory.size() + 2 * kBlockBytes <= current_->bytes;
}

uint64_t Appender::new_file_bytes(uint64_t record_bytes) const noexcept {
    const uint64_t alone = (kFirstRecordBlock + 1) * kBlockBytes + record_bytes + round_to_blocks(2 * kHeaderBytesMax) + kBlockBytes;
    return is_alone(record_bytes) ? alone : std::max(file_bytes_, alone);
}

Result<std::shared_ptr<LogFile>> Appender::create_file(uint64_t bytes) {
    const uint32_t number = next_number_++;
    const std::string name = file_name(number);
    auto made = disk_.create(name, bytes);
    if (!made) return Unexpected(std::move(made).error());
    auto file = std::make_shared<LogFile>(number, random_(), std::move(*made));
    file->bytes = bytes;
    file->end_block = file->synced_block = kFirstRecordBlock;
    file->name_synced = false;

    stream_.begin(*file->disk, 0);
    const FileHeader header{.number = number, .salt = file->salt, .created_ms = wall_clock_ms()};
    for (uint32_t copy = 0; copy < kFirstRecordBlock; ++copy) {
        encode_file_header(header, {stream_.room(kBlockBytes), kBlockBytes});
        stream_.commit(kBlockBytes);
    }
    auto written = stream_.finish();
    if (written) written = sync_and_wait(*file->disk);
    if (!written) {
        (void)disk_.remove(name);
        return Unexpected(std::move(written).error().with_context(name));
    }
    return file;
}

Result<> Appender::roll(uint64_t bytes) {
    close_current();
    MC_ASSIGN_OR_RETURN(current_, create_file(bytes));
    files_.add(current_);
    stream_.begin(*current_->disk, current_->end_block * kBlockBytes);
    return {};
}

void Appender::close_current() {
    MC_CHECK(!has_staged());
    if (current_ == nullptr) return;
    seal(*current_);
    current_->closed = true;
    current_ = nullptr;
}

RecordHeader Appender::header_of(const TierObject& object) noexcept {
    RecordHeader header;
    header.kind = RecordKind::kValue;
    header.length = object.length;
    header.generation = object.generation;
    header.checksum = object.checksum;
    header.data_type = object.data_type;
    header.hard_pin = object.hard_pin;
    header.writer = object.writer;
    header.tenant = object.tenant;
    header.group = object.group;
    header.key = object.key;
    if (object.soft_pin_left > Duration::zero()) {
        header.soft_pin_end_ms = wall_clock_ms() +
                                 static_cast<uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(object.soft_pin_left).count());
    }
    lay_out(header);
    return header;
}

Result<> Appender::stage(RecordHeader header, std::span<const std::byte> value) {
    header.synced_blocks = current_->synced_block;
    const Staged staged{current_->end_block, header};
    auto done = header.bytes() <= AppendStream::kBufferBytes ? stage_small(header, value) : stage_large(header, value);
    if (!done && current_->end_block == staged.block) return done;  // nothing of it was written
    (done ? values_ : spoiled_).push_back({staged.block, header});
    staged_bytes_ += header.bytes();
    return done;
}

Result<> Appender::stage_small(RecordHeader& header, std::span<const std::byte> value) {
    std::byte* const record = stream_.room(header.bytes());
    std::memset(record + header.header_bytes, 0, header.payload_at - header.header_bytes);
    std::byte* const payload = record + header.payload_at;
    table_.clear();
    for (uint64_t at = 0; at < value.size(); at += kChunkBytes) {
        table_.push_back(copy_and_hash(payload + at, value.data() + at, std::min<uint64_t>(kChunkBytes, value.size() - at)));
    }
    const uint64_t checksum = table_.size() > 1 ? hash_table(table_) : table_.front();
    if (header.checksum != 0 && header.checksum != checksum) return fail(Code::kCorrupt, "'{}' is not what its checksum says", header.key);
    header.checksum = checksum;
    const uint64_t table = table_bytes(value.size());
    std::memcpy(payload + value.size(), table_.data(), table);
    const uint64_t end = header.payload_at + value.size() + table;
    std::memset(record + end, 0, header.bytes() - end);
    encode_record(header, place(current_->end_block), record);
    stream_.commit(header.bytes());
    current_->end_block += header.blocks;
    return {};
}

Result<> Appender::stage_large(RecordHeader& header, std::span<const std::byte> value) {
    if (header.checksum == 0) header.checksum = hash_value(std::span(&value, 1), table_);
    // The header by itself, so that the chunks lie in whole buffers.
    std::byte* const record = stream_.room(header.payload_at);
    std::memset(record + header.header_bytes, 0, header.payload_at - header.header_bytes);
    encode_record(header, place(current_->end_block), record);
    stream_.commit(header.payload_at);
    stream_.flush();
    current_->end_block += header.blocks;

    table_.clear();
    for (uint64_t at = 0; at < value.size(); at += kChunkBytes) {
        const uint64_t bytes = std::min<uint64_t>(kChunkBytes, value.size() - at);
        table_.push_back(copy_and_hash(stream_.rest().data(), value.data() + at, bytes));
        stream_.commit(bytes);
    }
    fill(std::as_bytes(std::span(table_)));
    fill_to_block();
    if (hash_table(table_) == header.checksum) return {};
    return fail(Code::kCorrupt, "'{}' is not what its checksum says", header.key);
}

void Appender::fill(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const auto rest = stream_.rest();
        const size_t part = std::min(rest.size(), bytes.size());
        std::memcpy(rest.data(), bytes.data(), part);
        stream_.commit(part);
        bytes = bytes.subspan(part);
    }
}

void Appender::fill_to_block() {
    const auto rest = stream_.rest();
    const size_t part = rest.size() % kBlockBytes;
    std::memset(rest.data(), 0, part);
    stream_.commit(part);
}

void Appender::stage(const Removal& removal) {
    if (pending_removals_.size() + removal_bytes(removal) > kRemovalsBytesMax) stage_removals();
    append_removal(pending_removals_, removal);
    removals_.push_back(removal);
    staged_bytes_ += removal_bytes(removal);
}

void Appender::stage_removals() {
    if (pending_removals_.empty()) return;
    RecordHeader header;
    header.kind = RecordKind::kRemovals;
    header.length = pending_removals_.size();
    header.checksum = hash_bytes(pending_removals_);
    header.synced_blocks = current_->synced_block;
    lay_out(header);
    std::byte* const record = stream_.room(header.bytes());
    std::memset(record, 0, header.bytes());
    encode_record(header, place(current_->end_block), record);
    std::memcpy(record + header.payload_at, pending_removals_.data(), pending_removals_.size());
    stream_.commit(header.bytes());
    removal_records_.push_back({current_->end_block, header});
    removal_payloads_.push_back(std::move(pending_removals_));
    pending_removals_.clear();
    current_->end_block += header.blocks;
}

Result<> Appender::write_out() {
    stage_removals();
    MC_RETURN_IF_ERROR(stream_.finish());
    MC_RETURN_IF_ERROR(sync_and_wait(*current_->disk));
    if (!current_->name_synced) MC_RETURN_IF_ERROR(disk_.sync_names());
    return {};
}

Result<> Appender::commit() {
    if (!has_staged()) return {};
    const uint32_t begin_block = current_->synced_block;
    auto written = write_out();
    if (written) {
        apply();
    } else {
        undo(begin_block);
    }
    values_.clear();
    removals_.clear();
    removal_records_.clear();
    removal_payloads_.clear();
    pending_removals_.clear();
    spoiled_.clear();
    staged_bytes_ = 0;
    return written;
}

void Appender::apply() {
    LogFile& file = *current_;
    file.name_synced = true;
    file.synced_block = file.end_block;
    if (const uint64_t end = file.end_block * kBlockBytes; end > file.bytes) file.bytes = end;
    std::vector<std::byte> encoded(kHeaderBytesMax);
    const auto list = [&](const Staged& staged, std::span<const std::byte> removals) {
        encode_record(staged.header, place(staged.block), encoded.data());
        append_to_directory(file.directory, staged.block, std::span(encoded).first(staged.header.header_bytes), removals);
    };
    for (const Staged& staged : values_) {
        list(staged, {});
        index_.merge({State::kValue, staged.block, staged.header, &file});
    }
    for (size_t i = 0; i < removal_records_.size(); ++i) list(removal_records_[i], removal_payloads_[i]);
    for (const Removal& removal : removals_) {
        Fact fact{.state = State::kRemoved, .block = removal_records_.front().block, .file = &file};
        fact.header.tenant = removal.tenant;
        fact.header.key = removal.key;
        fact.header.generation = removal.generation;
        index_.merge(fact);
    }
    for (const Staged& staged : spoiled_) index_.doubt(staged.header.tenant, staged.header.key, staged.header.generation, file);
}

Result<> Appender::write_alone(const RecordHeader& header, std::span<const std::byte> value) {
    MC_CHECK(!has_staged());
    std::shared_ptr<LogFile> before = std::exchange(current_, nullptr);
    auto done = roll(new_file_bytes(header.bytes()));
    if (done) {
        done = stage(header, value);
        auto committed = commit();
        if (done) done = std::move(committed);
        close_current();
    }
    current_ = std::move(before);
    if (current_ != nullptr) stream_.begin(*current_->disk, current_->end_block * kBlockBytes);
    return done;
}

void Appender::undo(uint32_t begin_block) {
    LogFile& file = *current_;
    MC_LOG_WARNING_EVERY(10s, "{} is not written to any more: the disk failed", file_name(file.number));
    auto cut = file.disk->truncate(begin_block * kBlockBytes);
    if (cut) cut = sync_and_wait(*file.disk);
    if (cut) file.bytes = begin_block * kBlockBytes;
    file.end_block = begin_block;
    if (!cut) {  // nobody knows what of the group is there after a restart
        file.damaged = true;
        for (const Staged& staged : values_) index_.doubt(staged.header.tenant, staged.header.key, staged.header.generation, file);
        for (const Staged& staged : spoiled_) index_.doubt(staged.header.tenant, staged.header.key, staged.header.generation, file);
    }
    for (const Removal& removal : removals_) index_.hide(removal.tenant, removal.key, file);
    stream_.begin(*file.disk, 0);
    file.closed = true;
    current_ = nullptr;
}

void Appender::seal(LogFile& file) {
    const uint32_t directory_block = file.end_block;
    RecordHeader header;
    header.kind = RecordKind::kDirectory;
    header.length = file.directory.size();
    header.checksum = hash_bytes(file.directory);
    header.synced_blocks = file.synced_block;
    lay_out(header);
    const uint32_t trailer_block = directory_block + header.blocks;

    stream_.begin(*file.disk, directory_block * kBlockBytes);
    std::vector<std::byte> encoded(header.payload_at);
    encode_record(header, {file.salt, directory_block}, encoded.data());
    fill(encoded);
    fill(file.directory);
    fill_to_block();
    encode_trailer(directory_block, {file.salt, trailer_block}, {stream_.room(kBlockBytes), kBlockBytes});
    stream_.commit(kBlockBytes);

    const uint64_t end = (trailer_block + 1) * kBlockBytes;
    auto done = stream_.finish();
    if (done) done = file.disk->truncate(end);
    if (done) done = sync_and_wait(*file.disk);
    if (done) {
        file.bytes = end;
    } else {
        MC_LOG_WARNING_EVERY(10s, "{} gets no directory: {}", file_name(file.number), done.error().to_string());
    }
    file.directory = {};
}

}  // namespace mooncake::store::log
