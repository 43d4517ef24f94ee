// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace mooncake {

/// Blocks all signals in the calling thread for as long as it lives.
class SignalsBlocked {
public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

/// A joined, named thread; `body` gets a stop_token. All signals are blocked in it, so that the host program's handlers run
/// on the host program's threads.
template <typename Body>
std::jthread start_thread(const std::string& name, Body&& body) {
    std::jthread thread;
    {
        const SignalsBlocked inherited_by_the_thread;
        thread = std::jthread(std::forward<Body>(body));
    }
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
}

/// start_thread() where the system may have none left to give (kUnavailable).
template <typename Body>
Result<std::jthread> try_start_thread(const std::string& name, Body&& body) {
    try {
        return start_thread(name, std::forward<Body>(body));
    } catch (const std::system_error& refused) {
        return fail_errno(Code::kUnavailable, refused.code().value(), "cannot start the thread {}", name);
    }
}

}  // namespace mooncake
