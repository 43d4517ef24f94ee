// SPDX-License-Identifier: Apache-2.0
#include "net/lookups.h"

#include <netdb.h>

#include <utility>

namespace mooncake::net {

namespace {

constexpr Duration kLate = 1s;
constexpr Duration kTroubleMemory = 1min;
constexpr size_t kTroubledMax = 1024;  // names remembered

}  // namespace

void Lookups::ask(const std::string& host, Done done) {
    Result<> posted;
    {
        Lock lock(mutex_);
        if (questions_ >= kQuestionsMax) {
            posted = fail_errno(Code::kUnavailable, EAI_AGAIN, "cannot resolve '{}': too many names are being asked for", host);
        } else {
            const auto [waiting, first] = asked_.try_emplace(host);
            if (first) posted = (troubled(host) ? troubled_threads_ : threads_).post([this, host] { look_up(host); });
            if (posted) {
                waiting->second.push_back(std::move(done));
                ++questions_;
            } else {
                asked_.erase(waiting);
            }
        }
    }
    if (!posted) done(Unexpected(std::move(posted).error()));
}

void Lookups::look_up(const std::string& host) {
    const Time began = Clock::now();
    const Addresses addresses = lookup_(host);
    std::vector<Done> waiting;
    {
        Lock lock(mutex_);
        note(host, !addresses || Clock::now() - began > kLate);
        const auto asked = asked_.find(host);
        waiting = std::move(asked->second);
        questions_ -= waiting.size();
        asked_.erase(asked);
    }
    for (const Done& done : waiting) done(addresses);
}

bool Lookups::troubled(const std::string& host) {
    const auto found = troubled_until_.find(host);
    return found != troubled_until_.end() && Clock::now() < found->second;
}

void Lookups::note(const std::string& host, bool trouble) {
    if (!trouble) {
        troubled_until_.erase(host);
        return;
    }
    if (troubled_until_.size() >= kTroubledMax)
        std::erase_if(troubled_until_, [](const auto& entry) { return entry.second < Clock::now(); });
    if (troubled_until_.size() >= kTroubledMax) troubled_until_.erase(troubled_until_.begin());
    troubled_until_[host] = Clock::now() + kTroubleMemory;
}

}  // namespace mooncake::net
