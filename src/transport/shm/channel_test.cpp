// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "transport/testing/conformance.h"

namespace mooncake::shm {
namespace {

using testing::code_of;

struct Ends {
    net::Socket a, b;
    Ends() {
        int fds[2];
        MC_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
        a = net::Socket(fds[0]);
        b = net::Socket(fds[1]);
    }
};

size_t open_descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

TEST(ShmEndpoint, IsReadAsItWasWritten) {
    EXPECT_EQ(decode_endpoint(encode_endpoint("mooncake-0123456789abcdef")).value(), "mooncake-0123456789abcdef");
}

TEST(ShmEndpoint, IsNotSupportedWhenItMakesNoSense) {
    for (const std::string_view text : {"", "3", "3 ", "2 mooncake-1", "mooncake-1", "3 has space", "3 Upper", "3 a/b", "3 \xff"})
        EXPECT_EQ(code_of(decode_endpoint(text)), Code::kNotSupported) << text;
    EXPECT_EQ(code_of(decode_endpoint("3 " + std::string(65, 'a'))), Code::kNotSupported);
    EXPECT_EQ(code_of(decode_endpoint(std::string("3 a\0b", 5))), Code::kNotSupported);
}

TEST(ShmMessage, ArrivesWithItsFiles) {
    const Ends ends;
    const SharedMemory memory = allocate_shared_memory(4096).value();
    const int files[] = {memory.fd(), memory.fd()};
    ASSERT_TRUE(send_message(ends.a.fd(), {.kind = MessageKind::kMemory, .value = 42}, files));
    const Received received = receive_message(ends.b.fd()).value();
    EXPECT_EQ(received.message.kind, MessageKind::kMemory);
    EXPECT_EQ(received.message.value, 42u);
    EXPECT_TRUE(received.files[0].map(true, 4096));
    EXPECT_TRUE(received.files[1].map(true, 4096));
}

TEST(ShmMessage, SaysWhenNothingIsThereAndWhenTheOtherEndIsGone) {
    Ends ends;
    EXPECT_EQ(code_of(receive_message(ends.b.fd())), Code::kBusy);
    ends.a.reset();
    EXPECT_EQ(code_of(receive_message(ends.b.fd())), Code::kUnavailable);
    EXPECT_EQ(code_of(send_message(ends.b.fd(), {})), Code::kUnavailable);
}

TEST(ShmMessage, SaysWhenTheOtherEndDoesNotRead) {
    const Ends ends;
    Result<> sent;
    for (int i = 0; i < 100'000 && sent; ++i) sent = send_message(ends.a.fd(), {});
    EXPECT_EQ(code_of(sent), Code::kBusy);
}

TEST(ShmMessage, IsRefusedWhenItMakesNoSense) {
    const Ends ends;
    Message message{.magic = 1};
    const auto code_of_packet = [&](size_t size) {
        std::vector<std::byte> bytes(size);
        std::memcpy(bytes.data(), &message, std::min(size, sizeof message));
        EXPECT_EQ(::send(ends.a.fd(), bytes.data(), size, 0), static_cast<ssize_t>(size));
        return code_of(receive_message(ends.b.fd()));
    };
    EXPECT_EQ(code_of_packet(sizeof message), Code::kCorrupt);
    message = {.version = 0};
    EXPECT_EQ(code_of_packet(sizeof message), Code::kCorrupt);
    message = {};
    EXPECT_EQ(code_of_packet(sizeof message - 1), Code::kCorrupt);
    EXPECT_EQ(code_of_packet(1), Code::kCorrupt);
    EXPECT_EQ(code_of_packet(sizeof message), Code::kOk);
    EXPECT_EQ(code_of_packet(200), Code::kOk) << "newer versions may say more";
    EXPECT_EQ(code_of_packet(5000), Code::kCorrupt);
}

TEST(ShmMessage, LosesNoDescriptorOfAMessageThatIsRefused) {
    const Ends ends;
    const SharedMemory memory = allocate_shared_memory(4096).value();
    const size_t before = open_descriptors();
    const int files[] = {memory.fd(), memory.fd()};
    ASSERT_TRUE(send_message(ends.a.fd(), {.magic = 1}, files));
    EXPECT_EQ(code_of(receive_message(ends.b.fd())), Code::kCorrupt);
    EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmChannel, TellsWhoIsAtTheOtherEnd) {
    const std::string name = "mooncake-test-" + Incarnation::random().to_string();
    EXPECT_EQ(code_of(connect_local(name, Deadline::after(1s))), Code::kUnavailable);
    const net::Socket listener = listen_local(name).value();
    EXPECT_EQ(code_of(listen_local(name)), Code::kUnavailable) << "the name is taken";
    const net::Socket socket = connect_local(name, Deadline::after(1s)).value();
    const Credentials who = credentials_of(socket.fd()).value();
    EXPECT_EQ(who.pid, ::getpid());
    EXPECT_EQ(who.uid, ::geteuid());
}

}  // namespace
}  // namespace mooncake::shm
