// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/testing/emulator.h"

#include <dlfcn.h>

#include <algorithm>
#include <sstream>

#include "base/log.h"

namespace mooncake::ascend::testing {

namespace {

template <typename Function>
Function as(void* symbol) {
    return reinterpret_cast<Function>(symbol);
}

}  // namespace

std::string Emulator::file_of(int tier) { return format_text("{}/ascend_{}.so", ASCEND_EMULATORS, tier); }

Emulator::Emulator(int tier) : file_(file_of(tier)), handle_(::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    MC_CHECK(handle_ != nullptr);
    set_faults("");
    clear_log();
}

void* Emulator::find(const char* name) const {
    void* const found = ::dlsym(handle_, name);
    MC_CHECK(found != nullptr);
    return found;
}

void Emulator::set_device(int device) const { MC_CHECK(as<int (*)(int32_t)>(find("aclrtSetDevice"))(device) == 0); }

int Emulator::device_of_thread() const {
    int32_t device = -1;
    return as<int (*)(int32_t*)>(find("aclrtGetDevice"))(&device) == 0 ? device : -1;
}

std::byte* Emulator::allocate(int device, uint64_t length) const {
    const int before = device_of_thread();
    set_device(device);
    void* memory = nullptr;
    MC_CHECK(as<int (*)(void**, size_t, int)>(find("aclrtMalloc"))(&memory, length, 0) == 0);
    if (before >= 0) set_device(before);
    return static_cast<std::byte*>(memory);
}

void Emulator::free(std::byte* memory) const { MC_CHECK(as<int (*)(void*)>(find("aclrtFree"))(memory) == 0); }

std::byte* Emulator::allocate_host(uint64_t length) const {
    void* memory = nullptr;
    MC_CHECK(as<int (*)(void**, size_t)>(find("aclrtMallocHost"))(&memory, length) == 0);
    return static_cast<std::byte*>(memory);
}

void Emulator::free_host(std::byte* memory) const { MC_CHECK(as<int (*)(void*)>(find("aclrtFreeHost"))(memory) == 0); }

void Emulator::write(std::byte* to, std::span<const std::byte> from) const {
    MC_CHECK(as<int (*)(void*, const void*, size_t)>(find("ascend_emu_poke"))(to, from.data(), from.size()) == 0);
}

std::vector<std::byte> Emulator::read(const std::byte* from, uint64_t length) const {
    std::vector<std::byte> bytes(length);
    MC_CHECK(as<int (*)(void*, const void*, size_t)>(find("ascend_emu_peek"))(bytes.data(), from, length) == 0);
    return bytes;
}

void Emulator::set_faults(const std::string& rules) const { as<void (*)(const char*)>(find("ascend_emu_faults"))(rules.c_str()); }
void Emulator::release() const { as<void (*)()>(find("ascend_emu_release"))(); }
long Emulator::hanging() const { return as<long (*)()>(find("ascend_emu_hanging"))(); }
void Emulator::clear_log() const { as<void (*)()>(find("ascend_emu_clear_log"))(); }

std::vector<std::string> Emulator::log() const {
    const auto get = as<size_t (*)(char*, size_t)>(find("ascend_emu_log"));
    std::string text(get(nullptr, 0) + 4096, '\0');
    const size_t length = std::min(get(text.data(), text.size()), text.size() - 1);
    text.resize(length);
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

size_t Emulator::calls(const std::string& function) const {
    const auto lines = log();
    return static_cast<size_t>(
        std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(function + " "); }));
}

}  // namespace mooncake::ascend::testing
