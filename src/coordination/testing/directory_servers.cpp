// SPDX-License-Identifier: Apache-2.0
#include "coordination/testing/directory_servers.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/options.h"
#include "coordination/http/metadata_service.h"
#include "coordination/testing/server_process.h"

namespace mooncake::testing {

namespace {

namespace fs = std::filesystem;

/// The folder of the sources: test programs are in build/PRESET/bin.
fs::path source_folder() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path().parent_path(); }

/// A server that is a program of its own.
class ProgramServer : public DirectoryServer {
public:
    std::string address() const override { return format_text("127.0.0.1:{}", port_); }
    void start() override {
        for (int attempt = 0; attempt < 5; ++attempt) {
            process_.start(command(port_), log());
            if (::testing::Test::HasFatalFailure()) return;
            if (process_.wait_listening(port_)) {
                started_ = true;
                return;
            }
            if (!started_) port_ = free_port();  // somebody took it in between; nobody knows our address yet
        }
        std::ostringstream text;
        text << std::ifstream(log()).rdbuf();
        FAIL() << "the server does not start: " << text.str();
    }
    void kill() override {
        process_.kill();
        fs::remove_all(folder_.path() / "data");
    }
    void pause() override { process_.pause(); }
    void resume() override { process_.resume(); }

protected:
    virtual std::vector<std::string> command(uint16_t port) = 0;
    const fs::path& folder() const { return folder_.path(); }

private:
    fs::path log() const { return folder_.path() / "log"; }

    TemporaryFolder folder_;
    uint16_t port_ = free_port();
    bool started_ = false;
    ServerProcess process_;
};

class RedisProgram final : public ProgramServer {
public:
    explicit RedisProgram(const std::string& extra_configuration) {
        std::ofstream(folder() / "redis.conf") << "bind 127.0.0.1\nsave \"\"\nappendonly no\ndir " << folder().string() << "\n"
                                               << extra_configuration;
    }
    std::string connection() const override { return "redis://" + address(); }

protected:
    std::vector<std::string> command(uint16_t port) override {
        return {"/usr/bin/redis-server", (folder() / "redis.conf").string(), "--port", format_text("{}", port)};
    }
};

class EtcdProgram final : public ProgramServer {
public:
    std::string connection() const override { return "etcd://" + address(); }

protected:
    std::vector<std::string> command(uint16_t port) override {
        const std::string client = format_text("http://127.0.0.1:{}", port);
        const std::string peer = format_text("http://127.0.0.1:{}", free_port());
        return {"/usr/bin/etcd",
                "--name",
                "test",
                "--data-dir",
                (folder() / "data").string(),
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                "test=" + peer,
                "--heartbeat-interval",
                "20",
                "--election-timeout",
                "200",
                "--logger",
                "zap"};
    }
};

class PythonProgram final : public ProgramServer {
public:
    std::string connection() const override { return "http://" + address() + "/metadata"; }

protected:
    std::vector<std::string> command(uint16_t port) override {
        const auto given = process_environment()("MC_TEST_PYTHON");
        const fs::path python = given ? fs::path(*given) : source_folder() / ".venv/bin/python";
        // As users start it, but of the sources, whatever is installed.
        return {"/usr/bin/env",
                "PYTHONPATH=" + (source_folder() / "python").string(),
                python.string(),
                "-m",
                "mooncake.http_metadata_server",
                "--host",
                "127.0.0.1",
                "--port",
                format_text("{}", port)};
    }
};

class ServerHere final : public DirectoryServer {
public:
    ~ServerHere() override {
        resume();
        kill();
    }
    std::string connection() const override { return "http://" + address() + "/metadata"; }
    std::string address() const override { return format_text("127.0.0.1:{}", port_); }

    void start() override {
        auto server = net::HttpServer::create({.host = "127.0.0.1", .port = port_, .threads = 2});
        ASSERT_TRUE(server) << server.error().to_string();
        service_.emplace();
        (*server)->handle("*", "/metadata", [this](const net::HttpServerRequest& request) {
            std::unique_lock lock(mutex_);
            resumed_.wait(lock, [this] { return !paused_; });
            lock.unlock();
            return service_->handle(request);
        });
        server_ = std::move(*server);
        server_->start();
    }
    void kill() override {
        server_.reset();
        service_.reset();
    }
    void pause() override { set_paused(true); }
    void resume() override { set_paused(false); }

private:
    void set_paused(bool paused) {
        const std::lock_guard lock(mutex_);
        paused_ = paused;
        resumed_.notify_all();
    }

    const uint16_t port_ = free_port();
    std::mutex mutex_;
    std::condition_variable resumed_;
    bool paused_ = false;
    std::optional<MetadataService> service_;
    std::unique_ptr<net::HttpServer> server_;
};

}  // namespace

void wait_usable(Directory& directory) {
    const Deadline deadline = Deadline::after(60s);
    Result<> answer = directory.put("ready", "yes", deadline);
    while (!answer && !deadline.passed()) {
        ::poll(nullptr, 0, 10);  // nothing tells us when the server will be ready
        answer = directory.put("ready", "yes", deadline);
    }
    ASSERT_TRUE(answer) << answer.error().to_string();
}

std::unique_ptr<DirectoryServer> make_redis_server(const std::string& extra_configuration) {
    return std::make_unique<RedisProgram>(extra_configuration);
}
std::unique_ptr<DirectoryServer> make_etcd_server() { return std::make_unique<EtcdProgram>(); }
std::unique_ptr<DirectoryServer> make_python_metadata_server() { return std::make_unique<PythonProgram>(); }
std::unique_ptr<DirectoryServer> make_metadata_server() { return std::make_unique<ServerHere>(); }

}  // namespace mooncake::testing
