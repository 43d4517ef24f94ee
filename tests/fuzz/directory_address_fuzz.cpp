// SPDX-License-Identifier: Apache-2.0
// Connection strings from the user: open or a clear error, never a crash; nothing is connected.
#include <cstddef>
#include <cstdint>
#include <string>

#include "coordination/directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto directory = open_directory(text, EngineOptions());
    if (!directory) {
        const Code code = directory.error().code();
        MC_CHECK(code == Code::kInvalidArgument || code == Code::kNotSupported);
    }
    return 0;
}
