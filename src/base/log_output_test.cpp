// SPDX-License-Identifier: Apache-2.0
#include "base/log_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"

namespace mooncake {
namespace {

class LogOutputTest : public testing::Test {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        reader_ = UniqueFd(ends[0]);
        writer_ = UniqueFd(ends[1]);
    }
    /// Until a blocking write of even one byte would wait.
    static void fill(int descriptor) {
        const int flags = ::fcntl(descriptor, F_GETFL);
        ASSERT_EQ(::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK), 0);
        const std::string junk(4096, '.');
        for (size_t size : {junk.size(), size_t{1}})
            while (::write(descriptor, junk.data(), size) > 0) {}
        ASSERT_EQ(::fcntl(descriptor, F_SETFL, flags), 0);
    }
    static std::string read_all(int descriptor) {
        std::string text(size_t{1} << 20, '\0');
        const int flags = ::fcntl(descriptor, F_GETFL);
        ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
        size_t size = 0;
        for (ssize_t got = 0; (got = ::read(descriptor, text.data() + size, text.size() - size)) > 0;) size += static_cast<size_t>(got);
        ::fcntl(descriptor, F_SETFL, flags);
        text.resize(size);
        return text.substr(text.find_last_of('.') == std::string::npos ? 0 : text.find_last_of('.') + 1);
    }

    UniqueFd reader_, writer_;
};

TEST_F(LogOutputTest, WritesWholeLines) {
    LogOutput output(writer_.get());
    output.write("one\n");
    output.write("two\n");
    EXPECT_EQ(read_all(reader_.get()), "one\ntwo\n");
}

TEST_F(LogOutputTest, DoesNotWaitForAReaderAndSaysWhatIsMissing) {
    fill(writer_.get());
    LogOutput output(writer_.get());
    for (int i = 0; i < 1000; ++i) output.write("nobody reads this\n");
    read_all(reader_.get());
    output.write("there you are\n");
    EXPECT_EQ(read_all(reader_.get()), "mooncake: 1000 lines were left out, as nobody read them\nthere you are\n");
    output.write("and again\n");
    EXPECT_EQ(read_all(reader_.get()), "and again\n");
}

TEST_F(LogOutputTest, ALineLongerThanAPipeIsCutAndTheNextOneBeginsAnew) {
    LogOutput output(writer_.get());
    output.write(std::string(1 << 20, 'x') + "\n");
    const std::string cut = read_all(reader_.get());
    EXPECT_LT(cut.size(), size_t{1} << 20);
    EXPECT_EQ(cut.find_first_not_of('x'), std::string::npos);
    output.write("next\n");
    EXPECT_EQ(read_all(reader_.get()), "\nmooncake: 1 lines were left out, as nobody read them\nnext\n");
}

TEST_F(LogOutputTest, DoesNotDieOfAReaderThatIsGone) {
    reader_ = UniqueFd();
    LogOutput output(writer_.get());
    EXPECT_EXIT(
        {
            ::signal(SIGPIPE, SIG_DFL);
            output.write("nobody is there\n");
            ::_exit(0);
        },
        testing::ExitedWithCode(0), "");
}

TEST_F(LogOutputTest, DoesNotWaitForALogServiceThatHangs) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd service(ends[0]), ours(ends[1]);
    fill(ours.get());
    LogOutput output(ours.get());
    for (int i = 0; i < 1000; ++i) output.write("nobody reads this\n");
    read_all(service.get());
    output.write("there you are\n");
    EXPECT_EQ(read_all(service.get()), "mooncake: 1000 lines were left out, as nobody read them\nthere you are\n");
}

TEST_F(LogOutputTest, ADescriptorThatIsNotThereIsNobody) {
    LogOutput output(-1);
    output.write("nothing\n");
    SUCCEED();
}

}  // namespace
}  // namespace mooncake
