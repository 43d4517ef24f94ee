// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace mooncake::store {

/// What tenants may use, by name.
using Quotas = std::map<std::string, uint64_t>;

/// "512MB", "1.5 GB", "1024": units B, KB, MB, GB, TB of 1024 each; 1 to 2^63 - 1 bytes.
Result<uint64_t> parse_quota(std::string_view text);

/// The policy file: YAML with `version: 1` and `tenants: [{name: a, quota: 1GB}]`. kInvalidArgument: anything else, a name twice. Pure.
Result<Quotas> parse_quotas(std::string_view text);
/// Reads back as the same.
std::string format_quotas(const Quotas& quotas);

/// kNotFound: there is no such file.
Result<Quotas> load_quotas(const std::string& path);
/// Replaces the file as a whole: after a crash it is the old or the new one. kNoSpace: load_quotas() would refuse it.
Result<> save_quotas(const std::string& path, const Quotas& quotas);

}  // namespace mooncake::store
