// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace mooncake::store {

/// One page that shows the pool live, from /api/v1/overview. Loads nothing from elsewhere.
std::string_view dashboard_html() noexcept;

}  // namespace mooncake::store
