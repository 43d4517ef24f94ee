// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/library.h"

#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <map>
#include <new>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "device/library_loads.h"

namespace mooncake::ascend {

namespace {

#if defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
#else
constexpr const char* kArchitecture = "x86_64";
#endif

using Handles = std::vector<std::pair<std::string, void*>>;

void* find_symbol(const Handles& handles, const std::string& name) {
    for (const auto& [file, handle] : handles)
        if (void* const found = ::dlsym(handle, name.c_str())) return found;
    return nullptr;
}

template <typename Function>
bool find_function(const Handles& handles, const std::string& name, Function& function) {
    void* const found = find_symbol(handles, name);
    std::memcpy(&function, &found, sizeof found);
    return found != nullptr;
}

/// The name of the first that is missing; empty: all are there.
std::string bind_runtime(const Handles& handles, abi::Runtime& f) {
    std::string missing;
    const auto need = [&](const char* name, auto& function) {
        if (!find_function(handles, name, function) && missing.empty()) missing = name;
    };
    need("aclrtGetDeviceCount", f.get_device_count);
    need("aclrtGetDevice", f.get_device);
    need("aclrtSetDevice", f.set_device);
    need("aclrtGetCurrentContext", f.get_context);
    need("aclrtSetCurrentContext", f.set_context);
    need("aclrtCreateStreamWithConfig", f.create_stream);
    need("aclrtDestroyStream", f.destroy_stream);
    need("aclrtSynchronizeStreamWithTimeout", f.synchronize);
    need("aclrtMemcpy", f.copy);
    need("aclrtMemcpyAsync", f.copy_async);
    need("aclrtMallocHost", f.allocate_host);
    need("aclrtFreeHost", f.free_host);
    need("aclrtPointerGetAttributes", f.pointer_attributes);
    find_function(handles, "aclGetRecentErrMsg", f.recent_error);
    find_function(handles, "aclrtGetPhyDevIdByLogicDevId", f.physical_id);
    find_function(handles, "aclrtGetLogicDevIdByUserDevId", f.logical_id);
    find_function(handles, "aclrtStreamAbort", f.abort_stream);
    find_function(handles, "aclrtMemcpyBatch", f.copy_batch);
    find_function(handles, "aclrtMalloc", f.allocate);
    find_function(handles, "aclrtFree", f.free);
    find_function(handles, "aclrtMallocPhysical", f.allocate_physical);
    find_function(handles, "aclrtFreePhysical", f.free_physical);
    find_function(handles, "aclrtReserveMemAddress", f.reserve);
    find_function(handles, "aclrtReleaseMemAddress", f.release);
    find_function(handles, "aclrtMapMem", f.map);
    find_function(handles, "aclrtUnmapMem", f.unmap);
    find_function(handles, "aclrtMemSetAccess", f.set_access);
    return missing;
}

std::string bind_engine(const Handles& handles, const std::string& prefix, abi::Engine& f) {
    std::string missing;
    const auto need = [&](const char* method, auto& function) {
        if (!find_function(handles, prefix + method, function) && missing.empty()) missing = prefix + method;
    };
    namespace m = abi::methods;
    need(m::kConstruct, f.construct);
    need(m::kDestroy, f.destroy);
    need(m::kInitialize, f.initialize);
    need(m::kFinalize, f.finalize);
    need(m::kRegister, f.register_memory);
    need(m::kDeregister, f.deregister_memory);
    need(m::kConnect, f.connect);
    need(m::kDisconnect, f.disconnect);
    need(m::kTransfer, f.transfer);
    find_function(handles, prefix + m::kTransferAsync, f.transfer_async);
    find_function(handles, prefix + m::kTransferStatus, f.transfer_status);
    find_function(handles, prefix + m::kAllocate, f.allocate);
    find_function(handles, prefix + m::kFree, f.free);
    find_function(handles, prefix + m::kCapability, f.capability);
    return missing;
}

std::string bind_strings(const Handles& handles, abi::Strings& f) {
    if (!find_function(handles, abi::kStringConstruct, f.construct)) return abi::kStringConstruct;
    if (!find_function(handles, abi::kStringText, f.text)) return abi::kStringText;
    if (!find_function(handles, abi::kStringLess, f.less)) return abi::kStringLess;
    return {};
}

/// One of each group is needed; the earlier name is the better.
using Groups = std::vector<std::vector<std::string>>;

Groups groups_of(const LibraryQuery& query, bool runtime_only) {
    Groups groups;
    if (!query.files.empty()) {
        for (const std::string& file : query.files) groups.push_back({file});
        return groups;
    }
    groups.push_back({"libascendcl.so", "libacl_rt.so"});
    if (runtime_only) return groups;
    groups.push_back({"libmetadef.so", "libgraph_base.so", "libgraph.so"});
    if (query.api == "hixl") groups.push_back({"libcann_hixl.so"});
    else groups.push_back({"libllm_datadist.so", "libadxl.so"});
    return groups;
}

std::vector<std::string> folders_of(const LibraryQuery& query) {
    if (!query.files.empty()) return {""};
    std::vector<std::string> folders;
    if (!query.home.empty()) folders.push_back(query.home + "/lib64/");
    folders.push_back(format_text("/usr/local/Ascend/ascend-toolkit/latest/{}-linux/lib64/", kArchitecture));
    folders.emplace_back("/usr/local/Ascend/cann/lib64/");
    folders.emplace_back("");
    return folders;
}

Result<Handles> open_files(const LibraryQuery& query, bool runtime_only, int flags) {
    Handles handles;
    for (const auto& group : groups_of(query, runtime_only)) {
        std::string refused;
        bool found = false;
        for (const std::string& name : group) {
            for (const std::string& folder : folders_of(query)) {
                const std::string file = folder + name;
                if (void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags)) {
                    handles.emplace_back(file, handle);
                    found = true;
                    break;
                }
                // The last is the loader's own search; another says more only where the file is there.
                if (const char* const why = ::dlerror(); why != nullptr && refused.empty()) refused = why;
                else if (why != nullptr && folder.empty()) refused += std::string("; ") + why;
            }
            if (found) break;
        }
        if (!found) return fail(Code::kNotSupported, "no library: {}", refused);
    }
    return handles;
}

/// Whether strings are what we take them for.
Result<> self_check(const Library& library) {
    constexpr const char *kOne = "mooncake", *kOther = "a longer text that no small buffer holds";
    const abi::String one = library.text(kOne), other = library.text(kOther);
    const bool same = std::strcmp(library.strings.text(&one), kOne) == 0 && std::strcmp(library.strings.text(&other), kOther) == 0;
    const bool ordered = library.strings.less(&other, &one) && !library.strings.less(&one, &other);
    if (!same || !ordered) return fail(Code::kNotSupported, "self-check failed: {} has other strings than we know", library.file);
    return {};
}

Result<std::shared_ptr<const Library>> load(const LibraryQuery& query) {
    auto library = std::make_shared<Library>();
    MC_ASSIGN_OR_RETURN(const Handles handles, open_files(query, false, 0));
    library->acl.file = handles.front().first;
    library->file = handles.back().first;
    std::string missing = bind_runtime(handles, library->acl.functions);
    if (missing.empty()) missing = bind_strings(handles, library->strings);
    if (!missing.empty()) return fail(Code::kNotSupported, "{} lacks {}", library->file, missing);
    library->successor = query.api == "hixl";
    if (query.api != "hixl") missing = bind_engine(handles, "_ZN4adxl10AdxlEngine", library->engine);
    if (query.api == "hixl" || (query.api == "auto" && !missing.empty())) {
        const std::string second = bind_engine(handles, "_ZN4hixl4Hixl", library->engine);
        library->successor = true;
        if (query.api == "hixl" || second.empty()) missing = second;
    }
    if (!missing.empty()) return fail(Code::kNotSupported, "{} lacks {}", library->file, missing);
    abi::StringLess::function = library->strings.less;
    MC_RETURN_IF_ERROR(self_check(*library));
    return library;
}

struct Loaded {
    Mutex mutex;
    std::map<std::string, std::shared_ptr<const Library>> libraries MC_GUARDED_BY(mutex);
    std::map<std::string, std::shared_ptr<const Acl>> runtimes MC_GUARDED_BY(mutex);
    std::map<std::string, uint64_t> missing_at MC_GUARDED_BY(mutex);  // how much had been loaded when a runtime was not there
};

Loaded& loaded() {
    static Loaded& only = *new Loaded;  // never unloaded: their threads may run until the end
    return only;
}

std::string key_of(const LibraryQuery& query) {
    std::string key = query.api + "|" + query.home;
    for (const std::string& file : query.files) key += "|" + file;
    return key;
}

}  // namespace

