// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include "store_bindings.h"

namespace mooncake::python {

using nb::literals::operator""_a;
using Config = const ReplicateConfig*;

namespace {

void bind_writes(StoreClass& store) {
    store
        .def(
            "put_from",
            [](DistributedStore& self, nb::handle key, nb::handle buffer_ptr, nb::handle size, Config config) {
                return self.put_from(key, buffer_ptr, size, config, false);
            },
            "key"_a, "buffer_ptr"_a, "size"_a, "config"_a = nb::none(),
            "As put(), with a value in memory named by its address. Returns 0 and stores nothing for size 0.")
        .def(
            "upsert_from",
            [](DistributedStore& self, nb::handle key, nb::handle buffer_ptr, nb::handle size, Config config) {
                return self.put_from(key, buffer_ptr, size, config, true);
            },
            "key"_a, "buffer_ptr"_a, "size"_a, "config"_a = nb::none(), "As put_from(), replacing a value that is there.")
        .def("put_from_with_metadata", &DistributedStore::put_with_metadata, "key"_a, "buffer_ptr"_a, "metadata_buffer_ptr"_a, "size"_a,
             "metadata_size"_a, "config"_a = nb::none(), "As put_from(), of the metadata followed by the data. -1 for misuse.")
        .def(
            "batch_put_from",
            [](DistributedStore& self, nb::handle keys, nb::handle buffer_ptrs, nb::handle sizes, Config config) {
                return self.batch_put_from(keys, buffer_ptrs, sizes, config, false);
            },
            "keys"_a, "buffer_ptrs"_a, "sizes"_a, "config"_a = nb::none(), "put_from() for each key, in one go. Returns a list of codes.")
        .def(
            "batch_upsert_from",
            [](DistributedStore& self, nb::handle keys, nb::handle buffer_ptrs, nb::handle sizes, Config config) {
                return self.batch_put_from(keys, buffer_ptrs, sizes, config, true);
            },
            "keys"_a, "buffer_ptrs"_a, "sizes"_a, "config"_a = nb::none(), "upsert_from() for each key. Returns a list of codes.")
        .def(
            "batch_put_from_multi_buffers",
            [](DistributedStore& self, nb::handle keys, nb::handle all_buffer_ptrs, nb::handle all_sizes, Config config) {
                return self.batch_put_multi(keys, all_buffer_ptrs, all_sizes, config, false);
            },
            "keys"_a, "all_buffer_ptrs"_a, "all_sizes"_a, "config"_a = nb::none(),
            "As batch_put_from(); the value of each key is its buffers one after the other. [] before setup().")
        .def(
            "_batch_upsert_from_multi_buffers",
            [](DistributedStore& self, nb::handle keys, nb::handle all_buffer_ptrs, nb::handle all_sizes, Config config) {
                return self.batch_put_multi(keys, all_buffer_ptrs, all_sizes, config, true);
            },
            "keys"_a, "all_buffer_ptrs"_a, "all_sizes"_a, "config"_a = nb::none());
}

}  // namespace

void bind_zero_copy(StoreClass& store) {
    store
        .def("register_buffer", &DistributedStore::register_buffer, "buffer_ptr"_a, "size"_a,
             "Makes memory known to the network, which then reads and writes it by itself. Returns 0 or a code.")
        .def("unregister_buffer", &DistributedStore::unregister_buffer, "buffer_ptr"_a, "Ends what register_buffer() began.");
    bind_writes(store);
    store
        .def("get_into", &DistributedStore::get_into, "key"_a, "buffer_ptr"_a, "size"_a,
             "Reads a value into memory. Returns its length, or a code: -704: there is none; -600: it is longer than `size`.")
        .def("batch_get_into", &DistributedStore::batch_get_into, "keys"_a, "buffer_ptrs"_a, "sizes"_a,
             "get_into() for each key, in one go. Returns a list of lengths and codes.")
        .def(
            "batch_get_into_multi_buffers",
            [](DistributedStore& self, nb::handle keys, nb::handle all_buffer_ptrs, nb::handle all_sizes, Truth) {
                return self.batch_get_multi(keys, all_buffer_ptrs, all_sizes);
            },
            "keys"_a, "all_buffer_ptrs"_a, "all_sizes"_a, "prefer_alloc_in_same_node"_a = false,
            "As batch_get_into(); each value fills its buffers one after the other.")
        .def("alloc_from_mem_pool", &DistributedStore::allocate_shared, "size"_a,
             "The address of memory that the node can be given by register_buffer(), until close(). 0: there is none, or this is no thin "
             "client.")
        .def("are_buffers_mapped", &DistributedStore::are_shared, "buffer_ptrs"_a,
             "Per address 1: the node that is there now has the memory registered there. Only thin clients.")
        .def("get_offload_rpc_read_count", &DistributedStore::far_disk_reads, "How many values were read from disks of peers.")
        .def("unmount_local_disk_segment", &DistributedStore::unmount_disk, "grace_period_seconds"_a = 0,
             "Takes our disk out of the pool, after so long; what lies there stays for the next time. 0, also where there is none; -1 "
             "before setup().");
}

void bind_parts(StoreClass& store) {
    store
        .def("get_into_ranges", &DistributedStore::get_into_ranges, "buffer_ptrs"_a, "all_keys"_a, "all_dst_offsets"_a, "all_src_offsets"_a,
             "all_sizes"_a,
             "Reads parts of values into registered memory: per buffer a list of keys, per key a list of parts. Returns the length or a\n"
             "negative code of every part, in the shape of all_dst_offsets.")
        .def("batch_get_session_start", &DistributedStore::open_reads, "keys"_a,
             "Finds values that will be read in parts, and keeps them for the lease time. Returns a list of codes; [] before setup(), as "
             "do the\n"
             "other calls of sessions.")
        .def("batch_get_into_multi_buffer_ranges", &DistributedStore::read_open, "keys"_a, "all_buffer_ptrs"_a, "all_sizes"_a,
             "all_src_offsets"_a,
             "Reads parts of values whose session is open. Returns per key the bytes moved or a code: -600: no session; -707: it expired.")
        .def("batch_get_session_end", &DistributedStore::close_reads, "keys"_a,
             "Ends the sessions, where they are open. Returns 0, or -1 before setup().")
        .def("batch_put_session_start", &DistributedStore::open_writes, "keys"_a, "sizes"_a, "config"_a = nb::none(),
             "Reserves space for values that will be written in parts. Returns a list of codes: -705: there is a value already; -600: a\n"
             "session is open.")
        .def("batch_put_from_multi_buffer_ranges", &DistributedStore::write_open, "keys"_a, "all_buffer_ptrs"_a, "all_sizes"_a,
             "all_dst_offsets"_a, "Writes parts of values whose session is open. Returns per key the bytes moved or a code.")
        .def(
            "batch_put_session_end", [](DistributedStore& self, nb::handle keys) { return self.close_writes(keys, false); }, "keys"_a,
            "Waits for the parts on their way and makes the values readable. Returns a list of codes: -700: some bytes were never written, "
            "and\n"
            "nothing is stored, since what lay there before would be read as part of the value; write gaps, too.")
        .def(
            "batch_put_session_revoke", [](DistributedStore& self, nb::handle keys) { return self.close_writes(keys, true); }, "keys"_a,
            "Waits for the parts on their way and gives the space back. Returns a list of codes.");
}

}  // namespace mooncake::python
