// SPDX-License-Identifier: Apache-2.0
// Base64 comes back both ways: every input can be encoded, and what is accepted is exactly what would be written.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "coordination/etcd/base64.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    MC_CHECK(base64_decode(base64_encode(text)).value() == text);
    if (const auto bytes = base64_decode(text)) MC_CHECK(base64_encode(*bytes) == text);
    return 0;
}
