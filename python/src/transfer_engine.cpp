// SPDX-License-Identifier: Apache-2.0
#include "transfer_engine.h"

#include <utility>

#include "base/options.h"
#include "engine/codes.h"
#include "failures.h"
#include "metrics/metrics.h"

namespace mooncake::python {

namespace {

constexpr const char* kTimeoutVariable = "MC_TRANSFER_TIMEOUT";

/// The one variable that is read when the object is made; all others are when it is initialized.
Duration timeout_from_environment() {
    const Environment all = process_environment();
    return load_options([&](const char* name) { return std::string_view(name) == kTimeoutVariable ? all(name) : std::nullopt; })
        .transfer_timeout;
}

std::vector<std::string> devices_from(const std::optional<std::string>& text) {
    if (!text || *text == "auto-discovery") return {};
    return split_list(*text);
}

/// The scheme may come on its own or as part of the address.
std::string metadata_from(const std::string& server, const std::string& type) {
    if (type.empty() || server == "P2PHANDSHAKE" || server.find("://") != std::string::npos) return server;
    return type + "://" + server;
}

/// What a part of the engine throws, for want of memory or threads, is a failure like any other.
Result<std::unique_ptr<Engine>> create_engine(EngineConfig config) try {
    return Engine::create(std::move(config));
} catch (const std::exception& thrown) {
    return fail(Code::kUnavailable, "{}", thrown.what());
}

}  // namespace

// ---- life

TransferEngine::TransferEngine() : transfer_timeout_(timeout_from_environment()) {}

TransferEngine::~TransferEngine() {
    if (engine_ && engine_.ours() && !give_objects_back()) keep_objects_for_ever();
    engine_.reset();  // first of all: afterwards nobody touches the objects
}

bool TransferEngine::give_objects_back() {
    if (exiting()) return registered_objects_.empty();  // the exit hook has closed the engine; nobody waits for stragglers any more
    return without_gil([this] {
        if (!engine_.shared()) return engine_->close().has_value();
        // Others keep the engine, but the objects whose memory it knows through us go now.
        bool all = true;
        for (const auto& [batch, objects] : batch_objects_) (void)engine_->cancel_batch(batch);
        for (const auto& [address, objects] : registered_objects_) {
            for (size_t i = 0; i < objects.size(); ++i) {
                const auto done = engine_->unregister_memory(reinterpret_cast<void*>(address));
                all = all && (done || done.error().code() != Code::kBusy);
            }
        }
        return all;
    });
}

void TransferEngine::keep_objects_for_ever() {
    // Some process may still be about to write to them: better lost than given to somebody else.
    [[maybe_unused]] const auto* const kept = new auto(std::move(registered_objects_));
    registered_objects_.clear();
}

int TransferEngine::initialize(const Text& local_hostname, const Text& metadata_server, const Text& protocol,
                               const std::optional<Text>& device_name) {
    return start("initialize", {.local_name = local_hostname,
                                .metadata = metadata_server,
                                .protocol = protocol,
                                .devices = devices_from(device_name),
                                .options = {}});
}

int TransferEngine::initialize_ext(const Text& local_hostname, const Text& metadata_server, const Text& protocol,
                                   const std::optional<Text>& device_name, const Text& metadata_type) {
    return start("initialize_ext", {.local_name = local_hostname,
                                    .metadata = metadata_from(metadata_server, metadata_type),
                                    .protocol = protocol,
                                    .devices = devices_from(device_name),
                                    .options = {}});
}

int TransferEngine::start(const char* call, EngineConfig config) {
    if (exiting()) {
        slow_down_at_exit();
        return failed(call, engine_unusable());
    }
    if (state_ != State::kNew) return failed(call, error(Code::kAlreadyExists, "it was called before on this object"));
    if (config.protocol == "xgmi") return failed(call, error(Code::kNotSupported, "protocol xgmi"));
    config.options = load_options();  // under the interpreter lock, which also guards os.environ
    config.options.transfer_timeout = transfer_timeout_;

    state_ = State::kStarting;
    Result<std::unique_ptr<Engine>> created = without_gil([&] { return create_engine(std::move(config)); });
    if (!created) {
        if (state_ == State::kStarting) state_ = State::kNew;
        return failed(call, created.error());
    }
    std::shared_ptr<Engine> engine = std::move(*created);
    close_at_exit(engine);
    engine_ = EngineRef(std::move(engine));
    if (exiting() || state_ != State::kStarting) {  // closed meanwhile by another thread
        state_ = State::kClosed;
        (void)engine_->close();  // it has done nothing yet, so this is quick
        return failed(call, why_not());
    }
    managed_ = std::make_unique<ManagedBuffers>(
        MemorySource{.allocate = [this](uint64_t length) { return engine_->allocate_memory(length); },
                     .free = [this](void* address) { return engine_->free_memory(address); }});
    state_ = State::kReady;
    return 0;
}

void TransferEngine::close() {
    state_ = State::kClosed;
    if (!engine_ || !engine_.ours() || exiting()) return;
    // Also where another thread is at it, or has failed: who returns from here takes the memory for its own.
    const Result<> closed = without_gil([this] { return engine_->close(); });
    batch_objects_.clear();
    // Some process may still be about to access what is registered: the next close() asks again, and else our end.
    if (!closed) raise_failure("close", closed.error());
    registered_objects_.clear();
}

Error TransferEngine::why_not() const {
    if (state_ == State::kClosed) return error(Code::kUnavailable, "the engine is closed");
    if (state_ != State::kReady) return error(Code::kUnavailable, "initialize() has not succeeded yet");
    return engine_unusable();
}

Engine* TransferEngine::use(const char* call) {
    if (state_ == State::kReady && engine_.ours() && !exiting()) [[likely]]
        return engine_.get();
    slow_down_at_exit();
    record_failure(call, why_not());
    return nullptr;
}

Engine& TransferEngine::require(const char* call) {
    Engine* const engine = use(call);
    if (engine == nullptr) raise_failure(call, why_not());
    return *engine;
}

// ---- identity

int TransferEngine::get_rpc_port() { return require("get_rpc_port").rpc_port(); }

InnerEngine TransferEngine::get_engine() {
    require("get_engine");
    return {engine_};
}

uintptr_t TransferEngine::get_engine_ptr() { return reinterpret_cast<uintptr_t>(&require("get_engine_ptr")); }

std::string TransferEngine::get_metrics() {
    Engine& engine = require("get_metrics");
    return without_gil([&] { return engine.metrics().to_prometheus_text(); });
}

std::string TransferEngine::get_local_topology(const std::optional<Text>& device_name) {
    constexpr const char* kCall = "get_local_topology";
    if (exiting()) raise_failure(kCall, engine_unusable());
    if (!device_name && state_ == State::kReady) {
        Engine& engine = require(kCall);
        return without_gil([&] { return engine.topology_json(); });
    }
    EngineConfig config{.local_name = "127.0.0.1", .devices = devices_from(device_name), .options = load_options()};
    const Result<std::string> topology = without_gil([&]() -> Result<std::string> {
        MC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, create_engine(std::move(config)));
        return engine->topology_json();
    });
    if (!topology) raise_failure(kCall, topology.error());
    return *topology;
}

