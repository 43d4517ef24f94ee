// SPDX-License-Identifier: Apache-2.0
// The side that asks.
#include "tests/emulators/ascend/engine_core.h"

#include <cstring>

#include "tests/emulators/ascend/sockets.h"
#include "tests/emulators/ascend/wire.h"

namespace emu {

namespace {

constexpr size_t kLinksMax = 512;
std::mutex& link_set_up() {  // one at a time in a process
    static std::mutex& only = *new std::mutex;
    return only;
}

Clock::time_point after(int milliseconds) { return Clock::now() + std::chrono::milliseconds(milliseconds); }

bool number_in(const std::string& text, long low, long high, long step) {
    char* end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    return !text.empty() && *end == 0 && value >= low && value <= high && value % step == 0;
}

}  // namespace

Channel::~Channel() {
    if (socket >= 0) ::close(socket);
}

uint32_t EngineCore::check_options(const Options& options) {
    const std::string prefix = successor_ ? "" : "adxl.";
    const std::string pool_key = prefix + "BufferPool", comm_key = prefix + "LocalCommRes";
    std::string pool = "4:8";
    for (const auto& [key, value] : options) {
        if (key == pool_key) pool = value;
        else if (key == prefix + "RdmaTrafficClass") {
            if (!number_in(value, 0, 255, 4)) return kParamInvalid;
        } else if (key == prefix + "RdmaServiceLevel") {
            if (!number_in(value, 0, 7, 1)) return kParamInvalid;
        } else if (key == comm_key) client_server_ = tier() >= 91 && value.find("\"1.3\"") != std::string::npos;
        else if (key == "AutoConnect") {
            if (value != "0" && value != "1") return kParamInvalid;
            auto_connect_ = tier() >= 90 && value == "1";
        } else if (key != "GlobalResourceConfig" && key != "EnableUseFabricMem" && tier() >= 91) return kParamInvalid;
    }
    const size_t colon = pool.find(':');
    if (colon == std::string::npos || !number_in(pool.substr(0, colon), 0, 1024, 1) || !number_in(pool.substr(colon + 1), 0, 65536, 1))
        return kParamInvalid;
    pool_ = pool != "0:0";
    return client_server_ && pool_ ? kParamInvalid : kSuccess;
}

uint32_t EngineCore::initialize(const std::string& name, const Options& options) {
    if (const auto verdict = enter("Initialize", name); verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    std::string host;
    int port = 0;
    if (ready_ || current() == nullptr || !split_name(name, host, port)) return ready_ ? kFailed : kParamInvalid;
    if (const uint32_t wrong = check_options(options); wrong != kSuccess) return wrong;
    context_ = current();
    name_ = name;
    stop_ = false;
    if (port > 0)
        if (const uint32_t failed = listen(host, port); failed != kSuccess) return failed;
    ready_ = true;
    return kSuccess;
}

bool EngineCore::right_context(const char*) const { return ready_ && current() != nullptr && current() == context_; }

std::vector<Range> EngineCore::ranges() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Range> all;
    for (const auto& [handle, range] : registered_) all.push_back(range);
    return all;
}

uint32_t EngineCore::add(Range range, void*& handle) {
    if (const auto verdict = enter("RegisterMem"); verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    if (range.address == 0 || range.length == 0 || range.length > UINT64_MAX - range.address) return kParamInvalid;
    if (!right_context("RegisterMem")) return kFailed;
    const Found found = find(reinterpret_cast<void*>(range.address), range.length);
    if ((found.place == Place::kDevice) != (range.type == 0) || !found.inside) return kParamInvalid;
    if (found.place == Place::kDevice && found.device != context_->device) return kParamInvalid;
    const std::lock_guard<std::mutex> lock(mutex_);
    handle = reinterpret_cast<void*>(next_handle_);
    registered_[next_handle_++] = range;
    return kSuccess;
}

uint32_t EngineCore::remove(void* handle) {
    if (const auto verdict = enter("DeregisterMem"); verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (client_server_) {
        if (!channels_.empty()) return kFailed;
        for (const Session& session : sessions_)
            if (!session.over) return kFailed;
    }
    // Who is connected goes on reaching it: nothing says that the hardware forgets.
    registered_.erase(reinterpret_cast<uintptr_t>(handle));
    return kSuccess;
}

std::shared_ptr<Channel> EngineCore::channel(const std::string& peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = channels_.find(peer);
    return found == channels_.end() ? nullptr : found->second;
}

uint32_t EngineCore::connect(const std::string& peer, int milliseconds) {
    const Clock::time_point until = after(milliseconds);
    const auto verdict = enter("Connect", peer, [&] { return stop_ || Clock::now() >= until; });
    if (verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    if (milliseconds <= 0) return kParamInvalid;
    if (!right_context("Connect")) return kFailed;
    if (Clock::now() >= until) return kTimeout;
    if (channel(peer) != nullptr) return kAlreadyConnected;
    return make_link(peer, milliseconds);
}

uint32_t EngineCore::make_link(const std::string& peer, int milliseconds) {
    const Patience patience{after(milliseconds), [this] { return stop_.load(); }};
    const std::lock_guard<std::mutex> one(link_set_up());
    std::string host;
    int port = 0;
    if (!split_name(peer, host, port) || port == 0) return kParamInvalid;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (channels_.size() >= kLinksMax && !client_server_) return kResourceExhausted;
    }
    auto made = std::make_shared<Channel>();
    made->peer = peer;
    made->ours = ranges();
    made->socket = open_socket(host, port, false, patience);
    const Hello hello{kMagic, static_cast<uint32_t>(name_.size()), physical_of(context_->device), client_server_ ? 1u : 0u};
    Welcome welcome{};
    if (made->socket < 0 || !send_all(made->socket, &hello, sizeof hello, patience) ||
        !send_all(made->socket, name_.data(), name_.size(), patience) || !receive_all(made->socket, &welcome, sizeof welcome, patience))
        return Clock::now() >= patience.until ? kTimeout : kFailed;
    if (welcome.status != kSuccess) return welcome.status;
    made->theirs.resize(welcome.ranges);
    if (!receive_all(made->socket, made->theirs.data(), made->theirs.size() * sizeof(Range), patience)) return kFailed;
    const std::lock_guard<std::mutex> lock(mutex_);
    channels_[peer] = made;
    return kSuccess;
}

void EngineCore::drop(const std::string& peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    channels_.erase(peer);
}

uint32_t EngineCore::disconnect(const std::string& peer, int milliseconds) {
    if (const auto verdict = enter("Disconnect", peer); verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    if (milliseconds <= 0) return kParamInvalid;
    const auto ended = channel(peer);
    if (ended == nullptr) return kNotConnected;
    ended->aborted = true;
    const std::lock_guard<std::mutex> nothing_runs(ended->transfers);
    drop(peer);
    // The other side applies what it has, and closes then.
    ::shutdown(ended->socket, SHUT_WR);
    char rest[4096];
    const Patience patience{after(milliseconds), {}};
    for (;;) {
        if (!wait_for(ended->socket, POLLIN, patience)) return kTimeout;
        if (::recv(ended->socket, rest, sizeof rest, MSG_DONTWAIT) <= 0) return kSuccess;
    }
}

bool EngineCore::inside(const std::vector<Range>& ranges, uint64_t address, uint64_t length) const {
    if (pool_) return true;
    for (const Range& range : ranges)
        if (address >= range.address && address - range.address < range.length && length <= range.length - (address - range.address))
            return true;
    return false;
}

uint32_t EngineCore::run(Channel& channel, bool write, const std::vector<Part>& parts, Clock::time_point deadline, const Verdict& verdict) {
    if (channel.broken) return kFailed;
    for (const Part& part : parts) {
        if (part.local == 0 || part.remote == 0) return kParamInvalid;
        if (!inside(channel.ours, part.local, part.length) || !inside(channel.theirs, part.remote, part.length)) return kParamInvalid;
    }
    const Patience patience{deadline, [&] { return channel.aborted || stop_; }};
    channel.broken = true;  // until all of it is done
    const auto failure = [&] { return channel.aborted || stop_ || Clock::now() < deadline ? kFailed : kTimeout; };
    if (verdict.drop_link) ::shutdown(channel.socket, SHUT_RDWR);
    const Ask ask{write ? 1u : 0u, static_cast<uint32_t>(parts.size())};
    if (!send_all(channel.socket, &ask, sizeof ask, patience) ||
        !send_all(channel.socket, parts.data(), parts.size() * sizeof(Part), patience))
        return failure();
    long allowed = verdict.stop_after >= 0 ? verdict.stop_after : INT64_MAX;
    if (write)
        for (const Part& part : parts)
            if (!send_memory(channel.socket, part.local, part.length, patience, allowed, verdict.corrupt)) return failure();
    uint32_t status = 0;
    if (!receive_all(channel.socket, &status, sizeof status, patience)) return failure();
    if (status == kSuccess && !write)
        for (const Part& part : parts)
            if (!receive_memory(channel.socket, part.local, part.length, patience, allowed)) return failure();
    channel.broken = false;
    return status;
}

uint32_t EngineCore::transfer(const std::string& peer, bool write, const std::vector<Part>& parts, int milliseconds) {
    const Clock::time_point until = after(milliseconds);
    auto used = channel(peer);
    const auto verdict = enter("TransferSync", peer, [&] { return stop_ || (used && used->aborted) || Clock::now() >= until; });
    if (verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    if (milliseconds <= 0) return kParamInvalid;
    if (!right_context("TransferSync")) return kFailed;
    for (const Part& part : parts)
        if (part.local == 0 || part.remote == 0) return kParamInvalid;
    if (used == nullptr && auto_connect_) {
        if (const uint32_t failed = make_link(peer, milliseconds); failed != kSuccess) return failed;
        used = channel(peer);
    }
    if (used == nullptr) return kNotConnected;
    const std::lock_guard<std::mutex> one(used->transfers);
    const uint32_t status = used->aborted ? kFailed : Clock::now() >= until ? kTimeout : run(*used, write, parts, until, verdict);
    if (status != kSuccess && status != kParamInvalid && auto_connect_) drop(peer);
    return status;
}

uint32_t EngineCore::transfer_async(const std::string& peer, bool write, const std::vector<Part>& parts, void*& request) {
    const auto verdict = enter("TransferAsync", peer);
    if (verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    if (!right_context("TransferAsync")) return kFailed;
    auto used = channel(peer);
    if (used == nullptr && auto_connect_) {
        if (const uint32_t failed = make_link(peer, 3000); failed != kSuccess) return failed;
        used = channel(peer);
    }
    if (used == nullptr) return kNotConnected;
    auto made = std::make_shared<Request>();
    made->peer = peer;
    made->thread = std::thread([this, made, used, write, parts, verdict] {
        const std::lock_guard<std::mutex> one(used->transfers);
        const uint32_t status = used->aborted ? kFailed : run(*used, write, parts, Clock::time_point::max(), verdict);
        if (status != kSuccess && auto_connect_) drop(used->peer);
        made->lost = used->aborted.load();
        made->status = status == kSuccess ? 1 : 3;
    });
    const std::lock_guard<std::mutex> lock(mutex_);
    request = made.get();
    requests_[request] = made;
    return kSuccess;
}

uint32_t EngineCore::status(void* request, int& state) {
    std::shared_ptr<Request> asked;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end()) return state = 3, kParamInvalid;
        asked = found->second;
    }
    const auto verdict = enter("GetTransferStatus", asked->peer);
    if (verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    state = static_cast<int>(asked->status.load());
    const bool linked = channel(asked->peer) != nullptr;
    if (verdict.waiting && linked) state = 0;
    if (state == 0) return kSuccess;
    asked->thread.join();
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.erase(request);
    return asked->lost ? kNotConnected : kSuccess;
}

void EngineCore::finalize() {
    enter("Finalize");
    stop_ = true;
    if (acceptor_.joinable()) acceptor_.join();
    if (listener_ >= 0) ::close(listener_);
    listener_ = -1;
    end_sessions("");
    std::map<void*, std::shared_ptr<Request>> requests;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& [peer, made] : channels_) {
            made->aborted = true;
            ::shutdown(made->socket, SHUT_RDWR);
        }
        requests.swap(requests_);
    }
    for (const auto& [id, request] : requests)
        if (request->thread.joinable()) request->thread.join();
    const std::lock_guard<std::mutex> lock(mutex_);
    channels_.clear();
    registered_.clear();
    ready_ = false;
}

}  // namespace emu
