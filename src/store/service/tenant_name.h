// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace mooncake::store {

/// UTF-8, not empty, not beginning with '_', no control characters, no longer than any request can name.
bool valid_tenant_name(std::string_view name) noexcept;

}  // namespace mooncake::store
