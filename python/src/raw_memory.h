// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

/// Copies between our own memory and an address somebody named, without trusting the address: kInvalidArgument instead of a
/// crash where nothing (or nothing writable) is mapped.
namespace mooncake::python {

Result<> copy_to_address(uint64_t address, const void* source, size_t length);
Result<> copy_from_address(void* destination, uint64_t address, size_t length);

}  // namespace mooncake::python
