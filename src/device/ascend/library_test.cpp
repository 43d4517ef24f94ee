// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "device/ascend/testing/emulator.h"
#include "device/ascend/xfer_engine.h"

namespace mooncake::ascend {
namespace {

using testing::Emulator;
using ::testing::HasSubstr;

/// A fresh thread, which has no context.
template <typename Body>
void on_a_thread(Body body) {
    std::thread(body).join();
}

LibraryQuery file(const std::string& name, const std::string& api = "adxl") { return {.files = {name}, .api = api}; }

TEST(AscendLibrary, SaysWhichFileIsNotThere) {
    const auto missing = load_library(file("/nowhere/libascendcl.so"));
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code(), Code::kNotSupported);
    EXPECT_THAT(missing.error().message(), HasSubstr("/nowhere/libascendcl.so"));
    EXPECT_FALSE(load_library({.home = "/nowhere"})) << "no CANN is installed here";
}

TEST(AscendLibrary, RefusesAFileThatIsNoLibrary) {
    const std::string name = ::testing::TempDir() + "not_a_library.so";
    std::ofstream(name) << "text";
    EXPECT_EQ(load_library(file(name)).error().code(), Code::kNotSupported);
}

TEST(AscendLibrary, NamesTheFunctionThatIsMissing) {
    const auto no_hixl = load_library(file(Emulator::file_of(91), "hixl"));
    ASSERT_FALSE(no_hixl);
    EXPECT_THAT(no_hixl.error().message(), HasSubstr("_ZN4hixl4HixlC1Ev"));
    const auto other = load_library(file("libm.so.6"));
    EXPECT_THAT(other.error().message(), HasSubstr("aclrtGetDeviceCount"));
}

TEST(AscendLibrary, KnowsEachTierByItsFunctions) {
    struct Tier {
        int tier;
        bool async, auto_connect, client_server;
    };
    for (const Tier& tier : {Tier{82, false, false, false}, Tier{85, true, false, false}, Tier{90, true, true, false},
                             Tier{91, true, true, true}, Tier{92, true, true, true}}) {
        const auto library = load_library(file(Emulator::file_of(tier.tier)));
        ASSERT_TRUE(library) << library.error().to_string();
        EXPECT_EQ((*library)->can_async(), tier.async) << tier.tier;
        EXPECT_EQ((*library)->can_auto_connect(), tier.auto_connect) << tier.tier;
        EXPECT_EQ((*library)->can_client_server(), tier.client_server) << tier.tier;
        EXPECT_EQ(load_library(file(Emulator::file_of(tier.tier)))->get(), library->get()) << "loaded once";
    }
    EXPECT_TRUE(load_library(file(Emulator::file_of(92), "hixl")).value()->successor);
}

TEST(AscendLibrary, BelievesALibraryThatSaysItCannot) {
    const Emulator emulator(92);
    emulator.set_faults("GetCapability->return:0");
    EXPECT_FALSE(emulator.library()->can_auto_connect());
}

TEST(AscendLibrary, RefusesStringsThatAreNotWhatWeKnow) {
    const Emulator emulator(85);
    emulator.set_faults("GetString->return:0");
    const auto library = load_library({.files = {Emulator::file_of(85)}, .home = "anew", .api = "adxl"});
    ASSERT_FALSE(library);
    EXPECT_THAT(library.error().message(), HasSubstr("self-check"));
    emulator.set_faults("");
}

TEST(AscendLibrary, FindsARuntimeThatSomebodyElseHasLoaded) {
    EXPECT_EQ(find_runtime(file("/nowhere/libascendcl.so")), nullptr);
    const Emulator emulator(92);
    const auto acl = find_runtime(emulator.query());
    ASSERT_NE(acl, nullptr);
    EXPECT_EQ(acl->device_count().value(), 4);
}

TEST(AscendContext, IsPutBack) {
    const Emulator emulator;
    const auto library = emulator.library();
    on_a_thread([&] {
        const abi::Context other = library->acl.context_of(2).value();
        emulator.set_device(1);
        {
            const auto scope = ContextScope::enter(library->acl, other);
            ASSERT_TRUE(scope);
            EXPECT_EQ(emulator.device_of_thread(), 2);
        }
        EXPECT_EQ(emulator.device_of_thread(), 1);
        EXPECT_EQ(library->acl.context_of(9).error().code(), Code::kInvalidArgument);
        EXPECT_EQ(emulator.device_of_thread(), 1);
    });
}

TEST(AscendErrors, NameLibraryFunctionCodeAndDevice) {
    const Emulator emulator;
    on_a_thread([&] {
        const Error error = emulator.library()->acl.context_of(9).error();
        EXPECT_THAT(error.message(), HasSubstr("ascend_92.so"));
        EXPECT_THAT(error.message(), HasSubstr("aclrtSetDevice on device 9 answered 107000: no such device"));
    });
}

/// Two engines of the library, on devices 0 and 1.
class XferEngineTest : public ::testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        library = load_library(emulator.query(GetParam())).value();
        for (int device = 0; device < 2; ++device) {
            engines[device] = std::make_unique<XferEngine>(library, device);
            ASSERT_TRUE(open(*engines[device]));
        }
    }
    Result<> open(XferEngine& engine) {
        Result<> opened;
        for (int port = 21000 + next_; port < 22000; ++port, ++next_) {
            opened = engine.open(format_text("127.0.0.1:{}", port), {{"adxl.BufferPool", "0:0"}, {"adxl.RdmaTrafficClass", "132"}});
            if (opened) break;
        }
        return opened;
    }

    Emulator emulator;
    std::shared_ptr<const Library> library;
    std::unique_ptr<XferEngine> engines[2];
    int next_ = 0;
};

