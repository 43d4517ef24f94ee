// SPDX-License-Identifier: Apache-2.0
#include "raw_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mooncake::python {

namespace {

/// process_vm_readv() and process_vm_writev() on ourselves: the kernel checks the address for us.
template <typename Copy>
Result<> copy_checked(uint64_t address, std::byte* ours, size_t length, Copy&& copy, bool to_address) {
    for (size_t done = 0; done < length;) {
        iovec local{ours + done, length - done};
        iovec named{reinterpret_cast<void*>(address + done), length - done};
        const ssize_t moved = copy(::getpid(), &local, 1ul, &named, 1ul, 0ul);
        if (moved > 0) {
            done += static_cast<size_t>(moved);
        } else if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {  // forbidden here: as trusting as any C program
            if (to_address) std::memcpy(named.iov_base, local.iov_base, local.iov_len);
            else std::memcpy(local.iov_base, named.iov_base, local.iov_len);
            done = length;
        } else {
            return fail_errno(Code::kInvalidArgument, moved < 0 ? errno : EFAULT, "no usable memory at {:#x}", address + done);
        }
    }
    return {};
}

}  // namespace

Result<> copy_to_address(uint64_t address, const void* source, size_t length) {
    return copy_checked(address, static_cast<std::byte*>(const_cast<void*>(source)), length, ::process_vm_writev, true);
}

Result<> copy_from_address(void* destination, uint64_t address, size_t length) {
    return copy_checked(address, static_cast<std::byte*>(destination), length, ::process_vm_readv, false);
}

}  // namespace mooncake::python
