// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks what libtransfer_engine.so offers to programs.
#define MOONCAKE_API __attribute__((visibility("default")))
