// SPDX-License-Identifier: Apache-2.0
// The promises of every transport, kept over the emulated libraries of CANN.
#include "device/ascend/testing/emulator.h"
#include "transport/ascend/ascend.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

namespace {

/// Each transport is on the next of the emulator's devices: none is linked to itself.
TransportCase over(std::string name, int tier, const std::function<void(AscendOptions&)>& change = {}) {
    AscendOptions options;
    options.libraries = {ascend::testing::Emulator::file_of(tier)};
    options.api = "adxl";
    options.transfer_timeout = 20s;
    if (change) change(options);
    TransportCase made{.name = std::move(name), .make = [options, tier](const TransportContext& context) {
                           const ascend::testing::Emulator emulator(tier);
                           static std::atomic<int> next{0};
                           emulator.set_device(next++ % 2);
                           return ascend::make_ascend_transport(context, options);
                       }};
    made.options.bind_address = "127.0.0.1";
    return made;
}

const TransportCase kCases[] = {
    over("tier_82", 82),
    over("tier_85_async", 85, [](AscendOptions& options) { options.async = true; }),
    over("tier_92", 92),
    over("tier_92_explicit", 92, [](AscendOptions& options) { options.auto_connect = false; }),
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(Ascend, TransportConformance, ::testing::ValuesIn(kCases), case_name);
INSTANTIATE_TEST_SUITE_P(Ascend, TransportStops, ::testing::ValuesIn(kCases), case_name);
INSTANTIATE_TEST_SUITE_P(Ascend, TransportOfTwo, ::testing::ValuesIn(kCases), case_name);

}  // namespace mooncake::testing
