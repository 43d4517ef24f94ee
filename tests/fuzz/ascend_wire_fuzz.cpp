// SPDX-License-Identifier: Apache-2.0
// Endpoints, questions and answers of Ascend transports: what is taken comes back the same.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "transport/ascend/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake::ascend;  // NOLINT(google-build-using-namespace): one function
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    if (const auto request = decode_request(bytes)) MC_CHECK(encode(*request).size() == size);
    if (const auto answer = decode_answer(bytes)) MC_CHECK(decode_answer(encode(*answer)).value().regions == answer->regions);
    const std::string text(reinterpret_cast<const char*>(data), size);
    if (const auto endpoints = decode_endpoints(text)) MC_CHECK(decode_endpoints(encode_endpoints(*endpoints)).value() == *endpoints);
    return 0;
}
