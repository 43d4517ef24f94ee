// SPDX-License-Identifier: Apache-2.0
// Include only in .cpp files: it needs Boost.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "conductor/proxy/cluster.h"
#include "conductor/proxy/kv_events.h"
#include "conductor/proxy/zmtp.h"

namespace mooncake::conductor {

/// Where an instance publishes what is in its cache.
struct FeedSpec {
    std::string instance;          // its name in the cluster
    std::string endpoint, replay;  // "tcp://host:port"; replay: where missed messages can be had, or empty
    std::string model;
    uint32_t dp_rank = 0;
};
/// {"endpoint", "replay_endpoint", "modelname", "instance_id", "block_size", "dp_rank", ...}; others are not looked at. kInvalidArgument.
Result<FeedSpec> parse_feed(std::string_view json, uint32_t block_tokens);

/// Listens to one publisher and keeps the cluster's index of its blocks; connects again as often as it takes. A message that is missing is asked for; where that does not
/// help everything that is known of this publisher is forgotten. Lives on one loop.
class EventFeed : public std::enable_shared_from_this<EventFeed> {
public:
    EventFeed(boost::asio::io_context& loop, Cluster& cluster, FeedSpec spec, uint32_t block_tokens);
    boost::asio::awaitable<void> run();
    /// Ends run() and forgets what was learned.
    void stop();
    const FeedSpec& spec() const noexcept { return spec_; }

private:
    template <typename T>
    using Task = boost::asio::awaitable<T>;
    using Socket = boost::asio::ip::tcp::socket;

    Task<Result<>> open(Socket& socket, const std::string& endpoint, const char* type, const std::string& first, zmtp::Parser& parser);
    Task<Result<>> listen();
    Task<void> hear(const zmtp::Message& message);
    Task<bool> replay(uint64_t from, uint64_t until);
    void apply(const std::string& payload);
    void forget();

    boost::asio::io_context& loop_;
    Cluster& cluster_;
    const FeedSpec spec_;
    KvView view_;
    Socket socket_;
    boost::asio::steady_timer pause_;
    std::optional<uint64_t> last_;
    bool stopped_ = false;
};

/// All publishers that are listened to, by instance and rank. Thread-safe; the loop ends before it.
class EventFeeds {
public:
    EventFeeds(boost::asio::io_context& loop, Cluster& cluster, uint32_t block_tokens)
        : loop_(loop), cluster_(cluster), block_tokens_(block_tokens) {}
    /// In place of the one that was there.
    void add(FeedSpec spec) MC_EXCLUDES(mutex_);
    /// False: there is none.
    bool remove(std::string_view instance, std::optional<uint32_t> dp_rank) MC_EXCLUDES(mutex_);

private:
    using Key = std::pair<std::string, uint32_t>;
    boost::asio::io_context& loop_;
    Cluster& cluster_;
    const uint32_t block_tokens_;
    Mutex mutex_;
    std::map<Key, std::shared_ptr<EventFeed>> feeds_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::conductor
