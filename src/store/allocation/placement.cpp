// SPDX-License-Identifier: Apache-2.0
#include "store/allocation/placement.h"

namespace mooncake::store {

std::string_view host_of(std::string_view segment_name) noexcept {
    const size_t colon = segment_name.rfind(':');
    if (colon == std::string_view::npos) return segment_name;
    const std::string_view host = segment_name.substr(0, colon);
    const bool bare_ipv6 = host.find(':') != std::string_view::npos && !(host.starts_with('[') && host.ends_with(']'));
    return bare_ipv6 ? segment_name : host;
}

}  // namespace mooncake::store
