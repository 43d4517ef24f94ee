// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "probe.h"

namespace probe {

namespace {

void require(Status status, const char* what) {
    if (status == abi::kSuccess) return;
    std::printf("%s answers %d\n", what, status);
    std::exit(2);
}

}  // namespace

bool Application::start(const std::string& path) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        std::printf("%s\n", ::dlerror());
        return false;
    }
    const auto bind = [this](const char* name, auto& function) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
        return function != nullptr;
    };
    const bool complete = bind("cuInit", init) && bind("cuCtxSetCurrent", set_context) && bind("cuMemAlloc_v2", allocate) &&
                          bind("cuMemFree_v2", free) && bind("cuMemAllocManaged", allocate_managed) &&
                          bind("cuMemAllocAsync", allocate_async) && bind("cuMemFreeAsync", free_async) &&
                          bind("cuMemHostRegister_v2", host_register) && bind("cuMemHostUnregister", host_unregister) &&
                          bind("cuMemcpy", copy) && bind("cuStreamSynchronize", stream_synchronize) &&
                          bind("cuStreamQuery", stream_query) && bind("cuStreamWriteValue64_v2", write_value) &&
                          bind("cuStreamWaitValue64_v2", wait_value) && bind("cuMemGetInfo_v2", memory_info);
    bind("cuStreamBeginCapture_v2", begin_capture);
    bind("cuStreamEndCapture", end_capture);
    bind("cuStreamWaitEvent", stream_wait_event);
    if (!complete) {
        std::printf("this libcuda is too old\n");
        return false;
    }
    static mooncake::cuda::Driver driver;  // for its table of functions
    cuda = driver.functions();
    if (cuda == nullptr) return false;
    if (const Status status = init(0); status != abi::kSuccess) {
        std::printf("cuInit answers %s\n", name_of(status).c_str());
        return false;
    }
    require(cuda->primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
    require(set_context(context), "cuCtxSetCurrent");
    require(cuda->stream_create(&stream, abi::kStreamNonBlocking), "cuStreamCreate");
    return true;
}

std::string Application::name_of(Status status) const {
    const char* name = nullptr;
    if (cuda->get_error_name == nullptr || cuda->get_error_name(status, &name) != abi::kSuccess || name == nullptr) name = "?";
    return std::to_string(status) + " " + name;
}

std::byte* Application::must_allocate(size_t length) const {
    abi::DevicePointer address = 0;
    require(allocate(&address, length), "cuMemAlloc");
    return reinterpret_cast<std::byte*>(address);
}

void Application::write(std::byte* to, std::span<const std::byte> from) const {
    require(copy(address_of(to), address_of(from.data()), from.size()), "cuMemcpy");
    require(stream_synchronize(abi::legacy_stream()), "cuStreamSynchronize");
}

std::vector<std::byte> Application::read(const std::byte* from, size_t length) const {
    std::vector<std::byte> bytes(length);
    require(copy(address_of(bytes.data()), address_of(from), length), "cuMemcpy");
    return bytes;
}

std::byte* Application::reserve(size_t chunks, const std::set<size_t>& mapped) const {
    abi::DevicePointer start = 0;
    require(cuda->vmm_reserve(&start, chunks * kChunk, 0, 0, 0), "cuMemAddressReserve");
    const abi::AllocationProperties properties{
        .type = abi::kAllocationPinned, .handle_types = abi::kHandleDescriptor, .location = {.type = abi::kLocationDevice, .id = 0}};
    const abi::AccessDescription access{.location = properties.location, .flags = abi::kAccessReadWrite};
    for (const size_t chunk : mapped) {
        abi::Handle handle = 0;
        require(cuda->vmm_create(&handle, kChunk, &properties, 0), "cuMemCreate");
        require(cuda->vmm_map(start + chunk * kChunk, kChunk, 0, handle, 0), "cuMemMap");
        require(cuda->vmm_set_access(start + chunk * kChunk, kChunk, &access, 1), "cuMemSetAccess");
        require(cuda->vmm_release(handle), "cuMemRelease");
    }
    return reinterpret_cast<std::byte*>(start);
}

void Application::release(std::byte* start, size_t chunks, const std::set<size_t>& mapped) const {
    for (const size_t chunk : mapped) require(cuda->vmm_unmap(address_of(start) + chunk * kChunk, kChunk), "cuMemUnmap");
    require(cuda->vmm_free(address_of(start), chunks * kChunk), "cuMemAddressFree");
}

// ---- output and time

void Table::title(const std::string& text) { std::printf("\n== %s\n", text.c_str()); }

void Table::expect(const std::string& what, bool well, const std::string& detail) {
    std::printf("%-5s %-74s %s\n", well ? "ok" : "WRONG", what.c_str(), detail.c_str());
    std::fflush(stdout);
    if (!well) ++wrong_;
}

void Table::tell(const std::string& what, const std::string& answer) {
    std::printf("      %-74s %s\n", what.c_str(), answer.c_str());
    std::fflush(stdout);
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

std::vector<std::byte> noise(size_t length, uint32_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(length);
    for (size_t i = 0; i < length; i += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, length - i));
    }
    return bytes;
}

double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_seconds(int rounds, const std::function<void()>& work) {
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) all.push_back(seconds_of(work));
    std::nth_element(all.begin(), all.begin() + rounds / 2, all.end());
    return all[static_cast<size_t>(rounds / 2)];
}

// ---- another process

namespace {

struct Question {
    char what = 0;
    abi::IpcHandle handle;
    uint64_t address = 0;
};

[[noreturn]] void serve(const std::string& library, int in, int out) {
    Application app;
    bool started = false;
    Question question;
    while (::read(in, &question, sizeof question) == static_cast<ssize_t>(sizeof question)) {
        if (!started) started = app.start(library);
        Importer::Answer answer;
        if (started && question.what == 'o') answer.status = app.cuda->ipc_open(&answer.address, question.handle, abi::kIpcLazyPeerAccess);
        if (started && question.what == 'c') answer.status = app.cuda->ipc_close(question.address);
        if (::write(out, &answer, sizeof answer) != static_cast<ssize_t>(sizeof answer)) break;
    }
    ::_exit(0);
}

}  // namespace

Importer::Importer(const std::string& library) {
    int there[2], back[2];
    if (::pipe(there) != 0 || ::pipe(back) != 0) std::exit(2);
    pid_ = ::fork();
    if (pid_ == 0) {
        ::close(there[1]);
        ::close(back[0]);
        serve(library, there[0], back[1]);
    }
    ::close(there[0]);
    ::close(back[1]);
    to_ = there[1];
    from_ = back[0];
}

Importer::~Importer() {
    ::close(to_);
    ::waitpid(pid_, nullptr, 0);
    ::close(from_);
}

Importer::Answer Importer::ask(char what, const abi::IpcHandle& handle, uint64_t address) {
    const Question question{.what = what, .handle = handle, .address = address};
    Answer answer;
    if (::write(to_, &question, sizeof question) != static_cast<ssize_t>(sizeof question)) return {};
    if (::read(from_, &answer, sizeof answer) != static_cast<ssize_t>(sizeof answer)) return {};
    return answer;
}

Importer::Answer Importer::open(const abi::IpcHandle& handle) { return ask('o', handle, 0); }
Importer::Answer Importer::close(uint64_t address) { return ask('c', {}, address); }

}  // namespace probe
