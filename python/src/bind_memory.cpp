// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace mooncake::python {

using nb::literals::operator""_a;

static void bind_registration(EngineClass& engine) {
    engine
        .def("register_memory", &TransferEngine::register_memory, "buffer_addr"_a, "capacity"_a = nb::none(), "location"_a = "*",
             nb::sig("def register_memory(self, buffer_addr: int | Buffer, capacity: int | None = None, location: str = '*') -> int"),
             "Lets peers read and write memory. Returns 0, -7 when it overlaps other registered memory, -1 or another negative number.\n\n"
             "buffer_addr: an address, or an object with the buffer protocol or DLPack, which is kept alive until unregistered.\n"
             "capacity: the length in bytes; that of the object if left out.\n"
             "location: where the memory is, \"cpu:0\"; \"*\" finds out.")
        .def("unregister_memory", &TransferEngine::unregister_memory, "buffer_addr"_a,
             nb::sig("def unregister_memory(self, buffer_addr: int | Buffer) -> int"),
             "Takes the memory back: once it returned 0, no peer touches it any more. -3 if it is not registered.")
        .def("batch_register_memory", &TransferEngine::batch_register_memory, "buffer_addresses"_a, "capacities"_a = nb::none(),
             "location"_a = "*",
             nb::sig("def batch_register_memory(self, buffer_addresses: Sequence[int | Buffer], capacities: Sequence[int] | None = None, "
                     "location: str = '*') -> int"),
             "Registers several ranges, all or none. Returns 0 or a negative number.")
        .def("batch_unregister_memory", &TransferEngine::batch_unregister_memory, "buffer_addresses"_a,
             nb::sig("def batch_unregister_memory(self, buffer_addresses: Sequence[int | Buffer]) -> int"),
             "Takes several ranges back; goes on after a failure and returns the first, else 0.");
}

void bind_memory(EngineClass& engine) {
    bind_registration(engine);
    engine
        .def("allocate_managed_buffer", &TransferEngine::allocate_managed_buffer, "length"_a,
             nb::sig("def allocate_managed_buffer(self, length: int) -> int"),
             "Registered memory of at least `length` bytes, fast to reach for peers on this host. Returns its address, or 0.")
        .def("free_managed_buffer", &TransferEngine::free_managed_buffer, "buffer_addr"_a, "length"_a,
             nb::sig("def free_managed_buffer(self, buffer_addr: int, length: int) -> int"),
             "Gives back what allocate_managed_buffer(length) returned. Returns 0, -3 for an unknown address, -1 for another length.")
        .def("write_bytes_to_buffer", &TransferEngine::write_bytes_to_buffer, "dest_address"_a, "src"_a, "length"_a = nb::none(),
             nb::sig("def write_bytes_to_buffer(self, dest_address: int, src: bytes | str | Buffer, length: int | None = None) -> int"),
             "Copies the first `length` bytes of src (all if left out) to an address of this process. Returns 0, or -1 where no memory is.")
        .def("read_bytes_from_buffer", &TransferEngine::read_bytes_from_buffer, "source_address"_a, "length"_a,
             nb::sig("def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes"),
             "The `length` bytes at an address of this process. ValueError where no memory is.");
}

}  // namespace mooncake::python