Result<std::shared_ptr<const Library>> load_library(const LibraryQuery& query) {
    Lock lock(loaded().mutex);
    const std::string key = key_of(query);
    if (const auto found = loaded().libraries.find(key); found != loaded().libraries.end()) return found->second;
    MC_ASSIGN_OR_RETURN(auto library, load(query));
    loaded().libraries[key] = library;
    return library;
}

std::shared_ptr<const Acl> find_runtime(const LibraryQuery& query) {
    Lock lock(loaded().mutex);
    const std::string key = key_of(query);
    if (const auto found = loaded().runtimes.find(key); found != loaded().runtimes.end()) return found->second;
    const uint64_t loads = library_loads();
    if (const auto missing = loaded().missing_at.find(key); missing != loaded().missing_at.end() && missing->second == loads)
        return nullptr;
    const auto handles = open_files(query, true, RTLD_NOLOAD);
    if (!handles) {
        if (loads != 0) loaded().missing_at[key] = loads;
        return nullptr;
    }
    auto acl = std::make_shared<Acl>();
    acl->file = handles->front().first;
    if (const std::string missing = bind_runtime(*handles, acl->functions); !missing.empty()) {
        MC_LOG_WARNING("{} lacks {}: memory of NPUs is not recognised", acl->file, missing);
        acl.reset();
    }
    loaded().runtimes[key] = acl;
    return acl;
}

