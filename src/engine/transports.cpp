// SPDX-License-Identifier: Apache-2.0
#include "engine/transports.h"

#include <algorithm>

#include "base/log.h"
#include "engine/engine.h"
#include "transport/fabric/choice.h"
#include "transport/fabric/fabric.h"
#include "transport/self/self.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace mooncake {

namespace {

/// Adding a transport is one line here and one folder.
constexpr TransportMaker kMakers[] = {
    {.name = "self", .make = make_self_transport, .reach = Reach::kSameProcess},
    {.name = "shm", .make = make_shm_transport, .reach = Reach::kSameHost},
    {.name = "fabric",
     .make = fabric::make_fabric_transport,
     .protocols = fabric::kProtocols,
     .asked_for = fabric::asked_for,
     .alone = fabric::alone,
     .state = fabric::fabric_state,
     .check = fabric::check_choice},
    {.name = "tcp", .make = tcp::make_tcp_transport},
};

bool allowed(const EngineOptions& options, std::string_view name) {
    const auto& list = options.transports;
    return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
}

bool wanted(const EngineOptions& options, const TransportMaker& maker) {
    return allowed(options, maker.name) && (maker.asked_for == nullptr || maker.asked_for(options));
}

Result<> check_names(const EngineOptions& options, std::span<const TransportMaker> makers) {
    for (const std::string& name : options.transports) {
        const auto known = [&](const TransportMaker& maker) { return maker.name == name; };
        if (!std::any_of(makers.begin(), makers.end(), known))
            return fail(Code::kInvalidArgument, "MC_TRANSPORTS names '{}', which this build does not have", name);
    }
    return {};
}

/// Says what carries the bytes in place of the protocol.
void tell_replaced(const EngineOptions& options, std::span<const TransportMaker> makers, std::span<const std::unique_ptr<Transport>> made,
                   const Error& absent) {
    const auto plain = [&](const TransportMaker& maker) { return maker.asked_for == nullptr && maker.name == options.protocol; };
    if (options.protocol.empty() || std::any_of(makers.begin(), makers.end(), plain)) return;
    const auto network = [](const auto& transport) { return transport->capabilities().reach == Reach::kNetwork; };
    const auto found = std::find_if(made.begin(), made.end(), network);
    const std::string_view instead = found == made.end() ? "nothing" : (*found)->capabilities().name;
    MC_LOG_WARNING("protocol {}: {}; {} carries what leaves this host", options.protocol, absent.message(), instead);
}

}  // namespace

std::span<const TransportMaker> transport_makers() noexcept { return kMakers; }

const char* find_protocol(std::string_view protocol) noexcept {
    for (const TransportMaker& maker : kMakers) {
        if (maker.name == protocol) return maker.name.data();  // literals, all of them
        for (const std::string_view other : maker.protocols)
            if (other == protocol) return other.data();
    }
    return nullptr;
}

std::vector<Feature> list_features() {
    const EngineOptions options = load_options();
    std::vector<Feature> features;
    const auto add = [&](std::string_view name, const Result<std::string>& state) {
        features.push_back({.name = std::string(name), .usable = state.has_value(), .reason = state ? *state : state.error().message()});
    };
    for (const TransportMaker& maker : kMakers) {
        Result<std::string> state(std::string("usable"));
        if (!allowed(options, maker.name)) state = fail(Code::kNotSupported, "MC_TRANSPORTS or MC_FORCE_TCP leaves it out");
        else if (maker.state != nullptr) state = maker.state(options);
        add(maker.name, state);
    }
    add("efa", fabric::efa_state(options));
    add("cuda", Devices::of_process().of(MemoryKind::kCuda)->state());
    return features;
}

bool efa_usable() { return fabric::efa_state(load_options()).has_value(); }

Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context, std::span<const TransportMaker> makers) {
    const EngineOptions& options = context.options;
    MC_RETURN_IF_ERROR(check_names(options, makers));
    const auto alone = std::find_if(makers.begin(), makers.end(), [&](const TransportMaker& maker) {
        return maker.alone != nullptr && wanted(options, maker) && maker.alone(options);
    });
    std::vector<std::unique_ptr<Transport>> transports;
    Error absent(Code::kNotSupported, "no such device can be used here");
    bool has_asked_for = false;
    for (const TransportMaker& maker : makers) {
        const bool barred = alone != makers.end() && &*alone != &maker && maker.reach == Reach::kNetwork;
        bool made = false;
        if (wanted(options, maker) && !barred) {
            auto transport = maker.make(context);
            made = transport.has_value();
            if (made) transports.push_back(std::move(*transport));
            else if (maker.asked_for == nullptr)
                MC_LOG_WARNING("transport {} is not available: {}", maker.name, transport.error().to_string());
            else if (transport.error().code() == Code::kInvalidArgument) return Unexpected(std::move(transport).error());
            else absent = std::move(transport).error();
        }
        if (maker.check != nullptr) MC_RETURN_IF_ERROR(maker.check(options, made, absent));
        has_asked_for = has_asked_for || (made && maker.asked_for != nullptr);
    }
    if (!has_asked_for) tell_replaced(options, makers, transports, absent);
    return transports;
}

}  // namespace mooncake
