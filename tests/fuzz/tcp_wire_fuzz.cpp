// SPDX-License-Identifier: Apache-2.0
// What arrives on the port of the tcp transport, as the target and as the initiator read it.
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/wire.h"

namespace {

using namespace mooncake;
using namespace mooncake::tcp;

void read_messages(std::span<const std::byte> bytes, bool checked) {
    std::vector<AddressRange> ranges;
    while (bytes.size() >= kHeaderBytes) {
        const auto header = decode_header(bytes.first<kHeaderBytes>());
        if (!header || head_bytes(*header) > bytes.size()) return;
        const auto head = bytes.first(head_bytes(*header));
        if (checked && !head_intact(head)) return;
        if (header->kind == Kind::kWrite || header->kind == Kind::kRead) {
            if (!decode_descriptors(*header, head, checked, ranges)) return;
            uint64_t total = 0;
            for (const AddressRange& range : std::span(ranges).subspan(header->part ? 1 : 0)) total += range.length;
            MC_CHECK(total == header->payload_bytes && total > 0 && total <= kPayloadBytesMax);
        }
        std::vector<std::byte> again;
        append_head(*header, ranges, false, again);
        ranges.clear();
        bytes = bytes.subspan(head.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    (void)may_be_hello(bytes);
    if (const size_t length = hello_bytes(bytes); length > 0 && length <= bytes.size()) {
        if (const auto hello = decode_hello(bytes.first(length))) MC_CHECK(*decode_hello(encode(*hello)) == *hello);
    }
    if (bytes.size() >= kHelloReplyBytes) {
        size_t text_bytes = 0;
        if (decode_hello_reply(bytes.first<kHelloReplyBytes>(), text_bytes)) MC_CHECK(text_bytes <= kTextBytesMax);
    }
    read_messages(bytes, false);
    read_messages(bytes, true);
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto endpoint = parse_endpoint(text)) MC_CHECK(*parse_endpoint(format_endpoint(*endpoint)) == *endpoint);
    return 0;
}
