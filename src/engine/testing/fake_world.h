// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core.h"
#include "engine/router.h"
#include "engine/session.h"
#include "engine/testing/fake_transport.h"
#include "metrics/metrics.h"
#include "transport/testing/local_control.h"

namespace mooncake::testing {

/// The inside of an engine on a fake network: every name exists and is reached over FakeTransport, and over `transports`.
struct FakeWorld final : DescriptorSource, Notifier {
    explicit FakeWorld(SessionPolicy policy = {}, std::vector<std::unique_ptr<Transport>> transports = {}) {
        transports.push_back(std::make_unique<FakeTransport>(script));
        router = Router::with(std::move(transports), context, metrics, service);
        registry = std::make_unique<MemoryRegistry>(access, router->transports());
        sessions = std::make_unique<SessionTable>(*this, *router, policy);
        core.registry = registry.get();
        core.sessions = sessions.get();
        core.service = &service;
        core.notifier = this;
    }
    ~FakeWorld() override {
        service.stop();  // retries may still be connecting
        sessions.reset();
    }

    Result<Found> fetch(const std::string& name, uint32_t, Deadline) override {
        ++fetches;
        if (on_fetch) on_fetch(name);
        Lock lock(mutex);
        const auto alias = aliases.find(name);
        const std::string& real = alias == aliases.end() ? name : alias->second;
        const Incarnation life{incarnation.value + (std::hash<std::string>()(real) << 8)};
        return Found{.descriptor = {.name = name, .incarnation = life, .endpoints = router->endpoints(), .device_memory = device_memory},
                     .rpc_address = "127.0.0.1:1"};
    }
    Result<> notify(Session& session, const Notification& notification, Incarnation life, Deadline) override {
        Lock lock(mutex);
        notified_lives.push_back(life);
        notified.push_back({.name = session.name() + "/" + notification.name, .message = notification.message});
        changed.notify_all();
        return {};
    }
    /// Waits until n notifications were sent.
    std::vector<Notification> notifications(size_t n) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return notified.size() >= n; });
        return notified;
    }
    Session& session(const std::string& name) { return **sessions->get(name); }
    SegmentId id(const std::string& name) { return sessions->id_of(*sessions->get(name)); }
    /// Every peer gets another life.
    void restart() {
        Lock lock(mutex);
        ++incarnation.value;
    }

    FakeScript script;
    EngineOptions options;
    AccessTable access;
    LocalControl control{Incarnation{1}};
    TransportContext context{.incarnation = Incarnation{1}, .options = options, .access = access, .control = control};
    metrics::Registry metrics;
    Service service;
    std::unique_ptr<Router> router;
    std::unique_ptr<MemoryRegistry> registry;
    std::unique_ptr<SessionTable> sessions;
    EngineCore core;
    std::atomic<int> fetches{0};
    std::function<void(const std::string& name)> on_fetch;
    Mutex mutex;
    std::condition_variable_any changed;
    Incarnation incarnation{7};                  // each name has one of its own, made from this
    std::map<std::string, std::string> aliases;  // names of the same peer
    std::vector<DeviceRange> device_memory;      // of every peer
    std::vector<Notification> notified;
    std::vector<Incarnation> notified_lives;  // whom each was for
    std::atomic<std::thread::id> blocked_thread{};
};

}  // namespace mooncake::testing
