// SPDX-License-Identifier: Apache-2.0
// What lies in a node's journal may be anything: nobody may read beyond the bytes, and whatever is accepted must mean the same when it is written anew.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "store/node/warm_journal.h"

using namespace mooncake;
using namespace mooncake::store;

namespace {

constexpr SegmentId kSegment{1, 1};

class Bytes final : public JournalFile {
public:
    Result<> append(std::span<const std::byte> bytes) override {
        all.insert(all.end(), bytes.begin(), bytes.end());
        return {};
    }
    Result<> begin_anew() override {
        all.clear();
        return {};
    }
    Result<> commit() override { return {}; }
    void discard() noexcept override {}
    std::vector<std::byte> all;
};

std::unique_ptr<Catalogue> empty_catalogue() {
    auto catalogue = std::make_unique<Catalogue>();
    catalogue->add_segment({.id = kSegment, .name = "n:1", .base = 4096, .size = 1 << 20});
    return catalogue;
}

void check(std::span<const std::byte> file, const warm::Header& header) {
    const Time now{std::chrono::hours(1)};
    const auto catalogue = empty_catalogue();
    WarmReplay replay = replay_journal(file, header, catalogue.get(), now);
    MC_CHECK(replay.bytes <= std::max(file.size(), warm::kHeaderBytes));
    const Standing stood = replay.remembered.standing;
    MC_CHECK(!catalogue->streaming());
    Bytes anew;
    WarmJournal journal({.file = anew, .catalogue = *catalogue, .header = header}, std::move(replay.remembered), 0);
    MC_CHECK(journal.start_anew(now));
    const auto again = empty_catalogue();
    const auto read = warm::parse_header(anew.all);
    MC_CHECK(read && read->client == header.client);
    const WarmReplay second = replay_journal(anew.all, *read, again.get(), now);
    MC_CHECK(second.whole && second.remembered.standing == stood);
    MC_CHECK(again->objects() == catalogue->objects());
}

/// Records with the right hash around what was given: what a bug of ours, or somebody who means it, could write.
std::vector<std::byte> forged(std::span<const std::byte> bytes, const warm::Header& header) {
    std::vector<std::byte> file(warm::kHeaderBytes);
    warm::encode_header(header, std::span<std::byte, warm::kHeaderBytes>(file.data(), warm::kHeaderBytes));
    while (!bytes.empty()) {
        const auto kind = static_cast<warm::RecordKind>(std::to_integer<uint32_t>(bytes[0]) % 5);
        const size_t length = std::min<size_t>(bytes.size() - 1, bytes.size() > 1 ? std::to_integer<size_t>(bytes[1]) * 4 : 0);
        warm::append_record(file, header.salt, file.size(), kind, bytes.subspan(1, length));
        bytes = bytes.subspan(1 + length);
    }
    return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    if (const auto header = warm::parse_header(bytes)) check(bytes, *header);
    const warm::Header header{.salt = 3, .client = {2, 2}, .segment = kSegment};
    check(bytes, header);
    check(forged(bytes, header), header);
    return 0;
}
