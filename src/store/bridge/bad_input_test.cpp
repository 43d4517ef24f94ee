// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "net/local_socket.h"
#include "store/bridge/testing/thin_pool.h"

/// Clients that lie: each gets an error or loses its connection, and others notice nothing.
namespace mooncake::store::bridge {
namespace {

using store::testing::pattern;
using testing::ThinTest;

constexpr auto kInvalid = static_cast<int64_t>(StoreCode::kInvalidParams);

class BadInput : public ThinTest {
protected:
    void SetUp() override {
        ThinTest::SetUp();
        honest_ = thin();
        auto value = pattern(1000, 1);
        ASSERT_EQ(put(*honest_, "good", value), StoreCode::kOk);
        connect();
    }
    void TearDown() override {
        auto value = pattern(1000, 1);
        EXPECT_TRUE(holds(*honest_, "good", value)) << "the others are served as ever";
        honest_.reset();
        ThinTest::TearDown();
    }
    void connect() {
        socket_ = net::connect_local(socket_name(options_of_bridge_.port), Deadline::after(5s)).value();
        boot_ = {};
        const auto hello = ask(Kind::kHello, {});
        ASSERT_TRUE(hello);
    }
    /// The numbers of the answer; nothing: the connection ended.
    std::optional<std::vector<int64_t>> ask(Kind kind, const Request& request, int file = -1) {
        return exchange({.kind = kind, .request = 1, .boot_high = boot_.high, .boot_low = boot_.low}, encode_request(request), file);
    }
    std::optional<std::vector<int64_t>> exchange(const Head& head, std::span<const std::byte> body, int file = -1) {
        (void)send_frame(socket_.fd(), head, body, file);
        return hear();
    }
    std::optional<std::vector<int64_t>> hear() {
        pollfd ready{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
        EXPECT_EQ(::poll(&ready, 1, 20'000), 1) << "neither an answer nor an end";
        const auto frame = receive_frame(socket_.fd(), *room_);
        if (!frame) return std::nullopt;
        boot_ = frame->head.boot();
        last_ = frame->head.kind;
        if (last_ == Kind::kStale) return std::vector<int64_t>{};
        return decode_reply(frame->body).value().numbers;
    }
    std::optional<std::vector<int64_t>> map(uint32_t entry, uint64_t length, int file) {
        const SharedPiece piece{.entry = entry, .offset = 0, .length = length};
        Request request;
        request.pieces = {&piece, 1};
        return ask(Kind::kMap, request, file);
    }
    int64_t read(SharedPiece piece) {
        const std::string_view key = "good";
        const uint32_t count = 1;
        Request request;
        request.keys = {&key, 1};
        request.piece_counts = {&count, 1};
        request.pieces = {&piece, 1};
        return ask(Kind::kRead, request).value().at(0);
    }
    void raw(const void* bytes, size_t length) {
        iovec data{.iov_base = const_cast<void*>(bytes), .iov_len = length};
        (void)net::send_packet(socket_.fd(), {&data, 1});
    }

    std::unique_ptr<StoreClient> honest_;
    net::Socket socket_;
    std::unique_ptr<PacketRoom> room_ = std::make_unique<PacketRoom>();
    BootId boot_;
    Kind last_ = Kind::kAnswer;
};

TEST_F(BadInput, BytesOutsideAnEntryAreRefused) {
    const auto file = MemoryFile::create("test", 8192).value();
    ASSERT_EQ(map(1, 8192, file.fd())->at(0), 0);
    EXPECT_EQ(read({1, 0, 8192}), 1000);
    EXPECT_EQ(read({1, 7192, 1000}), 1000);
    for (const SharedPiece piece : {SharedPiece{1, 7193, 1000},
                                    {1, 8193, 1},
                                    {1, UINT64_MAX, 2},
                                    {1, 1, UINT64_MAX},
                                    {1, UINT64_MAX - 7, 16},
                                    {1, uint64_t{1} << 63, uint64_t{1} << 63},
                                    {0, 0, 1000},
                                    {2, 0, 1000},
                                    {UINT32_MAX, 0, 1000}})
        EXPECT_EQ(read(piece), kInvalid) << piece.entry << " " << piece.offset << " " << piece.length;
}

TEST_F(BadInput, EntriesOfOthersAreUnknown) {
    // The working memory of the honest one has the number 1 there. Here nothing has it.
    EXPECT_EQ(read({1, 0, 1000}), kInvalid);
    const SharedPiece theirs{.entry = 1};
    Request request;
    request.pieces = {&theirs, 1};
    EXPECT_EQ(ask(Kind::kIsMapped, request)->at(0), 0);
    EXPECT_EQ(ask(Kind::kUnmap, request)->at(0), kInvalid);
}

TEST_F(BadInput, MemoryThatCouldVanishIsNotTaken) {
    const UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(loose.get(), 8192), 0);
    EXPECT_EQ(map(1, 8192, loose.get())->at(0), kInvalid) << "it may be cut off later";
    const UniqueFd unsealable(::memfd_create("unsealable", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(unsealable.get(), 8192), 0);
    EXPECT_EQ(map(1, 8192, unsealable.get())->at(0), kInvalid);
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    EXPECT_EQ(map(1, 4096, null.get())->at(0), kInvalid);
    const UniqueFd self(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(map(1, 4096, self.get())->at(0), kInvalid);
    const auto sealed = MemoryFile::create("test", 4096).value();
    EXPECT_EQ(map(1, 8192, sealed.fd())->at(0), kInvalid) << "shorter than told";
    EXPECT_EQ(map(1, 100, sealed.fd())->at(0), kInvalid) << "longer than told";
    EXPECT_EQ(map(1, 0, sealed.fd())->at(0), kInvalid);
    EXPECT_EQ(map(0, 4096, sealed.fd())->at(0), kInvalid) << "no entry has this number";
    EXPECT_EQ(map(1, 4096, -1)->at(0), kInvalid) << "without a file";
    EXPECT_EQ(map(1, 4096, sealed.fd())->at(0), 0);
    EXPECT_EQ(map(1, 4096, sealed.fd())->at(0), kInvalid) << "the number is taken";
}

TEST_F(BadInput, TruncatedMemoryDoesNotEndTheNode) {
    const auto file = MemoryFile::create("test", 8192).value();
    ASSERT_EQ(map(1, 8192, file.fd())->at(0), 0);
    EXPECT_NE(::ftruncate(file.fd(), 0), 0) << "it is sealed";
    ASSERT_EQ(::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
    EXPECT_EQ(read({1, 0, 8192}), 1000) << "a hole gets new pages";
}

TEST_F(BadInput, TooManyEntriesAreRefused) {
    const auto file = MemoryFile::create("test", 4096).value();
    for (uint32_t entry = 1; entry <= kEntriesMax; ++entry) ASSERT_EQ(map(entry, 4096, file.fd())->at(0), 0) << entry;
    EXPECT_EQ(map(kEntriesMax + 1, 4096, file.fd())->at(0), static_cast<int64_t>(StoreCode::kBufferOverflow));
    const SharedPiece one{.entry = 17};
    Request request;
    request.pieces = {&one, 1};
    EXPECT_EQ(ask(Kind::kUnmap, request)->at(0), 0);
    EXPECT_EQ(map(kEntriesMax + 1, 4096, file.fd())->at(0), 0);
}

TEST_F(BadInput, AnotherBootOrANewerTableIsStale) {
    const Head good{.kind = Kind::kPing, .request = 9, .boot_high = boot_.high, .boot_low = boot_.low};
    Head other = good;
    other.boot_low ^= 1;
    ASSERT_TRUE(exchange(other, encode_request({})));
    EXPECT_EQ(last_, Kind::kStale);
    other = good;
    other.table = 1;
    ASSERT_TRUE(exchange(other, encode_request({})));
    EXPECT_EQ(last_, Kind::kStale);
    ASSERT_TRUE(exchange(good, encode_request({})));
    EXPECT_EQ(last_, Kind::kAnswer);
}

TEST_F(BadInput, NonsenseEndsTheConnection) {
    const Head good{.kind = Kind::kExist, .request = 9, .boot_high = boot_.high, .boot_low = boot_.low};
    const auto sent_away = [&](const char* what) {
        EXPECT_EQ(hear(), std::nullopt) << what;
        connect();
    };
    raw("garbage", 7);
    sent_away("half a head");
    raw(std::string(60'000, 'x').data(), 60'000);
    sent_away("no head");
    raw(std::string(kPacketBytesMax + 100, 'x').data(), kPacketBytesMax + 100);
    sent_away("too long");
    for (const auto& change : std::vector<std::function<void(Head&)>>{
             [](Head& head) { head.magic = 1; }, [](Head& head) { head.version = 2; }, [](Head& head) { head.kind = static_cast<Kind>(0); },
             [](Head& head) { head.kind = static_cast<Kind>(999); }, [](Head& head) { head.body_bytes = 5; },
             [](Head& head) { head.body_bytes = UINT64_MAX; }, [](Head& head) { head.body_bytes = kBodyBytesMax; }}) {
        Head bad = good;
        bad.boot_high = boot_.high;
        bad.boot_low = boot_.low;
        change(bad);
        raw(&bad, sizeof bad);
        sent_away("a bad head");
    }
    Head answer{.kind = Kind::kAnswer, .request = 1, .boot_high = boot_.high, .boot_low = boot_.low};
    raw(&answer, sizeof answer);
    sent_away("an answer to nothing");
    for (const Kind kind : {Kind::kExist, Kind::kCreateTask, Kind::kQueryTask, Kind::kMap}) {
        const auto body = pattern(300, 9);
        EXPECT_EQ(exchange({.kind = kind, .request = 1, .boot_high = boot_.high, .boot_low = boot_.low}, body), std::nullopt);
        connect();
    }
}

TEST_F(BadInput, ListsThatDoNotAgreeEndTheConnection) {
    const std::string_view keys[] = {"a", "b"};
    const uint32_t counts[] = {1, 5};
    const SharedPiece pieces[] = {{1, 0, 1}, {1, 0, 1}};
    Request request;
    request.keys = keys;
    request.piece_counts = counts;
    request.pieces = pieces;
    EXPECT_EQ(ask(Kind::kRead, request), std::nullopt);
    connect();
    const uint64_t offset = 0;
    request = {};
    request.keys = keys;
    request.offsets = {&offset, 1};
    EXPECT_EQ(ask(Kind::kReadParts, request), std::nullopt);
    connect();
    request = {};
    request.keys = keys;
    EXPECT_EQ(ask(Kind::kReadParts, request), (std::vector<int64_t>{kInvalid, kInvalid})) << "no memory is named";
    EXPECT_EQ(ask(Kind::kMap, request)->at(0), kInvalid);
    EXPECT_EQ(ask(Kind::kWrite, request), (std::vector<int64_t>{kInvalid, kInvalid})) << "values without bytes";
}

TEST_F(BadInput, WhoDoesNotReadItsAnswersIsSentAway) {
    const auto body = encode_request({});
    const Head ping{.kind = Kind::kPing, .request = 1, .boot_high = boot_.high, .boot_low = boot_.low};
    EXPECT_TRUE(eventually(
        [&] {
            const auto sent = send_frame(socket_.fd(), ping, body);
            return (!sent && sent.error().code() == Code::kUnavailable) || server_->guests() == 1;
        },
        60s));
}

TEST_F(BadInput, MoreMemoryThanAllowedIsRefused) {
    socket_.reset();
    honest_.reset();
    stop_server();
    options_of_bridge_.guest.memory_max = 16 * kMiB;
    start_server();
    honest_ = thin();
    connect();
    const auto file = MemoryFile::create("test", 16 * kMiB + 4096).value();
    EXPECT_EQ(map(1, 16 * kMiB + 4096, file.fd())->at(0), static_cast<int64_t>(StoreCode::kBufferOverflow));
    EXPECT_EQ(map(1, UINT64_MAX, file.fd())->at(0), static_cast<int64_t>(StoreCode::kBufferOverflow));
    const auto fits = MemoryFile::create("test", 16 * kMiB).value();
    EXPECT_EQ(map(1, 16 * kMiB, fits.fd())->at(0), 0);
}

}  // namespace
}  // namespace mooncake::store::bridge
