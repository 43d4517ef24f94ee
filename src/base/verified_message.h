// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

// Include only in .cpp files: FlatBuffers is a heavy header.
namespace mooncake {

/// A received FlatBuffer whose every offset was checked, so that reading its fields cannot leave it. Borrows the bytes, unless
/// they lie at an odd address: then it owns a copy. Not thread-safe.
template <typename Table>
class VerifiedMessage {
public:
    /// kCorrupt, naming `what`.
    static Result<VerifiedMessage> parse(std::span<const std::byte> bytes, std::string_view what) {
        constexpr size_t kSmallest = 2 * sizeof(uint32_t);
        if (bytes.size() < kSmallest || bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE)
            return fail(Code::kCorrupt, "a {} of {} bytes", what, bytes.size());
        VerifiedMessage message;
        const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
        if (reinterpret_cast<uintptr_t>(data) % alignof(uint64_t) != 0) {
            message.copy_ = std::make_unique<uint64_t[]>(bytes.size() / sizeof(uint64_t) + 1);
            std::memcpy(message.copy_.get(), data, bytes.size());
            data = reinterpret_cast<const uint8_t*>(message.copy_.get());
        }
        // A table takes at least four bytes; a message that names one table many times does not get more work out of us.
        flatbuffers::Verifier verifier(data, bytes.size(), kDepthMax, static_cast<flatbuffers::uoffset_t>(bytes.size() / 4 + 1));
        if (!verifier.VerifyBuffer<Table>(nullptr)) return fail(Code::kCorrupt, "a {} of {} bytes that makes no sense", what, bytes.size());
        message.table_ = flatbuffers::GetRoot<Table>(data);
        return message;
    }

    const Table* operator->() const noexcept { return table_; }
    const Table& operator*() const noexcept { return *table_; }
    /// The copy, if there is one, for whoever keeps views of the message.
    std::unique_ptr<uint64_t[]> take_copy() noexcept { return std::move(copy_); }

private:
    static constexpr flatbuffers::uoffset_t kDepthMax = 16;

    VerifiedMessage() = default;

    std::unique_ptr<uint64_t[]> copy_;
    const Table* table_ = nullptr;
};

/// A copy, because the verifier does not ask where the elements of a vector lie: a forged one may be at any address.
template <typename Struct>
Struct struct_at(const flatbuffers::Vector<const Struct*>& vector, size_t index) {
    Struct copy;
    std::memcpy(&copy, vector.Data() + index * sizeof(Struct), sizeof copy);
    return copy;
}

/// The text of an optional field; kCorrupt when it is longer than `bytes_max`.
inline Result<std::string> bounded_text(const flatbuffers::String* field, size_t bytes_max, std::string_view what) {
    if (field == nullptr) return std::string();
    if (field->size() > bytes_max) return fail(Code::kCorrupt, "a {} of {} bytes; at most {} are allowed", what, field->size(), bytes_max);
    return field->str();
}

}  // namespace mooncake
