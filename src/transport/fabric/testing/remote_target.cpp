// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/testing/remote_target.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace mooncake::fabric {

using mooncake::testing::ChildProcess;
using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::read_command;
using mooncake::testing::say;
using mooncake::testing::TestMemory;
using mooncake::testing::TransportHost;

namespace {

std::string to_hex(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) text += format_text("{:02x}", static_cast<unsigned>(byte));
    return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2) bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
    return bytes;
}

/// A column of what the kernel counts; in the network of this process, which sysfs would not show.
uint64_t counted(const std::string& link, int column) {
    std::ifstream file("/proc/self/net/dev");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(link + ":");
        if (colon == std::string::npos) continue;
        std::istringstream numbers(line.substr(colon + link.size() + 1));
        uint64_t number = 0;
        for (int i = 0; i <= column; ++i) numbers >> number;
        return number;
    }
    return 0;
}

}  // namespace

EngineOptions options_for(const std::string& nodes) {
    EngineOptions options;
    options.protocol = "fabric:tcp";
    options.fabric.nodes = split_list(nodes);
    options.fabric.stall_timeout = 500ms;
    return options;
}

uint64_t sum_of(std::span<const std::byte> bytes) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, 8);
        sum = (sum ^ word) * 1099511628211u;
    }
    return sum;
}

/// What the target's process does.
TEST(FabricChild, DISABLED_LendsMemory) {
    if (read_command() == "own network" && ::unshare(CLONE_NEWNET) != 0) return say("network none");
    say("network made");
    const TestMemory memory(std::stoull(read_command()));
    std::unique_ptr<TestMemory> more;
    TransportHost host([](const TransportContext& context) { return make_fabric_transport(context); }, options_for(read_command()));
    host.add(memory);
    const SegmentDescriptor descriptor = host.describe();
    say(format_text("offer {} {} {}", descriptor.incarnation.to_string(), memory.address(),
                    to_hex(std::as_bytes(std::span(descriptor.endpoints.at("fabric"))))));
    for (;;) {
        std::istringstream command(read_command());
        std::string what, number, bytes;
        command >> what >> number >> bytes;
        if (what == "sum") {
            say(format_text("sum {}", sum_of(memory.bytes().first(std::stoull(number)))));
            continue;
        }
        if (what == "lend") {
            more = std::make_unique<TestMemory>(std::stoull(number));
            host.add(*more);
            say(format_text("lent {}", more->address()));
            continue;
        }
        if (what != "call") {
            const size_t length = more->length();
            if (what == "unmap") MC_CHECK(::munmap(more->data(), length) == 0);
            else MC_CHECK(::mprotect(more->data(), length, what == "forbid" ? PROT_NONE : PROT_READ) == 0);
            say("taken away");
            continue;
        }
        const auto answer = host.control().call(descriptor, "fabric", from_hex(bytes), patience());
        say(format_text("answer {} {} {}", number, static_cast<int>(code_of(answer)), answer ? to_hex(*answer) : "-"));
    }
}

LineControl::LineControl(ChildProcess& child) : child_(child) { ::signal(SIGPIPE, SIG_IGN); }

Result<ControlPlane::Bytes> LineControl::call(const SegmentDescriptor&, const std::string&, Bytes request, Deadline deadline) {
    Lock lock(mutex_);
    const uint64_t number = ++last_;
    if (!child_.try_send_line(format_text("call {} {}", number, to_hex(request)))) return fail(Code::kUnavailable, "the child has ended");
    MC_ASSIGN_OR_RETURN(const std::string answer, child_.read_line(format_text("answer {} ", number), deadline));
    const size_t space = answer.find(' ');
    const auto code = static_cast<Code>(std::stoi(answer.substr(0, space)));
    if (code != Code::kOk) return fail(code, "the child says no");
    return from_hex(answer.substr(space + 1));
}

uint64_t LineControl::sum(uint64_t length) {
    Lock lock(mutex_);
    child_.send_line(format_text("sum {}", length));
    return std::stoull(child_.read_line("sum ", patience()).value());
}

uint64_t LineControl::lend_more(uint64_t length) {
    Lock lock(mutex_);
    child_.send_line(format_text("lend {}", length));
    return std::stoull(child_.read_line("lent ", patience()).value());
}

void LineControl::take_away(const std::string& how) {
    Lock lock(mutex_);
    child_.send_line(how);
    MC_CHECK(child_.read_line("taken ", patience()).has_value());
}

RemoteTarget::RemoteTarget(bool own_network, uint64_t memory) : child("FabricChild.DISABLED_LendsMemory"), length(memory) {
    child.send_line(own_network ? "own network" : "same network");
    has_network = child.read_line("network ", patience()).value_or("none") == "made";
    if (has_network) child.send_line(std::to_string(length));
}

void RemoteTarget::lend(const std::string& nodes) {
    child.send_line(nodes);
    std::istringstream offer(child.read_line("offer ", patience()).value());
    std::string incarnation, endpoint;
    offer >> incarnation >> address >> endpoint;
    const auto bytes = from_hex(endpoint);
    descriptor = {.name = "child", .incarnation = Incarnation::parse(incarnation).value()};
    descriptor.endpoints["fabric"] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void ManyControls::add(RemoteTarget& target) {
    Lock lock(mutex_);
    controls_[target.descriptor.incarnation.value] = &target.control;
}

Result<ControlPlane::Bytes> ManyControls::call(const SegmentDescriptor& descriptor, const std::string& name, Bytes request,
                                               Deadline deadline) {
    ControlPlane* control = nullptr;
    {
        Lock lock(mutex_);
        control = controls_.at(descriptor.incarnation.value);
    }
    return control->call(descriptor, name, std::move(request), deadline);
}

Initiator::Initiator(RemoteTarget& target, const TestMemory& memory, const EngineOptions& options, ManyControls* controls)
    : host(
          [&](const TransportContext& context) {
              ControlPlane& own = target.control;
              return make_fabric_transport({.incarnation = context.incarnation,
                                            .options = context.options,
                                            .access = context.access,
                                            .control = controls != nullptr ? *controls : own});
          },
          options),
      region(host.add(memory)) {
    auto connected = host.transport().connect(target.descriptor, patience());
    MC_CHECK(connected.has_value());
    peer = std::move(*connected);
}

bool shell(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

bool shell_at(pid_t pid, const std::string& command) { return shell(format_text("nsenter -t {} -n {}", pid, command)); }

uint64_t received_over(const std::string& link) { return counted(link, 0); }
uint64_t sent_over(const std::string& link) { return counted(link, 8); }

bool make_links(pid_t pid, int count) {
    for (int i = 0; i < count; ++i) {
        const bool made = shell(format_text("ip link add r{} type veth peer name r{} netns {}", i, i, pid)) &&
                          shell(format_text("ip addr add 10.77.{}.1/24 dev r{}", i, i)) &&
                          shell_at(pid, format_text("ip addr add 10.77.{}.2/24 dev r{}", i, i)) &&
                          shell(format_text("ip link set r{} up", i)) && shell_at(pid, format_text("ip link set r{} up", i));
        if (!made) return false;
    }
    return true;
}

bool limit_link(int link, int megabits, pid_t there) {
    const std::string command = format_text("tc qdisc replace dev r{} root tbf rate {}mbit burst 256k latency 50ms", link, megabits);
    return there == 0 ? shell(command) : shell_at(there, command);
}

}  // namespace mooncake::fabric
