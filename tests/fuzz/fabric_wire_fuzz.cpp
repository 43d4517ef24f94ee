// SPDX-License-Identifier: Apache-2.0
// What the fabric transport says in its descriptor and over the control plane.
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/fabric/plan.h"
#include "transport/fabric/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    using namespace mooncake::fabric;
    constexpr size_t kRails = 4;
    const auto bytes = std::as_bytes(std::span(data, size));
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    (void)page_bytes_in(text, 0x7f0000000000, 1 << 20);
    // What is understood can be said again, and names nothing that is not there.
    if (const auto blob = decode_endpoint(text)) MC_CHECK(decode_endpoint(encode_endpoint(*blob)).value() == *blob);
    if (const auto request = decode_request(bytes, kRails)) {
        const auto again = decode_request(encode_request(*request), kRails);
        MC_CHECK(again && again->initiator == request->initiator && again->body == request->body);
    }
    if (const auto answer = decode_resolve_answer(bytes, kRails)) {
        MC_CHECK(decode_resolve_answer(encode_answer(*answer), kRails).value() == *answer);
        for (const ChunkRecord& chunk : answer->chunks)
            for (uint32_t rail = 0; rail < kRailsMax; ++rail) MC_CHECK(!chunk.key(rail) || rail < kRails);
    }
    if (const auto answer = decode_rails_answer(bytes, kRails))
        MC_CHECK(decode_rails_answer(encode_answer(*answer), kRails).value() == *answer);
    return 0;
}
