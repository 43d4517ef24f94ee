// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/dialect.h"

#include <gtest/gtest.h>

#include "conductor/proxy/events.h"

namespace mooncake::conductor {
namespace {

const Endpoint kPrefill{.name = "p", .host = "10.0.0.1", .port = 8100, .bootstrap_port = 8998, .engine_id = "engine-1"};
const Json kRequest = Json::parse(R"({"model": "m", "prompt": "hello", "stream": true, "stream_options": {"include_usage": true},
                                      "max_tokens": 100, "min_tokens": 5})");
const HandOver kHandOver{.request_id = "r", .transfer_id = "x1", .room = 77, .callback_url = "http://me/v1/metaserver"};

std::unique_ptr<Dialect> dialect(std::string_view name) { return make_dialect(name).value(); }

TEST(Dialect, KnowsSixAndNoOthers) {
    EXPECT_EQ(dialect_names().size(), 6u);
    for (const auto name : dialect_names()) EXPECT_EQ(dialect(name)->name(), name);
    EXPECT_FALSE(make_dialect("esperanto"));
}

TEST(Dialect, AsksPrefillInstancesOfVllmForOneTokenOnly) {
    for (const auto name : {"vllm-mooncake", "vllm-pull", "ascend-pull", "ascend-layerwise", "vllm-multiturn"}) {
        const Json body = dialect(name)->prefill_body(kRequest, kPrefill, kHandOver);
        EXPECT_EQ(body["max_tokens"], 1) << name;
        EXPECT_EQ(body["stream"], false) << name;
        EXPECT_FALSE(body.contains("stream_options")) << name;
        EXPECT_FALSE(body.contains("min_tokens")) << name;
        EXPECT_EQ(body["kv_transfer_params"]["do_remote_decode"], true) << name;
        EXPECT_EQ(body["prompt"], "hello") << name;
    }
    Json chat = kRequest;
    chat["max_completion_tokens"] = 50;
    EXPECT_EQ(dialect("vllm-pull")->prefill_body(chat, kPrefill, kHandOver)["max_completion_tokens"], 1);
}

TEST(Dialect, LeavesTheRequestAsItIsForDecodeInstances) {
    const Json said = Json::parse(R"({"kv_transfer_params": {"remote_host": "10.0.0.1", "remote_port": 5, "extra": [1, 2]}})");
    for (const auto name : dialect_names()) {
        const Json body = dialect(name)->decode_body(kRequest, kPrefill, kHandOver, &said).value();
        EXPECT_EQ(body["max_tokens"], 100) << name;
        EXPECT_EQ(body["stream"], true) << name;
        EXPECT_EQ(body["stream_options"]["include_usage"], true) << name;
    }
}

TEST(Dialect, OfVllmMooncakeMeetsUnderATransferId) {
    const auto spoken = dialect("vllm-mooncake");
    EXPECT_EQ(spoken->sequence(), Sequence::kTogether);
    EXPECT_TRUE(spoken->needs_engine_id());
    const Json prefill = spoken->prefill_body(kRequest, kPrefill, kHandOver)["kv_transfer_params"];
    const Json decode = spoken->decode_body(kRequest, kPrefill, kHandOver, nullptr).value()["kv_transfer_params"];
    EXPECT_EQ(prefill, Json::parse(R"({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "x1"})"));
    EXPECT_EQ(decode, Json::parse(R"({"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": "x1",
                                      "remote_bootstrap_addr": "http://10.0.0.1:8998", "remote_engine_id": "engine-1"})"));
}

TEST(Dialect, ThatPullsPassesOnAllThatThePrefillInstanceSaid) {
    const Json said = Json::parse(R"({"kv_transfer_params": {"remote_host": "h", "remote_ptp_size": 4, "last_token_id": 9}, "usage": {}})");
    for (const auto name : {"vllm-pull", "ascend-pull", "vllm-multiturn"}) {
        EXPECT_EQ(dialect(name)->sequence(), Sequence::kPrefillFirst);
        EXPECT_EQ(dialect(name)->decode_body(kRequest, kPrefill, kHandOver, &said).value()["kv_transfer_params"],
                  said["kv_transfer_params"]);
        for (const char* bad :
             {"{}", R"({"kv_transfer_params": null})", R"({"kv_transfer_params": {}})", R"({"kv_transfer_params": [1]})"}) {
            const Json nothing = Json::parse(bad);
            const auto body = dialect(name)->decode_body(kRequest, kPrefill, kHandOver, &nothing);
            ASSERT_FALSE(body) << bad;
            EXPECT_EQ(body.error().code(), Code::kCorrupt);
        }
    }
}

TEST(Dialect, ThatIsLayerwiseIsCalledBack) {
    const auto spoken = dialect("ascend-layerwise");
    EXPECT_EQ(spoken->sequence(), Sequence::kDecodeFirst);
    const Json decode = spoken->decode_body(kRequest, kPrefill, kHandOver, nullptr).value()["kv_transfer_params"];
    EXPECT_EQ(decode["metaserver"], "http://me/v1/metaserver");
    EXPECT_EQ(decode["do_remote_prefill"], true);
    const Json call = Json::parse(R"({"request_id": "r", "remote_block_ids": [3, 4], "do_remote_prefill": true})");
    const Json prefill = spoken->called_back_body(kRequest, call, kPrefill, kHandOver)["kv_transfer_params"];
    EXPECT_EQ(prefill["remote_block_ids"], call["remote_block_ids"]);
    EXPECT_EQ(prefill["do_remote_decode"], true);
    EXPECT_EQ(prefill["do_remote_prefill"], false);
}

TEST(Dialect, OfSglangGivesBothTheSameRoom) {
    const auto spoken = dialect("sglang");
    EXPECT_EQ(spoken->sequence(), Sequence::kTogether);
    const Json prefill = spoken->prefill_body(kRequest, kPrefill, kHandOver);
    EXPECT_EQ(prefill, spoken->decode_body(kRequest, kPrefill, kHandOver, nullptr).value());
    EXPECT_EQ(prefill["bootstrap_host"], "10.0.0.1");
    EXPECT_EQ(prefill["bootstrap_port"], 8998);
    EXPECT_EQ(prefill["bootstrap_room"], 77);
}

TEST(Dialect, OfSglangGivesEachPromptOfABatchItsRoom) {
    Json batch = kRequest;
    batch["prompt"] = {"a", "b", "c"};
    const Json body = dialect("sglang")->prefill_body(batch, kPrefill, kHandOver);
    EXPECT_EQ(body["bootstrap_room"], Json::parse("[77, 78, 79]"));
    EXPECT_EQ(body["bootstrap_host"].size(), 3u);
    EXPECT_EQ(body["bootstrap_port"].size(), 3u);
    batch["prompt"] = {1, 2, 3};  // the tokens of one prompt
    EXPECT_EQ(dialect("sglang")->prefill_body(batch, kPrefill, kHandOver)["bootstrap_room"], 77);
}

TEST(Dialect, OfSeveralTurnsTellsThePrefillInstanceWhatTheLastTurnLeft) {
    const auto spoken = dialect("vllm-multiturn");
    EXPECT_TRUE(spoken->remembers_conversations());
    const Json remembered = Json::parse(
        R"({"remote_host": "d", "remote_block_ids": [1], "do_remote_decode": false, "do_remote_prefill": true})");
    HandOver second = kHandOver;
    second.remembered = &remembered;
    const Json body = spoken->prefill_body(kRequest, kPrefill, second)["kv_transfer_params"];
    EXPECT_EQ(body["remote_host"], "d");
    EXPECT_EQ(body["do_remote_decode"], true);
}

TEST(Prompt, IsFoundInEveryKindOfRequest) {
    EXPECT_EQ(prompt_of(Json::parse(R"({"prompt": "abc"})"))->text, "abc");
    EXPECT_EQ(prompt_of(Json::parse(R"({"prompt": [1, 2, 3]})"))->tokens, (std::vector<uint32_t>{1, 2, 3}));
    EXPECT_EQ(prompt_of(Json::parse(R"({"input_ids": [[5], [6]]})"))->tokens, (std::vector<uint32_t>{5}));
    EXPECT_EQ(prompt_of(Json::parse(R"({"text": ["x", "y"]})"))->text, "x");
    const auto one = prompt_of(Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})"));
    const auto two = prompt_of(
        Json::parse(R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text"}]}]})"));
    ASSERT_TRUE(one && two);
    EXPECT_TRUE(two->text.starts_with(one->text)) << "a longer chat begins as the shorter one did";
    for (const char* bad :
         {"{}", R"({"prompt": null})", R"({"prompt": []})", R"({"prompt": {}})", R"({"messages": 3})", R"({"prompt": [null]})"}) {
        EXPECT_FALSE(prompt_of(Json::parse(bad))) << bad;
    }
}

