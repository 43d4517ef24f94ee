// SPDX-License-Identifier: Apache-2.0
// What clients, instances and publishers may send to the conductor. Whatever is taken must come out of every dialect as a request.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "conductor/proxy/dialect.h"
#include "conductor/proxy/event_feed.h"
#include "conductor/proxy/events.h"
#include "conductor/proxy/kv_events.h"
#include "conductor/proxy/pages.h"
#include "conductor/proxy/zmtp.h"
#include "conductor/simulate/trace.h"

namespace {

using namespace mooncake;
using namespace mooncake::conductor;

void request(std::string_view text) {
    const Json body = Json::parse(text, nullptr, false);
    (void)cached_tokens_of(body);
    if (!body.is_object() || !prompt_of(body)) return;
    const Endpoint prefill{.name = "p", .host = "h", .port = 1};
    const HandOver hand_over{.request_id = "r", .transfer_id = "t", .room = 7, .callback_url = "u"};
    for (const std::string_view name : dialect_names()) {
        const auto dialect = make_dialect(name).value();
        MC_CHECK(dialect->prefill_body(body, prefill, hand_over).is_object());
        const auto decode = dialect->decode_body(body, prefill, hand_over, &body);
        MC_CHECK(!decode || decode->is_object());
        MC_CHECK(dialect->called_back_body(body, body, prefill, hand_over).is_object());
    }
}

void published(std::string_view bytes) {
    zmtp::Parser parser;
    (void)parser.feed(bytes.substr(0, bytes.size() / 2)).and_then([&](auto&&) { return parser.feed(bytes.substr(bytes.size() / 2)); });
    const auto events = parse_kv_events(bytes);
    if (!events) return;
    PrefixIndex index;
    index.add_instance(0, 10);
    KvView view(1, 4);
    for (const KvEvent& event : *events) view.apply(event, index, 0);
    MC_CHECK(index.size(0) <= view.size());
    view.clear(index, 0);
    MC_CHECK(index.size(0) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    request(text);
    published(text);
    (void)parse_member(text);
    (void)parse_member_address(text, Role::kBoth);
    (void)parse_feed(text, 4);
    (void)parse_trace(text);
    EventSplitter splitter(1 << 20);
    if (const auto events = splitter.feed(text)) {
        for (const std::string& event : *events) (void)correct_event_usage(event, 3);
    }
    (void)correct_usage(std::string(text), 3);
    return 0;
}
