// SPDX-License-Identifier: Apache-2.0
// What another process says or writes into memory we share: endpoints, messages, and the region table, which may hold anything.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "transport/shm/channel.h"
#include "transport/shm/region_table.h"
#include "transport/shm/region_view.h"

namespace {

using namespace mooncake;
using namespace mooncake::shm;

constexpr Incarnation kIncarnation{1};

/// A table the way a hostile owner could write it.
struct Forged {
    MemoryFile file = MemoryFile::create("fuzz", kTableBytes).value();
    Mapping mapping = file.map(true, kTableBytes).value();
    RemoteTable table;

    Forged() {
        auto& header = *reinterpret_cast<TableHeader*>(mapping.address());
        header.magic = kTableMagic;
        header.version = kVersion;
        header.entry_bytes = sizeof(TableEntry);
        header.incarnation = kIncarnation.value;
        table = RemoteTable::open(file, kIncarnation).value();
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto name = decode_endpoint(text)) MC_CHECK(encode_endpoint(*name) == text);
    if (const auto message = decode_message(std::as_bytes(std::span(data, size)))) MC_CHECK(message->magic == kMessageMagic);

    static const Forged forged;
    const size_t written = std::min<size_t>(size, 64 * sizeof(TableEntry));
    std::copy_n(reinterpret_cast<const std::byte*>(data), written, forged.mapping.address() + sizeof(TableHeader));
    std::memset(forged.mapping.address() + sizeof(TableHeader) + written, 0, 64 * sizeof(TableEntry) - written);
    reinterpret_cast<TableHeader*>(forged.mapping.address())->used.store(64);
    static const Devices devices;
    static const auto memory = std::make_shared<const Mapping>(MemoryFile::create("fuzz", 1 << 20).value().map(true, 1).value());
    RemoteMemories memories;
    for (uint64_t number = 0; number < 4; ++number) memories[number].reached = std::make_shared<const MappedMemory>(memory, devices);

    const RegionView view(forged.table, memories);
    uint64_t end = 0;
    for (const RegionView::Region& region : view.regions()) {
        MC_CHECK(region.length > 0 && region.address >= end);
        end = region.end();
        MC_CHECK(region.mapped == nullptr ||
                 (region.mapped >= memory->address() && region.length <= memory->length() &&
                  region.mapped - memory->address() <= static_cast<ptrdiff_t>(memory->length() - region.length)));
        static Claims claims;
        Claims::Section section(claims);
        size_t hint = size;
        const AddressRange range{region.address, region.length};
        MC_CHECK(view.find(forged.table, section, range, Access::kRead, hint) == (region.device() ? nullptr : &region));
        MC_CHECK(view.find(forged.table, section, range, Access::kWrite, hint) ==
                 (region.writable && !region.device() ? &region : nullptr));
    }
    return 0;
}
