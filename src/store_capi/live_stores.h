// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "store/process/store_client.h"

namespace mooncake::store_capi {

/// The stores that the C face handed out. What callers hold is a number, looked up at every call: for one that is gone, was never
/// given, or belongs to the process that forked this one, there is no store. Thread-safe.
using StoreHandle = uint64_t;  // never 0, never used again

StoreHandle add_store();
/// Whoever asked for the client keeps it until the end of the call. Empty: no such store, or not set up.
std::shared_ptr<store::StoreClient> client_of(StoreHandle handle);
/// Reserves the store for a setup(): false if there is none, or it is set up or being set up.
bool begin_setup(StoreHandle handle);
/// Ends it; `client` empty: it failed. A store that was removed meanwhile gets its client closed.
void end_setup(StoreHandle handle, std::shared_ptr<store::StoreClient> client);
/// Closes its client, which ends the calls in it.
void remove_store(StoreHandle handle);

}  // namespace mooncake::store_capi
