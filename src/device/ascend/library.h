// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/ascend/abi.h"

namespace mooncake::ascend {

/// The runtime (ACL), found in this process. Constant; thread-safe. Never unloaded.
struct Acl {
    abi::Runtime functions;
    std::string file;  // for people

    /// What a function answered. The text names library, function, code, device and what the library says of it.
    Error failure(const char* function, abi::AclError code, int device = -1) const;
    Result<> check(const char* function, abi::AclError code, int device = -1) const;

    /// Of the calling thread; nothing: it has none.
    int current_device() const;
    Result<int> device_count() const;
    /// The device's own context, which is made if nobody has. The thread's stays what it is.
    Result<abi::Context> context_of(int device) const;
    /// As the machine numbers it, whatever is visible here; the number itself where nobody tells.
    int physical_id(int device) const;
};

/// The runtime and one transfer library, complete as far as they are needed and checked. Constant; thread-safe.
struct Library {
    Acl acl;
    abi::Strings strings;
    abi::Engine engine;
    bool successor = false;  // HIXL
    std::string file;

    bool can_async() const { return engine.transfer_async != nullptr && engine.transfer_status != nullptr; }
    /// Whether links can be left to it: it says so, or it is of the first version that could and cannot say.
    bool can_auto_connect() const;
    /// Whether it has the engine that links a device to itself and knows no limit.
    bool can_client_server() const;
    abi::String text(const std::string& from) const;
    abi::Options options(const std::map<std::string, std::string>& from) const;
};

struct LibraryQuery {
    std::vector<std::string> files;  // in place of the vendor's names
    std::string home;                // looked in first, if not empty
    std::string api = "auto";        // "adxl", "hixl"
};

/// Loads what is needed; later calls find it again. kNotSupported, with the reason: no library, which functions are missing, or the self-check failed.
Result<std::shared_ptr<const Library>> load_library(const LibraryQuery& query);
/// The runtime, if somebody else has brought it into this process; null otherwise.
std::shared_ptr<const Acl> find_runtime(const LibraryQuery& query);

/// Makes a context the calling thread's, and the one before it again at the end. Not thread-safe.
class ContextScope {
public:
    static Result<ContextScope> enter(const Acl& acl, abi::Context context);
    ContextScope(ContextScope&& other) noexcept : acl_(other.acl_), before_(std::exchange(other.before_, nullptr)) {}
    ContextScope& operator=(ContextScope&&) = delete;
    ~ContextScope();

private:
    ContextScope(const Acl& acl, abi::Context before) : acl_(&acl), before_(before) {}

    const Acl* acl_;
    abi::Context before_;  // null: nothing to put back. A thread that had none keeps ours: the runtime cannot take it away
};

}  // namespace mooncake::ascend
