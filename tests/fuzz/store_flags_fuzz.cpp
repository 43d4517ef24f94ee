// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/flags_client.h"
#include "apps/common/flags_master.h"

/// The bytes are a command line with one word per line, of the master (whose configuration file they are, too) and of a node.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    std::vector<std::string> words(1);
    for (const char c : text) {
        if (c == '\n') words.emplace_back();
        else words.back() += c;
    }
    const mooncake::store::MasterFlagSources sources{.read_file = [&](const std::string&) { return mooncake::Result<std::string>(text); },
                                                     .environment = [](const char*) { return std::optional<std::string>(); }};
    (void)mooncake::store::parse_master_flags(words, sources);
    (void)mooncake::store::parse_client_flags(words);
    return 0;
}