TEST(EventSplitter, FindsWholeEventsWhicheverWayTheBytesCome) {
    const std::string stream = "data: {\"a\": 1}\n\ndata: two\r\n\r\n: comment\n\ndata: [DONE]\n\nrest";
    for (size_t step = 1; step <= stream.size(); ++step) {
        EventSplitter splitter;
        std::vector<std::string> events;
        for (size_t at = 0; at < stream.size(); at += step) {
            const auto whole = splitter.feed(stream.substr(at, step)).value();
            events.insert(events.end(), whole.begin(), whole.end());
        }
        ASSERT_EQ(events.size(), 4u) << step;
        EXPECT_EQ(events[1], "data: two\r\n\r\n");
        EXPECT_EQ(splitter.rest(), "rest");
    }
}

TEST(EventSplitter, RefusesAnEventWithoutEnd) {
    EventSplitter splitter(100);
    ASSERT_TRUE(splitter.feed(std::string(100, 'x')));
    EXPECT_FALSE(splitter.feed("x"));
}

TEST(Usage, SaysWhatThePrefillInstanceFoundCached) {
    const std::string fixed = correct_usage(
        R"({"id": 1, "usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 10, "x": 1}}})", 4);
    const Json answer = Json::parse(fixed);
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["x"], 1);
    EXPECT_EQ(cached_tokens_of(answer), 4u);
    const std::string event = correct_event_usage("data: {\"usage\": {\"prompt_tokens\": 3}}\n\n", 2);
    EXPECT_TRUE(event.starts_with("data: {") && event.ends_with("}\n\n"));
    EXPECT_EQ(Json::parse(event.substr(6))["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(Usage, LeavesEverythingElseAsItIs) {
    for (const std::string text : {"", "{}", "{\"usage\": null}", "no json \"usage\"", "[\"usage\"]"})
        EXPECT_EQ(correct_usage(text, 3), text);
    for (const std::string event :
         {"data: [DONE]\n\n", ": \"usage\"\n\n", "data: {\"usage\": null}\n\n", "data: \"usage\"\n\n", "data: \"usage\""}) {
        EXPECT_EQ(correct_event_usage(event, 3), event);
    }
    EXPECT_FALSE(cached_tokens_of(Json::parse("[1]")));
    EXPECT_FALSE(cached_tokens_of(Json::parse(R"({"usage": {"prompt_tokens_details": null}})")));
}

TEST(Errors, AreJsonWhateverTheirText) {
    const Json body = Json::parse(error_body("a \"quoted\" \xff text", "upstream_error", 502));
    EXPECT_EQ(body["error"]["code"], 502);
    const std::string events = error_events("broken");
    EXPECT_TRUE(events.starts_with("data: {"));
    EXPECT_TRUE(events.ends_with("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace mooncake::conductor
