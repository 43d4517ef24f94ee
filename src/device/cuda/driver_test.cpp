// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/testing/fake_cuda.h"

namespace mooncake::cuda {
namespace {

using testing::FakeCuda;

class DriverTest : public ::testing::Test {
protected:
    ~DriverTest() override {
        EXPECT_EQ(FakeCuda::count("contexts"), 0u) << "no context is of our making";
        EXPECT_EQ(FakeCuda::count("stack"), 0u) << "the thread has its own context back";
        EXPECT_EQ(FakeCuda::count("mode"), 0u) << "and its own mode";
        EXPECT_EQ(FakeCuda::count("after_end"), 0u);
    }
    static uint64_t references() { return FakeCuda::count("live:contexts"); }

    FakeCuda fake;
};

TEST_F(DriverTest, ALibraryThatIsLoadedLaterIsFoundThen) {
    bool loaded = false;
    int looked = 0;
    Driver driver([&]() -> std::optional<Lookup> {
        ++looked;
        return loaded ? find_loaded_library() : std::nullopt;
    });
    EXPECT_EQ(driver.functions(), nullptr);
    EXPECT_EQ(driver.functions(), nullptr);
    loaded = true;
    EXPECT_NE(driver.functions(), nullptr);
    EXPECT_NE(driver.functions(), nullptr);
    EXPECT_EQ(looked, 3) << "what was found is not looked for again";
}

TEST_F(DriverTest, FindsTheLibraryOfTheProcessByItsName) {
    Driver driver;
    ASSERT_NE(driver.functions(), nullptr);
    EXPECT_NE(driver.functions()->copy_batch, nullptr);
    EXPECT_NE(driver.functions()->copy_batch_old, nullptr);
    EXPECT_EQ(FakeCuda::count("calls"), 0u) << "finding it asks it nothing";
}

TEST_F(DriverTest, ALibraryWithoutANeededFunctionIsNone) {
    Driver driver(FakeCuda::without({"cuMemcpyAsync"}));
    EXPECT_EQ(driver.functions(), nullptr);
    EXPECT_FALSE(Scope::enter(driver, 0));
}

TEST_F(DriverTest, AMissingFunctionThatOnlyHelpsCostsNothingElse) {
    Driver driver(FakeCuda::without({"cuMemcpyBatchAsync_v2", "cuGetErrorName", "cuStreamIsCapturing", "cuMemCreate"}));
    ASSERT_NE(driver.functions(), nullptr);
    EXPECT_EQ(driver.functions()->copy_batch, nullptr);
    EXPECT_EQ(driver.functions()->vmm_create, nullptr);
    EXPECT_TRUE(Scope::enter(driver, 0));
    EXPECT_EQ(driver.name_of(1), "CUDA error (1)");
}

TEST_F(DriverTest, AContextIsHeldOnceAndGivenBackAtTheEnd) {
    const uint64_t before = references();
    {
        Driver driver;
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(Scope::enter(driver, 0));
        EXPECT_EQ(references(), before + 1);
    }
    EXPECT_EQ(references(), before);
}

TEST_F(DriverTest, ADeviceWithoutContextIsLeftAlone) {
    Driver driver([] {
        return std::optional<Lookup>([found = find_loaded_library()](const char* name) -> void* {
            if (std::string_view(name) != "cuDevicePrimaryCtxGetState") return (*found)(name);
            return reinterpret_cast<void*>(+[](abi::DeviceHandle, uint32_t*, int* active) -> abi::Status {
                *active = 0;
                return abi::kSuccess;
            });
        });
    });
    EXPECT_EQ(driver.context(0).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(FakeCuda::count("calls:cuDevicePrimaryCtxRetain"), 0u);
}

TEST_F(DriverTest, DevicesThatDoNotExistAreRefused) {
    Driver driver;
    for (const int device : {-1, 9, 63, 64, 1000}) EXPECT_FALSE(Scope::enter(driver, device)) << device;
    EXPECT_TRUE(Scope::enter(driver, 0)) << "and cost the others nothing";
}

TEST_F(DriverTest, AScopeIsRelaxedAndUndoesItself) {
    Driver driver;
    {
        const auto scope = Scope::enter(driver, 0);
        ASSERT_TRUE(scope);
        EXPECT_EQ(FakeCuda::count("stack"), 1u);
        EXPECT_EQ(FakeCuda::count("mode"), static_cast<uint64_t>(abi::kCaptureRelaxed));
    }
    EXPECT_EQ(FakeCuda::count("stack"), 0u);
}

TEST_F(DriverTest, AScopeThatCannotBeEnteredLeavesNothingBehind) {
    for (const char* const name : {"cuDeviceGet", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
                                   "cuThreadExchangeStreamCaptureMode"}) {
        Driver driver;
        FakeCuda::fail(name, 1, abi::kInvalidValue);
        const auto scope = Scope::enter(driver, 0);
        ASSERT_FALSE(scope) << name;
        EXPECT_NE(scope.error().message().find("CUDA_ERROR_INVALID_VALUE (1)"), std::string::npos) << scope.error().to_string();
        EXPECT_EQ(FakeCuda::count("stack"), 0u) << name;
        EXPECT_TRUE(Scope::enter(driver, 0)) << "the next one can be";
    }
}

TEST_F(DriverTest, ADeviceWithAFinalErrorIsNotAskedAgain) {
    for (const abi::Status status : abi::kStickyErrors) {
        Driver driver;
        ASSERT_TRUE(Scope::enter(driver, 0));
        EXPECT_EQ(driver.check(0, "a copy", status).error().code(), Code::kUnavailable);
        EXPECT_TRUE(driver.dead(0));
        EXPECT_FALSE(driver.dead(1));
        const uint64_t calls = FakeCuda::count("calls");
        const auto scope = Scope::enter(driver, 0);
        ASSERT_FALSE(scope);
        EXPECT_NE(scope.error().message().find(std::to_string(status)), std::string::npos);
        EXPECT_EQ(driver.functions(), nullptr) << "there is no other device";
        EXPECT_EQ(FakeCuda::count("calls"), calls);
        // Its context is not given back either; the fake's count is put right for the next round.
        driver.~Driver();
        EXPECT_EQ(FakeCuda::count("calls"), calls);
        new (&driver) Driver();
    }
}

TEST_F(DriverTest, AnErrorThatPassesDoesNotCostTheDevice) {
    Driver driver;
    for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory, abi::kNotSupported, 999}) {
        EXPECT_FALSE(driver.check(0, "a copy", status));
        EXPECT_FALSE(driver.dead(0));
    }
    EXPECT_EQ(driver.check(0, "an allocation", abi::kOutOfMemory).error().code(), Code::kNoSpace);
}

TEST_F(DriverTest, ADriverThatIsGoingDownIsNeverCalledAgain) {
    Driver driver;
    ASSERT_TRUE(Scope::enter(driver, 0));
    FakeCuda::fail("cuCtxPushCurrent_v2", 1, abi::kDeinitialized);
    EXPECT_FALSE(Scope::enter(driver, 0));
    EXPECT_TRUE(driver.gone());
    EXPECT_FALSE(Scope::enter(driver, 0));
    EXPECT_EQ(driver.functions(), nullptr);
}

TEST_F(DriverTest, AForkedChildOfAProcessThatUsedCudaCallsNothing) {
    Driver driver;
    ASSERT_TRUE(Scope::enter(driver, 0));
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused = !Scope::enter(driver, 0) && driver.functions() == nullptr;
        driver.~Driver();
        ::_exit(refused && FakeCuda::count("in_child") == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(Scope::enter(driver, 0)) << "the parent goes on";
}

}  // namespace
}  // namespace mooncake::cuda
