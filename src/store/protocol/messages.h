// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Bodies of the store's RPCs (schema/store.fbs), for every method of rpc.h that begins with kStore or kNode. Pure functions, thread-safe.
/// Decoders accept any bytes: what fails verification or goes beyond the limits is kCorrupt. What they return borrows from the received
/// bytes where its type begins with "Received", and nothing else. Encoders do not check the limits; the receiver will.
#include "store/protocol/messages_events.h"
#include "store/protocol/messages_objects.h"
#include "store/protocol/messages_segments.h"
#include "store/protocol/messages_tasks.h"
#include "store/protocol/messages_tiers.h"
