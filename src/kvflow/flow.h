// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/time.h"
#include "engine/engine.h"
#include "kvplan/layout.h"
#include "kvplan/plan.h"

namespace mooncake::kvplan {

struct FlowSetup {
    std::vector<Rank> sources, targets;  // that the plan was made of
    Plan plan;
    /// kWrite: `rank` is a source and sends; kRead: it is a target and fetches. Pairs of other ranks are left to those.
    Direction direction = Direction::kWrite;
    uint32_t rank = 0;
    /// Told to each peer once everything between us has moved; not to one with whom anything failed.
    std::optional<Notification> notification;
    /// The lives of the peers that their addresses belong to, by rank on the other side; none given: of whoever answers now.
    std::vector<Incarnation> lives;
};

/// The part of a plan that one rank carries out, layer by layer or all at once. A layer is written down piece by piece when its turn
/// comes: what is kept is as small as the plan. Thread-safe. Must not outlive its Engine.
class MC_EXPORT Flow {
public:
    using Done = std::function<void(const Result<uint64_t>&)>;

    struct Peer {
        std::string segment;
        uint32_t rank = 0;  // on the other side
        uint64_t bytes = 0;
        uint32_t layers = 0;
    };

    /// Asks peers whose life is not given who they are, one after the other. kInvalidArgument: the setup contradicts itself.
    static Result<std::unique_ptr<Flow>> create(Engine& engine, FlowSetup setup, Deadline deadline);
    /// Cancels what is left. In a forked child it does nothing.
    virtual ~Flow() = default;

    virtual const std::vector<Peer>& peers() const noexcept = 0;
    /// Those of our rank, in the order of its regions; also such that no peer gets from us.
    virtual const std::vector<std::string>& layers() const noexcept = 0;

    /// Starts a layer; empty: all that have not been started. `done` is called once, with the bytes or the first failure, perhaps before this returns, on
    /// any thread; it must not block. Once anything with a peer has failed nothing more begins with it, and what would have fails likewise. kNotFound:
    /// this rank has no such layer; kAlreadyExists: it was started before. `after`: as in Engine.
    virtual Result<> submit(std::string_view layer, Done done, const WorkPoint& after = {}) = 0;
    /// Ends what was started; what was not cannot be any more. Does not wait: the outcome is that of the layers.
    virtual void cancel() = 0;
    /// Until nothing that was started is under way: the bytes of all of it, or the first failure. kBusy at the deadline, which ends nothing.
    virtual Result<uint64_t> wait(Deadline deadline) = 0;
};

}  // namespace mooncake::kvplan
