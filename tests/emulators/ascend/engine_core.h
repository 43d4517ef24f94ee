// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <list>
#include <set>

#include "tests/emulators/ascend/state.h"

namespace emu {

constexpr uint32_t kSuccess = 0, kParamInvalid = 103900, kTimeout = 103901, kNotConnected = 103902, kAlreadyConnected = 103903,
                   kUnsupported = 103905, kResourceExhausted = 203900, kFailed = 503900;

struct Range {
    uint64_t address = 0, length = 0;
    uint32_t type = 0;
    uint32_t padding = 0;
};
struct Part {
    uint64_t local = 0, remote = 0, length = 0;
};
using Options = std::map<std::string, std::string>;

/// One link that we made. One transfer at a time.
struct Channel {
    std::string peer;
    int socket = -1;
    std::vector<Range> theirs, ours;  // as of connecting
    std::mutex transfers;
    std::atomic<bool> aborted{false}, broken{false};
    ~Channel();
};

struct Request {
    std::string peer;
    std::atomic<uint32_t> status{0};
    std::atomic<bool> lost{false}, held{false};
    std::thread thread;
};

/// What an engine of the vendor's library does, over TCP. Requests run on threads of their own, as on hardware.
class EngineCore {
public:
    explicit EngineCore(bool successor) : successor_(successor) {}
    ~EngineCore() { finalize(); }

    uint32_t initialize(const std::string& name, const Options& options);
    void finalize();
    uint32_t add(Range range, void*& handle);
    uint32_t remove(void* handle);
    uint32_t connect(const std::string& peer, int milliseconds);
    uint32_t disconnect(const std::string& peer, int milliseconds);
    uint32_t transfer(const std::string& peer, bool write, const std::vector<Part>& parts, int milliseconds);
    uint32_t transfer_async(const std::string& peer, bool write, const std::vector<Part>& parts, void*& request);
    uint32_t status(void* request, int& state);

private:
    struct Session {
        std::string client;
        int socket = -1;
        std::vector<Range> ours;
        std::thread thread;
        std::atomic<bool> over{false};
    };

    uint32_t check_options(const Options& options);
    bool right_context(const char* function) const;
    uint32_t listen(const std::string& host, int port);
    void accept_all();
    void greet(int socket);
    void serve(Session& session);
    bool serve_one(Session& session);
    void end_sessions(const std::string& client);
    std::vector<Range> ranges();
    std::shared_ptr<Channel> channel(const std::string& peer);
    uint32_t make_link(const std::string& peer, int milliseconds);
    uint32_t run(Channel& channel, bool write, const std::vector<Part>& parts, Clock::time_point deadline, const Verdict& verdict);
    bool inside(const std::vector<Range>& ranges, uint64_t address, uint64_t length) const;
    void drop(const std::string& peer);

    const bool successor_;
    bool ready_ = false;
    std::string name_;
    Context* context_ = nullptr;
    bool auto_connect_ = false, client_server_ = false, pool_ = true;
    int listener_ = -1;
    std::atomic<bool> stop_{false};
    std::thread acceptor_;
    std::mutex mutex_;
    std::map<uintptr_t, Range> registered_;
    uintptr_t next_handle_ = 1;
    std::map<std::string, std::shared_ptr<Channel>> channels_;
    std::list<Session> sessions_;
    std::map<void*, std::shared_ptr<Request>> requests_;
    std::list<std::shared_ptr<Request>> finished_;
};

}  // namespace emu