// ---- peers

uint64_t TransferEngine::get_first_buffer_address(const Text& segment_name) {
    constexpr const char* kCall = "get_first_buffer_address";
    Engine* const engine = use(kCall);
    if (engine == nullptr) return 0;
    const auto found = without_gil([&] { return engine->describe(segment_name, 1, Deadline::after(engine->options().connect_timeout)); });
    if (!found) record_failure(kCall, found.error());
    return found && !found->buffers.empty() ? found->buffers.front().address : 0;
}

int TransferEngine::send_probe(const Text& peer_server_name) {
    constexpr const char* kCall = "send_probe";
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<> alive = without_gil([&] { return engine->probe(peer_server_name, Deadline::after(engine->options().connect_timeout)); });
    if (!alive) record_failure(kCall, alive.error());
    return public_code(alive);
}

int TransferEngine::warmup_segment(const Text& segment_name) {
    constexpr const char* kCall = "warmup_efa_segment";
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<> warm = without_gil([&] { return engine->warm_up(segment_name, Deadline::after(engine->options().connect_timeout)); });
    if (!warm) record_failure(kCall, warm.error());
    return public_code(warm);
}

std::vector<Notification> TransferEngine::get_notifies() {
    Engine& engine = require("get_notifies");
    return without_gil([&] { return engine.take_notifications(); });
}

// ---- asyncio

bool TransferEngine::watch(CompletionPort& port, BatchId batch, uint64_t token) {
    Engine* const engine = use("transfer_async");
    if (engine == nullptr) return false;
    return without_gil([&] { return engine->on_batch_done(batch, [port, token] { port.put(token); }); }).has_value();
}

bool TransferEngine::is_connected(const Text& target) {
    if (state_ != State::kReady || exiting() || !engine_.ours()) return false;
    return without_gil([&] { return engine_->connected(target); });
}

void TransferEngine::begin_cancel(BatchId batch) {
    Engine* const engine = use("transfer_async");
    if (engine != nullptr) (void)without_gil([&] { return engine->begin_cancel(batch); });
}

void TransferEngine::discard(BatchId batch) {
    Engine* const engine = use("transfer_async");
    if (engine == nullptr) return;
    (void)without_gil([&] {
        (void)engine->await_batch(batch);
        return engine->free_batch(batch);
    });
    batch_objects_.erase(batch);
}

}  // namespace mooncake::python
