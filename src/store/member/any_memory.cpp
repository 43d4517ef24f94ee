// SPDX-License-Identifier: Apache-2.0
#include "store/member/any_memory.h"

#include <cstring>

namespace mooncake::store {

Result<> copy_any(const Engine& engine, std::byte* to, const std::byte* from, uint64_t length) {
    const MemoryKind to_kind = engine.memory_kind(to, length), from_kind = engine.memory_kind(from, length);
    if (to_kind == MemoryKind::kHost && from_kind == MemoryKind::kHost) {
        std::memcpy(to, from, length);
        return {};
    }
    const CopyPart part{.to = to, .from = from, .length = length};
    return engine.devices().copy(to_kind, from_kind, {&part, 1});
}

}  // namespace mooncake::store
