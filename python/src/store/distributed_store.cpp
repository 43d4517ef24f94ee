// SPDX-License-Identifier: Apache-2.0
#include "distributed_store.h"

#include <utility>

#include "base/log.h"
#include "base/options.h"
#include "failures.h"
#include "metrics/metrics.h"
#include "store/bridge/client/thin_client.h"
#include "store/process/offload_options.h"

namespace mooncake::python {

namespace {

constexpr int kInvalid = static_cast<int>(StoreCode::kInvalidParams);
constexpr const char* kCapsuleName = "mooncake.PyClient.shared_ptr";

void log_effective(const store::StoreConfig& config) {
    std::string devices;
    for (const std::string& device : config.devices) devices += (devices.empty() ? "" : ",") + device;
    const std::string text = format_text(
        "store: local_hostname {}, metadata_server {}, global_segment_size {}, local_buffer_size {}, protocol {}, rdma_devices {}, "
        "master_server_addr {}, tenant_id {}, client http {}, engine {}, checksums {}, ssd {}",
        config.local_hostname, config.metadata_server, config.segment_bytes, config.buffer_bytes, config.protocol,
        devices.empty() ? "all" : devices, config.master, config.tenant, config.http_server ? std::to_string(config.http_port) : "off",
        config.engine ? "given" : "own", config.options.checksum ? "on" : "off", config.disk.path.empty() ? "off" : config.disk.path);
    log_from_python(LogLevel::kInfo, text);
}

}  // namespace

std::string_view host_of(std::string_view name) { return name.substr(0, name.rfind(':')); }

// ---- life

int DistributedStore::begin_setup() {
    constexpr const char* kCall = "setup";
    if (exiting()) {
        slow_down_at_exit();
        record_failure(kCall, engine_unusable());
        return static_cast<int>(StoreCode::kUnavailableInCurrentStatus);
    }
    if (state_ == State::kStarting) {
        record_failure(kCall, error(Code::kAlreadyExists, "another thread is just setting the store up"));
        return kInvalid;
    }
    if (state_ == State::kReady) {
        log_from_python(LogLevel::kWarning, "store: setup of a store that is set up; it is closed first");
        close();
        if (state_ != State::kNew) return kInvalid;  // another thread was quicker
    }
    return 0;
}

int DistributedStore::setup(Setup setup) {
    if (const int code = begin_setup(); code != 0) return code;
    store::StoreConfig config{.local_hostname = std::move(setup.local_hostname),
                              .metadata_server = std::move(setup.metadata_server),
                              .segment_bytes = setup.segment_bytes,
                              .buffer_bytes = setup.buffer_bytes,
                              .protocol = std::move(setup.protocol),
                              .devices = std::move(setup.devices),
                              .master = std::move(setup.master),
                              .tenant = std::move(setup.tenant),
                              .http_server = setup.http_server,
                              .http_port = setup.http_port,
                              .engine = std::move(setup.engine),
                              .options = store::load_store_options(process_environment())};
    if (!setup.warm_dir.empty()) config.options.warm_dir = std::move(setup.warm_dir);
    if (setup.warm_keep) config.options.warm_keep = *setup.warm_keep;
    if (setup.disk) {
        auto disk = store::load_disk_config(process_environment(), setup.disk_path);
        if (!disk) {
            log_from_python(LogLevel::kError, format_text("store: setup is refused: {}", disk.error().message()));
            return kInvalid;
        }
        config.disk = std::move(*disk);
    }
    log_effective(config);
    state_ = State::kStarting;
    return finish_setup(without_gil([&] { return store::StoreClient::create(std::move(config)); }));
}

int DistributedStore::setup_thin(uint64_t buffer_bytes, std::string server_address) {
    if (const int code = begin_setup(); code != 0) return code;
    store::bridge::ThinConfig config{.buffer_bytes = buffer_bytes,
                                     .server_address = std::move(server_address),
                                     .options = store::load_store_options(process_environment())};
    state_ = State::kStarting;
    return finish_setup(without_gil([&] { return store::bridge::ThinClient::create(std::move(config)); }));
}

int DistributedStore::finish_setup(Made created) {
    if (!created) {
        if (state_ == State::kStarting) state_ = State::kNew;
        const StoreCode code = created.error();
        log_from_python(LogLevel::kError,
                        format_text("store: setup failed with {} {}", static_cast<int>(code), store::store_code_name(code)));
        return static_cast<int>(created.error());
    }
    std::shared_ptr<store::StoreClient> client = std::move(*created);
    close_at_exit(client);
    StoreRef reference(std::move(client));
    if (exiting() || state_ != State::kStarting) {  // closed meanwhile by another thread
        state_ = State::kNew;
        if (!exiting()) without_gil([&] { return reference->close(), 0; });
        return static_cast<int>(StoreCode::kUnavailableInCurrentStatus);
    }
    client_ = std::move(reference);
    state_ = State::kReady;
    return 0;
}

int DistributedStore::close() {
    state_ = State::kNew;
    StoreRef client = std::move(client_);
    if (!client || exiting() || !client.ours()) return 0;
    without_gil([&] { return client->close(), 0; });
    return 0;
}

StoreRef DistributedStore::use(const char* call) const {
    if (client_ && client_.ours() && !exiting()) [[likely]]
        return client_;
    slow_down_at_exit();
    record_failure(call, client_ ? engine_unusable() : error(Code::kUnavailable, "setup() has not succeeded yet"));
    return {};
}

int DistributedStore::health_check() {
    if (!client_ || !client_.ours() || exiting()) return 1;
    const StoreRef client = client_;
    return without_gil([&] { return client->master_reachable(); }) ? 0 : 2;
}

std::string DistributedStore::get_hostname() const { return client_ ? client_->name() : std::string(); }

uint64_t DistributedStore::buffer_bytes() const { return client_ ? client_->config().buffer_bytes : 0; }

std::string DistributedStore::get_metrics() const {
    const StoreRef client = use("get_metrics");
    if (!client) return {};
    return without_gil([&] { return client->metrics().to_prometheus_text(); });
}

nb::object DistributedStore::capsule() const {
    if (!client_ || !client_.ours()) return nb::none();
    return nb::capsule(new StoreRef(client_), kCapsuleName, [](void* reference) noexcept { delete static_cast<StoreRef*>(reference); });
}

// ---- blocks

Block::Block(StoreRef client, store::StagingBuffer staged, uint64_t size)
    : client_(std::move(client)), staged_(std::move(staged)), data_(staged_.data()), size_(size) {}

Block::Block(StoreRef client, uint64_t size, uint64_t alignment) : client_(std::move(client)), size_(size) {
    own_ = static_cast<std::byte*>(std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
    if (own_ == nullptr) return;
    const StoreCode code = without_gil([this] { return client_->register_buffer(own_, size_); });
    if (code == StoreCode::kOk) {
        data_ = own_;
    } else {
        std::free(std::exchange(own_, nullptr));
    }
}

void Block::release() noexcept {
    data_ = nullptr;
    if (!client_) return;
    if (!client_.ours()) {  // nobody else will use that memory in this process
        [[maybe_unused]] const auto* const kept_for_ever = new store::StagingBuffer(std::move(staged_));
    } else {
        staged_ = {};
        if (own_ != nullptr && !exiting()) without_gil([this] { return client_->unregister_buffer(own_); });
        std::free(std::exchange(own_, nullptr));
    }
    client_.reset();
}

}  // namespace mooncake::python