TEST_P(XferEngineTest, MovesMemoryOfDevices) {
    constexpr uint64_t kBytes = 1 << 20;
    std::byte* const here = emulator.allocate(0, kBytes);
    std::byte* const there = emulator.allocate(1, kBytes);
    std::vector<std::byte> text(kBytes, std::byte{7});
    emulator.write(here, text);
    ASSERT_TRUE(engines[0]->add(reinterpret_cast<uint64_t>(here), kBytes, false));
    ASSERT_TRUE(engines[1]->add(reinterpret_cast<uint64_t>(there), kBytes, false));
    EXPECT_FALSE(engines[1]->add(reinterpret_cast<uint64_t>(here), kBytes, false)) << "another device's";

    const std::string& peer = engines[1]->name();
    abi::Descriptions parts;
    for (uint64_t i = 0; i < 5000; ++i)
        parts.push_back({reinterpret_cast<uintptr_t>(here) + i * 200, reinterpret_cast<uintptr_t>(there) + i * 200, 200});
    EXPECT_EQ(engines[0]->transfer(peer, true, parts, 5s), abi::kNotConnected);
    ASSERT_EQ(engines[0]->connect(peer, 5s), abi::kSuccess);
    EXPECT_EQ(engines[0]->connect(peer, 5s), abi::kAlreadyConnected);
    EXPECT_EQ(engines[0]->transfer(peer, true, parts, 5s), abi::kSuccess);
    EXPECT_EQ(emulator.read(there, 1'000'000), std::vector<std::byte>(1'000'000, std::byte{7}));

    XferEngine::Request request = nullptr;
    parts.resize(1);
    ASSERT_EQ(engines[0]->transfer_async(peer, false, parts, request), abi::kSuccess);
    abi::TransferState state = abi::kWaiting;
    while (state == abi::kWaiting) ASSERT_EQ(engines[0]->poll(request, state), abi::kSuccess);
    EXPECT_EQ(state, abi::kCompleted);
    EXPECT_EQ(engines[0]->poll(request, state), abi::kParamInvalid) << "it is gone";
    EXPECT_EQ(engines[0]->disconnect(peer, 5s), abi::kSuccess);
    EXPECT_EQ(engines[0]->disconnect(peer, 5s), abi::kNotConnected);
    emulator.free(here);
    emulator.free(there);
}

TEST_P(XferEngineTest, PassesManyOptions) {
    XferEngine third(library, 2);
    const XferEngine::Options options{{"adxl.BufferPool", "4:8"}, {"adxl.RdmaTrafficClass", "4"}, {"adxl.RdmaServiceLevel", "7"},
                                      {"AutoConnect", "1"},       {"EnableUseFabricMem", "0"},    {"GlobalResourceConfig", "{}"}};
    const auto opened = third.open("127.0.0.1:0", options);
    EXPECT_TRUE(opened) << opened.error().to_string();
    third.close();
    const auto wrong = third.open("127.0.0.1:0", {{"adxl.RdmaTrafficClass", "3"}});
    ASSERT_FALSE(wrong);
    EXPECT_THAT(wrong.error().message(), HasSubstr("Initialize on device 2"));
    EXPECT_THAT(wrong.error().message(), HasSubstr("103900 (PARAM_INVALID)"));
    EXPECT_FALSE(third.open("127.0.0.1:0", {{"unheard of", "1"}}));
}

TEST_P(XferEngineTest, LeavesTheCallersContextAlone) {
    on_a_thread([&] {
        emulator.set_device(3);
        ASSERT_EQ(engines[0]->connect(engines[1]->name(), 5s), abi::kSuccess);
        EXPECT_EQ(emulator.device_of_thread(), 3);
    });
}

INSTANTIATE_TEST_SUITE_P(Apis, XferEngineTest, ::testing::Values("adxl", "hixl"));

}  // namespace
}  // namespace mooncake::ascend
