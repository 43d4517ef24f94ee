// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "apps/common/flags_master.h"
#include "base/error.h"
#include "base/thread_annotations.h"
#include "coordination/directory.h"
#include "coordination/http/metadata_service.h"
#include "net/http_server.h"
#include "store/admin/http_admin.h"
#include "store/admin/metadata_cleaner.h"
#include "store/service/master_server.h"

namespace mooncake::store {

/// The master with its servers and what it does now and then. Stops when destroyed.
class MasterProgram {
public:
    /// Everything serves when this returns. The error names the port or the file that is to blame.
    static Result<std::unique_ptr<MasterProgram>> start(const MasterFlags& flags);
    ~MasterProgram();

    uint16_t port() const noexcept { return master_->port(); }
    uint16_t admin_port() const noexcept { return admin_server_->port(); }

private:
    explicit MasterProgram(const MasterFlags& flags) : flags_(flags) {}

    Result<> start_master();
    Result<> start_admin();
    Result<> start_metadata();
    Result<> start_cleaner();
    Result<> remove_metadata(const std::string& key);
    /// A thread that calls `body` once per interval until the end.
    std::jthread repeat(const std::string& name, Duration interval, std::function<void()> body);

    const MasterFlags flags_;
    std::unique_ptr<MasterServer> master_;
    std::optional<AdminService> admin_;
    std::unique_ptr<net::HttpServer> admin_server_;
    MetadataService metadata_;
    std::unique_ptr<net::HttpServer> metadata_server_;
    std::unique_ptr<Directory> directory_;  // of a metadata server elsewhere
    std::optional<MetadataCleaner> cleaner_;
    Mutex mutex_;
    std::condition_variable_any woken_;
    std::jthread reporting_, cleaning_;
};

}  // namespace mooncake::store
