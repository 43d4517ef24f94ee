// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Messages as a next version of this program would write them. For .cpp files that know the wire's types.
namespace mooncake::store::testing {

/// Where the next version puts its `added`th new field of a table that has `fields` now.
constexpr uint16_t added_field(size_t fields, size_t added) { return static_cast<uint16_t>(4 + 2 * (fields + added)); }

/// Ends a table begun by one of the generated builders with two fields of the next version: a number and a text.
template <typename TableBuilder, typename Text>
auto finish_as_next_version(TableBuilder& table, size_t fields, Text text) {
    table.fbb_.template AddElement<uint64_t>(added_field(fields, 0), 42, 0);
    table.fbb_.AddOffset(added_field(fields, 1), text);
    return table.Finish();
}

}  // namespace mooncake::store::testing
