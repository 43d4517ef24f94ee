// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C++ face of the transfer engine (libtransfer_engine.so). Needs C++20; uses only types of the standard library.
//
//     mooncake::TransferEngine engine;
//     engine.init("P2PHANDSHAKE", "10.0.0.1");
//     engine.registerLocalMemory(buffer, size);
//     auto peer = engine.openSegment("10.0.0.2:15123");
//     auto batch = engine.allocateBatchID(1);
//     engine.submitTransfer(batch, {{mooncake::TransferRequest::WRITE, buffer, peer, remote_address, size}});

#include "api/engine.h"
#include "api/status.h"
#include "api/types.h"

// The types live in a namespace of their own, because the library has types of the same names inside. Programs say
// mooncake::TransferEngine.
namespace mooncake {

using api::AutoDiscoverConfig;
using api::BatchID;
using api::BufferDesc;
using api::BufferEntry;
using api::INVALID_BATCH_ID;
using api::INVALID_SEGMENT_ID;
using api::LOCAL_SEGMENT_ID;
using api::NicLoadStats;
using api::NotifyDesc;
using api::PeerLiveness;
using api::ScatterTransferOperation;
using api::ScatterTransferRange;
using api::SegmentDesc;
using api::SegmentHandle;
using api::SegmentID;
using api::Status;
using api::Topology;
using api::TopologyEntry;
using api::TransferEngine;
using api::TransferMetadata;
using api::TransferRequest;
using api::TransferStatus;
using api::TransferStatusEnum;
using api::Transport;
using api::CANCELED;
using api::COMPLETED;
using api::FAILED;
using api::INVALID;
using api::PENDING;
using api::TIMEOUT;
using api::WAITING;

}  // namespace mooncake
