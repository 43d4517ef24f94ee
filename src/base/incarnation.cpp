// SPDX-License-Identifier: Apache-2.0
#include "base/incarnation.h"

#include <sys/random.h>

#include <charconv>
#include <fstream>
#include <random>

namespace mooncake {

uint64_t random_u64() noexcept {
    uint64_t value = 0;
    if (::getrandom(&value, sizeof value, 0) == sizeof value) return value;
    static thread_local std::mt19937_64 fallback(static_cast<uint64_t>(std::random_device{}()));
    return fallback();
}

Incarnation Incarnation::random() {
    uint64_t value = 0;
    while (value == 0) value = random_u64();
    return Incarnation{value};
}

Result<Incarnation> Incarnation::parse(std::string_view text) {
    Incarnation incarnation;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), incarnation.value, 16);
    if (status != std::errc() || end != text.data() + text.size() || text.size() != 16 || !incarnation)
        return fail(Code::kInvalidArgument, "not an incarnation id: '{}'", text);
    return incarnation;
}

const std::string& boot_id() {
    static const std::string id = [] {
        std::ifstream file("/proc/sys/kernel/random/boot_id");
        std::string line;
        std::getline(file, line);
        return line;
    }();
    return id;
}

}  // namespace mooncake
