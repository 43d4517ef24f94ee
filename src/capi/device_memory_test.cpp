// SPDX-License-Identifier: Apache-2.0
// The C functions with memory that no CPU may touch: its caller passes addresses, and need not say what they are.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "capi/calls.h"
#include "device/testing/fake_device.h"
#include "mooncake/transfer_engine_c.h"

namespace mooncake {
namespace {

class CapiDeviceMemory : public ::testing::Test {
protected:
    static constexpr size_t kBytes = 1 << 20, kBlock = 4096;

    CapiDeviceMemory() {
        auto made = std::make_unique<testing::FakeDevice>();
        device = made.get();
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::move(made));
        devices = std::make_unique<Devices>(std::move(others));
        const auto handle = capi::start_engine({.local_name = "127.0.0.1", .memory = devices.get()});
        EXPECT_TRUE(handle) << handle.error().to_string();
        if (handle) engine = reinterpret_cast<transfer_engine_t>(*handle);
        card = device->allocate(kBytes);
    }
    ~CapiDeviceMemory() override { destroyTransferEngine(engine); }

    transfer_status_t finish(batch_id_t batch, size_t task) {
        transfer_status_t status{STATUS_WAITING, 0};
        const Deadline limit = Deadline::after(60s);  // against hangs only
        while (getTransferStatus(engine, batch, task, &status) == 0 &&
               (status.status == STATUS_WAITING || status.status == STATUS_PENDING) && !limit.passed())
            std::this_thread::yield();
        return status;
    }
    transfer_request_t request(std::byte* local, std::byte* remote, int opcode = OPCODE_WRITE) {
        return {opcode, local, LOCAL_SEGMENT, reinterpret_cast<uint64_t>(remote), kBlock};
    }

    testing::FakeDevice* device = nullptr;
    std::unique_ptr<Devices> devices;
    transfer_engine_t engine = nullptr;
    std::byte* card = nullptr;
    std::vector<std::byte> host = std::vector<std::byte>(kBytes, std::byte{1});
};

TEST_F(CapiDeviceMemory, IsRegisteredAndMovedLikeAnyOther) {
    ASSERT_EQ(registerLocalMemory(engine, host.data(), kBytes, "*", 1), 0);
    ASSERT_EQ(registerLocalMemory(engine, card, kBytes, "*", 1), 0);
    device->write(card, std::vector<std::byte>(kBlock, std::byte{9}));
    // From the host to the device, from there to the host, within each: one batch.
    transfer_request_t requests[] = {request(host.data(), card + 8 * kBlock), request(card, host.data() + 16 * kBlock),
                                     request(host.data(), host.data() + 24 * kBlock), request(card, card + 32 * kBlock),
                                     request(host.data() + 40 * kBlock, card, OPCODE_READ)};
    const batch_id_t batch = allocateBatchID(engine, std::size(requests));
    ASSERT_EQ(submitTransfer(engine, batch, requests, std::size(requests)), 0);
    for (size_t task = 0; task < std::size(requests); ++task) {
        const auto status = finish(batch, task);
        EXPECT_EQ(status.status, STATUS_COMPLETED) << task;
        EXPECT_EQ(status.transferred_bytes, kBlock) << task;
    }
    EXPECT_EQ(freeBatchID(engine, batch), 0);
    const std::vector<std::byte> ones(kBlock, std::byte{1}), nines(kBlock, std::byte{9});
    const auto at = [&](std::byte* base, size_t block) { return device->read(base + block * kBlock, kBlock); };
    EXPECT_EQ(at(card, 8), ones);
    EXPECT_EQ(at(host.data(), 16), nines);
    EXPECT_EQ(at(host.data(), 24), ones);
    EXPECT_EQ(at(card, 32), nines);
    EXPECT_EQ(at(host.data(), 40), nines);
}

TEST_F(CapiDeviceMemory, ThatWasTakenBackIsNotTouchedAnyMore) {
    ASSERT_EQ(registerLocalMemory(engine, host.data(), kBytes, "*", 1), 0);
    ASSERT_EQ(registerLocalMemory(engine, card, kBytes, "*", 1), 0);
    ASSERT_EQ(unregisterLocalMemory(engine, card), 0);
    for (transfer_request_t one : {request(card, host.data()), request(host.data(), card), request(card, host.data(), OPCODE_READ)}) {
        const batch_id_t batch = allocateBatchID(engine, 1);
        ASSERT_EQ(submitTransfer(engine, batch, &one, 1), 0);
        EXPECT_EQ(finish(batch, 0).status, STATUS_FAILED);
        EXPECT_EQ(freeBatchID(engine, batch), 0);
    }
}

TEST_F(CapiDeviceMemory, ThatEndsInTheMiddleIsRefused) {
    EXPECT_LT(registerLocalMemory(engine, card, kBytes + 4096, "*", 1), 0);
    EXPECT_LT(registerLocalMemory(engine, card + 4096, kBytes, "*", 1), 0);
}

TEST(CapiProtocols, AreThoseOfTheEngineAndThoseThatSomethingStandsInFor) {
    for (const char* const known : {"tcp", "shm", "self", "rdma", "efa", "cxi", "barex", "ub"})
        EXPECT_STREQ(capi::transport_for(known), known) << known;
    for (const char* const unknown : {"", "tc", "nvlink"}) EXPECT_EQ(capi::transport_for(unknown), nullptr) << unknown;
}

}  // namespace
}  // namespace mooncake
