// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/testing/fake_transport.h"
#include "engine/testing/fake_world.h"

namespace mooncake::testing {

/// Every name is reached over "near" and, if that fails, over "far".
struct TwoWays final : DescriptorSource {
    ~TwoWays() override { world.service.stop(); }

    std::unique_ptr<Router> make_router() {
        std::vector<std::unique_ptr<Transport>> transports;
        transports.push_back(std::make_unique<FakeTransport>(near, "near", Reach::kNetwork, 0));
        transports.push_back(std::make_unique<FakeTransport>(far, "far", Reach::kNetwork, 1));
        return Router::with(std::move(transports), world.context, world.metrics, world.service);
    }
    Result<Found> fetch(const std::string& name, uint32_t, Deadline) override {
        return Found{.descriptor = {.name = name, .incarnation = Incarnation{7}, .endpoints = {{"near", ""}, {"far", ""}}},
                     .rpc_address = "127.0.0.1:1"};
    }
    void near_is(std::optional<Code> failing) {
        near.on_connect = nullptr;
        if (failing) near.on_connect = [code = *failing] { return Result<>(fail(code, "no path")); };
    }
    std::string path() { return std::string((*session.link(Deadline::after(10s)))->path()); }

    FakeScript near, far;
    FakeWorld world;
    std::unique_ptr<Router> router = make_router();
    LinkTable links{*router};
    Session session{"peer", *this, links, {}};
};

}  // namespace mooncake::testing
