// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/ascend/library.h"

namespace mooncake::ascend::testing {

/// The libraries of a tier of CANN without hardware (tests/emulators/ascend), as a program that uses them sees them. One tier in a process is enough
/// for most tests: 92. Thread-safe.
class Emulator {
public:
    /// Loads it, as a program would that has brought it along.
    explicit Emulator(int tier = 92);

    static std::string file_of(int tier);
    LibraryQuery query(const std::string& api = "adxl") const { return {.files = {file_}, .api = api}; }
    std::shared_ptr<const Library> library() const { return load_library(query()).value(); }

    /// Makes it the calling thread's.
    void set_device(int device) const;
    int device_of_thread() const;
    /// On that device, whatever the thread's is.
    std::byte* allocate(int device, uint64_t length) const;
    void free(std::byte* memory) const;
    std::byte* allocate_host(uint64_t length) const;
    void free_host(std::byte* memory) const;
    /// What a program on the device would see and do.
    void write(std::byte* to, std::span<const std::byte> from) const;
    std::vector<std::byte> read(const std::byte* from, uint64_t length) const;

    /// See tests/emulators/ascend/control.cpp. Takes the place of all rules before.
    void set_faults(const std::string& rules) const;
    /// Ends what hangs.
    void release() const;
    long hanging() const;
    /// Calls since the log was cleared, one for each line.
    std::vector<std::string> log() const;
    void clear_log() const;
    /// How many lines of the log begin with it.
    size_t calls(const std::string& function) const;

private:
    void* find(const char* name) const;

    const std::string file_;
    void* handle_ = nullptr;
};

}  // namespace mooncake::ascend::testing
