// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/staging.h"
#include "transport/transport.h"

namespace mooncake {

struct StagedCore;

/// A peer whose transport moves host memory only, and with it local memory of devices: that passes through pinned host memory in chunks of one slot, of
/// which several are under way, so that the device copies one while others are on the network. Host memory goes to the other peer as it is.
///
/// A chunk belongs to one completion. To be written it is copied by the device and then given to the network; to be read it comes from the
/// network and is then copied by the device: on the threads of the Staging, or, if it is short and somebody waits for it, on that thread.
/// Thread-safe as Peer.
class StagedPeer final : public Peer {
public:
    /// The Staging outlives it.
    StagedPeer(std::unique_ptr<Peer> host, Staging& staging);
    ~StagedPeer() override;

    void submit(Direction direction, std::span<const Slice> slices, Submit how) override;
    bool wait(Completion& completion, Deadline deadline) override;
    void poke() override { host_->poke(); }
    void withdraw(const Completion& whole, const Error& reason) override;
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) override;
    void close(const Error& reason) override;
    Result<> warm_up(Deadline deadline) override { return host_->warm_up(deadline); }
    bool usable() const noexcept override { return host_->usable(); }

    static constexpr size_t kChunksMax = 16;           // under way, of one peer: what it holds others do not have
    static constexpr size_t kPiecesMax = 1000;         // of one chunk
    static constexpr uint64_t kShortBytes = 64 << 10;  // copied sooner than another thread is woken

private:
    void stage(Direction direction, std::span<const Slice> slices, Submit how);
    /// Once closed, and the host peer as well. Needs no memory.
    void end_chunks(const Error& reason) noexcept;

    const std::unique_ptr<Peer> host_;
    const std::shared_ptr<StagedCore> core_;  // also of those who tell a completion that it is done, on which the peer may end
};

}  // namespace mooncake