Error Acl::failure(const char* function, abi::AclError code, int device) const {
    const char* const said = functions.recent_error == nullptr ? nullptr : functions.recent_error();
    const Code meaning = code == abi::kAclNoMemory                                       ? Code::kNoSpace
                         : code == abi::kAclNotSupported                                 ? Code::kNotSupported
                         : code == abi::kAclParamInvalid || code == abi::kAclContextNull ? Code::kInvalidArgument
                                                                                         : Code::kUnavailable;
    return error(meaning, "{}: {} on device {} answered {}{}{}", file, function, device, code, said == nullptr ? "" : ": ",
                 said == nullptr ? "" : said);
}

Result<> Acl::check(const char* function, abi::AclError code, int device) const {
    if (code == abi::kAclNone) return {};
    return Unexpected(failure(function, code, device));
}

int Acl::current_device() const {
    int32_t device = -1;
    return functions.get_device(&device) == abi::kAclNone ? device : -1;
}

Result<int> Acl::device_count() const {
    uint32_t count = 0;
    MC_RETURN_IF_ERROR(check("aclrtGetDeviceCount", functions.get_device_count(&count)));
    return static_cast<int>(count);
}

Result<abi::Context> Acl::context_of(int device) const {
    abi::Context before = nullptr, made = nullptr;
    if (functions.get_context(&before) != abi::kAclNone) before = nullptr;
    MC_RETURN_IF_ERROR(check("aclrtSetDevice", functions.set_device(device), device));
    const auto got = check("aclrtGetCurrentContext", functions.get_context(&made), device);
    if (before != nullptr) (void)functions.set_context(before);
    if (!got) return Unexpected(got.error());
    return made;
}

int Acl::physical_id(int device) const {
    int32_t logical = device, physical = device;
    if (functions.physical_id == nullptr || functions.physical_id(logical, &physical) != abi::kAclNone) return device;
    return physical;
}

bool Library::can_auto_connect() const {
    if (engine.capability == nullptr) return engine.allocate != nullptr;
    int32_t value = 0;
    return engine.capability(abi::kFeatureAutoConnect, value) == abi::kSuccess && value == 1;
}

bool Library::can_client_server() const {
    int32_t value = 0;
    return engine.capability != nullptr && engine.capability(abi::kFeatureClientServer, value) == abi::kSuccess && value == 1;
}

abi::String Library::text(const std::string& from) const {
    abi::String made;
    made.text.~shared_ptr();
    strings.construct(&made, from.c_str());
    return made;
}

abi::Options Library::options(const std::map<std::string, std::string>& from) const {
    abi::Options made;
    for (const auto& [key, value] : from) made.emplace(text(key), text(value));
    return made;
}

Result<ContextScope> ContextScope::enter(const Acl& acl, abi::Context context) {
    abi::Context before = nullptr;
    if (acl.functions.get_context(&before) != abi::kAclNone) before = nullptr;
    if (before == context) return ContextScope(acl, nullptr);
    MC_RETURN_IF_ERROR(acl.check("aclrtSetCurrentContext", acl.functions.set_context(context)));
    return ContextScope(acl, before);
}

ContextScope::~ContextScope() {
    if (before_ != nullptr) (void)acl_->functions.set_context(before_);
}

}  // namespace mooncake::ascend
