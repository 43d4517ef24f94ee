// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interpreter.h"
#include "replicate_config.h"
#include "store/process/store_client.h"
#include "store_arguments.h"

namespace mooncake::python {

using StoreRef = NativeRef<store::StoreClient>;
using store::StoreCode;

/// A piece of the store's staging memory, or memory registered for this one purpose, in the hands of Python objects. The interpreter
/// lock guards it.
class Block {
public:
    Block(StoreRef client, store::StagingBuffer staged, uint64_t size);
    /// Memory of our own, registered with the client. Null data when there is none or it cannot be registered.
    Block(StoreRef client, uint64_t size, uint64_t alignment);
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() { release(); }

    std::byte* data() const noexcept { return data_; }
    uint64_t size() const noexcept { return size_; }
    int exports() const noexcept { return exports_; }
    void exported(int change) noexcept { exports_ += change; }
    void release() noexcept;

private:
    StoreRef client_;
    store::StagingBuffer staged_;
    std::byte* own_ = nullptr;
    std::byte* data_ = nullptr;
    uint64_t size_ = 0;
    int exports_ = 0;  // views that others have of it
};
/// A value that was read, until the object goes.
struct BufferHandle : Block {
    using Block::Block;
};

struct Replica {
    store::ReplicaInfo info;
};

/// The Python class MooncakeDistributedStore. Every method is entered and left with the interpreter lock, which guards the fields, and
/// gives it up wherever it may block. Calls keep a reference of their own, so that close() may happen at any time.
///
/// Answers are the store's numbers. Before setup() and after close() they are -600, or what the method says. A second setup() leaves the
/// pool before it joins anew.
class DistributedStore {
public:
    struct Setup {
        std::string local_hostname, metadata_server;
        uint64_t segment_bytes = 0, buffer_bytes = 0;
        std::string protocol;
        std::vector<std::string> devices;
        std::string master, tenant;
        bool http_server = false;
        uint16_t http_port = 9300;
        bool disk = false;
        std::string disk_path, warm_dir;  // empty: what the environment says
        std::optional<bool> warm_keep;    // the same
        std::shared_ptr<Engine> engine;
    };

    DistributedStore() = default;
    DistributedStore(const DistributedStore&) = delete;
    DistributedStore& operator=(const DistributedStore&) = delete;

    // ---- life
    int setup(Setup setup);
    int setup_thin(uint64_t buffer_bytes, std::string server_address);
    int close();
    int health_check();
    bool is_set_up() const noexcept { return static_cast<bool>(client_); }
    std::string get_hostname() const;
    uint64_t buffer_bytes() const;
    nb::object capsule() const;
    std::string get_metrics() const;

    // ---- values
    int put(nb::handle key, nb::handle value, const ReplicateConfig* config, bool replace);
    int put_batch(nb::handle keys, nb::handle values, const ReplicateConfig* config, bool replace);
    int put_parts(nb::handle key, nb::handle parts, const ReplicateConfig* config, bool replace);
    nb::object get(nb::handle key);
    nb::list get_batch(nb::handle keys);
    nb::list get_buffers(nb::handle keys);
    int is_exist(nb::handle key);
    nb::list batch_is_exist(nb::handle keys);
    int64_t get_size(nb::handle key);
    nb::list batch_get_size(nb::handle keys);
    int remove(nb::handle key, bool force);
    nb::list batch_remove(nb::handle keys, bool force);
    int64_t remove_by_regex(nb::handle pattern, bool force);
    int64_t remove_all(bool force);

    // ---- without copies
    int register_buffer(nb::handle address, nb::handle size);
    int unregister_buffer(nb::handle address);
    int put_from(nb::handle key, nb::handle address, nb::handle size, const ReplicateConfig* config, bool replace);
    int put_with_metadata(nb::handle key, nb::handle address, nb::handle metadata_address, nb::handle size, nb::handle metadata_size,
                          const ReplicateConfig* config);
    nb::list batch_put_from(nb::handle keys, nb::handle addresses, nb::handle sizes, const ReplicateConfig* config, bool replace);
    /// `same_node`: whether the configuration may ask for that.
    nb::list batch_put_multi(nb::handle keys, nb::handle addresses, nb::handle sizes, const ReplicateConfig* config, bool replace);
    int64_t get_into(nb::handle key, nb::handle address, nb::handle size);
    nb::list batch_get_into(nb::handle keys, nb::handle addresses, nb::handle sizes);
    nb::list batch_get_multi(nb::handle keys, nb::handle addresses, nb::handle sizes);
    uintptr_t allocate_shared(uint64_t size);
    nb::list are_shared(nb::handle addresses);
    std::unique_ptr<Block> stage(uint64_t size);
    std::unique_ptr<Block> allocate(uint64_t size, uint64_t alignment);

    // ---- parts
    nb::list get_into_ranges(nb::handle buffers, nb::handle keys, nb::handle to_offsets, nb::handle from_offsets, nb::handle sizes);
    nb::list open_reads(nb::handle keys);
    nb::list read_open(nb::handle keys, nb::handle addresses, nb::handle sizes, nb::handle offsets);
    int close_reads(nb::handle keys);
    nb::list open_writes(nb::handle keys, nb::handle sizes, const ReplicateConfig* config);
    nb::list write_open(nb::handle keys, nb::handle addresses, nb::handle sizes, nb::handle offsets);
    nb::list close_writes(nb::handle keys, bool revoke);

    // ---- segments, replicas, tasks
    nb::dict mount_file(const store::FileToMount& file);
    nb::dict mount_memory(nb::handle size, const std::string& protocol, const std::string& location);
    int unmount(nb::handle ids, nb::handle grace_s);
    int unmount_disk(uint64_t grace_s);
    uint64_t far_disk_reads();
    nb::list get_replicas(nb::handle key);
    nb::dict batch_get_replicas(nb::handle keys);
    nb::list replica_clear(nb::handle keys, const std::string& segment_name);
    nb::tuple create_task(store::TaskType type, nb::handle key, const std::string& source, std::vector<std::string> targets);
    nb::tuple query_task(nb::handle id);

private:
    enum class State : uint8_t { kNew, kStarting, kReady };

    using Made = tl::expected<std::unique_ptr<store::StoreClient>, StoreCode>;
    /// What the ways to set a store up have in common: 0: it may go on.
    int begin_setup();
    int finish_setup(Made created);
    /// The client, or nothing with the reason logged.
    StoreRef use(const char* call) const;
    /// Writes what `pieces` says; null addresses are refused per key.
    std::vector<StoreCode> write(const StoreRef& client, const KeyList& keys, const PieceLists& pieces, const WriteOptions& options,
                                 bool replace);
    nb::list read(const StoreRef& client, const KeyList& keys, const PieceLists& pieces);

    State state_ = State::kNew;
    StoreRef client_;
};

/// "host:port" -> "host"
std::string_view host_of(std::string_view name);

}  // namespace mooncake::python
