// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/dialect.h"

#include <array>

#include "net/address.h"

namespace mooncake::conductor {

namespace {

/// The same request, for its first token alone.
Json only_first_token(Json request) {
    request["stream"] = false;
    request["max_tokens"] = 1;
    if (request.contains("max_completion_tokens")) request["max_completion_tokens"] = 1;
    request.erase("stream_options");
    request.erase("min_tokens");
    return request;
}

/// vLLM with the connector that pushes: both sides meet under a transfer id.
class VllmMooncake : public Dialect {
public:
    std::string_view name() const noexcept override { return "vllm-mooncake"; }
    Sequence sequence() const noexcept override { return Sequence::kTogether; }
    bool needs_engine_id() const noexcept override { return true; }
    Json prefill_body(const Json& request, const Endpoint&, const HandOver& hand_over) const override {
        Json body = only_first_token(request);
        body["kv_transfer_params"] = {{"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", hand_over.transfer_id}};
        return body;
    }
    Result<Json> decode_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over, const Json*) const override {
        Json body = request;
        body["kv_transfer_params"] = {{"do_remote_decode", false},
                                      {"do_remote_prefill", true},
                                      {"remote_bootstrap_addr", prefill.bootstrap_url()},
                                      {"remote_engine_id", prefill.engine_id},
                                      {"transfer_id", hand_over.transfer_id}};
        return body;
    }
};

/// vLLM with connectors that pull: the prefill instance says where its blocks are, and all that it says is passed on.
class VllmPull : public Dialect {
public:
    std::string_view name() const noexcept override { return "vllm-pull"; }
    Sequence sequence() const noexcept override { return Sequence::kPrefillFirst; }
    Json prefill_body(const Json& request, const Endpoint&, const HandOver&) const override {
        Json body = only_first_token(request);
        body["kv_transfer_params"] = {{"do_remote_decode", true},    {"do_remote_prefill", false}, {"remote_engine_id", nullptr},
                                      {"remote_block_ids", nullptr}, {"remote_host", nullptr},     {"remote_port", nullptr}};
        return body;
    }
    Result<Json> decode_body(const Json& request, const Endpoint& prefill, const HandOver&, const Json* said) const override {
        const auto parameters = said->find("kv_transfer_params");
        if (parameters == said->end() || !parameters->is_object() || parameters->empty()) {
            return fail(Code::kCorrupt, "{} answered without kv_transfer_params", prefill.name);
        }
        Json body = request;
        body["kv_transfer_params"] = *parameters;
        return body;
    }
};

/// As vLLM's; its answer has more in it (sizes, the last token, where other nodes are), which is passed on as well.
class AscendPull : public VllmPull {
public:
    std::string_view name() const noexcept override { return "ascend-pull"; }
};

/// The decode instance hears first, makes room, and calls back with where the layers shall be written.
class AscendLayerwise : public Dialect {
public:
    std::string_view name() const noexcept override { return "ascend-layerwise"; }
    Sequence sequence() const noexcept override { return Sequence::kDecodeFirst; }
    Json prefill_body(const Json& request, const Endpoint&, const HandOver&) const override {
        Json body = only_first_token(request);
        body["kv_transfer_params"] = {{"do_remote_decode", true}, {"do_remote_prefill", false}};
        return body;
    }
    Result<Json> decode_body(const Json& request, const Endpoint&, const HandOver& hand_over, const Json*) const override {
        Json body = request;
        body["kv_transfer_params"] = {{"do_remote_decode", false}, {"do_remote_prefill", true}, {"metaserver", hand_over.callback_url}};
        return body;
    }
    Json called_back_body(const Json& request, const Json& call, const Endpoint& prefill, const HandOver& hand_over) const override {
        Json body = prefill_body(request, prefill, hand_over);
        body["kv_transfer_params"].update(call);
        body["kv_transfer_params"]["do_remote_decode"] = true;
        body["kv_transfer_params"]["do_remote_prefill"] = false;
        return body;
    }
};

/// SGLang: the same body to both, which meet in a room of the prefill instance's bootstrap server.
class Sglang : public Dialect {
public:
    std::string_view name() const noexcept override { return "sglang"; }
    Sequence sequence() const noexcept override { return Sequence::kTogether; }
    Json prefill_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over) const override {
        Json body = request;
        const size_t batch = batch_of(request);
        if (batch == 0) {
            body["bootstrap_host"] = prefill.host;
            body["bootstrap_port"] = prefill.bootstrap_port;
            body["bootstrap_room"] = hand_over.room;
            return body;
        }
        Json rooms = Json::array();
        for (size_t i = 0; i < batch; ++i) rooms.push_back((hand_over.room + i) & ~(uint64_t{1} << 63));
        body["bootstrap_host"] = std::vector<std::string>(batch, prefill.host);
        body["bootstrap_port"] = std::vector<uint16_t>(batch, prefill.bootstrap_port);
        body["bootstrap_room"] = std::move(rooms);
        return body;
    }
    Result<Json> decode_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over, const Json*) const override {
        return prefill_body(request, prefill, hand_over);
    }

private:
    /// How many prompts are in it; 0: one that is no list.
    static size_t batch_of(const Json& request) {
        for (const char* name : {"prompt", "text"}) {
            const auto found = request.find(name);
            if (found != request.end() && found->is_array() && !found->empty() && !found->front().is_number()) return found->size();
        }
        const auto ids = request.find("input_ids");
        return ids != request.end() && ids->is_array() && !ids->empty() && ids->front().is_array() ? ids->size() : 0;
    }
};

/// As vLLM's pull; and what the decode instance says in the end is given to the prefill instance of the conversation's next turn.
class VllmMultiTurn : public VllmPull {
public:
    std::string_view name() const noexcept override { return "vllm-multiturn"; }
    bool remembers_conversations() const noexcept override { return true; }
    Json prefill_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over) const override {
        Json body = VllmPull::prefill_body(request, prefill, hand_over);
        if (hand_over.remembered == nullptr) return body;
        body["kv_transfer_params"].update(*hand_over.remembered);
        body["kv_transfer_params"]["do_remote_decode"] = true;
        return body;
    }
};

template <typename... Kinds>
std::vector<std::unique_ptr<Dialect>> make_all() {
    std::vector<std::unique_ptr<Dialect>> all;
    (all.push_back(std::make_unique<Kinds>()), ...);
    return all;
}

std::vector<std::unique_ptr<Dialect>> all_dialects() {
    return make_all<VllmMooncake, VllmPull, AscendPull, AscendLayerwise, Sglang, VllmMultiTurn>();
}

void append_tokens(const Json& list, std::vector<uint32_t>& tokens) {
    for (const Json& token : list) {
        if (token.is_number_unsigned()) tokens.push_back(token.get<uint32_t>());
    }
}

/// Texts of a chat, one after the other with who said them, so that a longer chat begins as the shorter one did.
std::string chat_text(const Json& messages) {
    std::string text;
    for (const Json& message : messages) {
        if (!message.is_object()) continue;
        text += message.value("role", Json()).dump() + '\n';
        const auto content = message.find("content");
        if (content != message.end()) text += (content->is_string() ? content->get_ref<const std::string&>() : content->dump()) + '\n';
    }
    return text;
}

}  // namespace

std::string Endpoint::bootstrap_url() const { return "http://" + net::join_host_port(host, bootstrap_port); }

Result<std::unique_ptr<Dialect>> make_dialect(std::string_view name) {
    for (auto& dialect : all_dialects()) {
        if (dialect->name() == name) return std::move(dialect);
    }
    return fail(Code::kInvalidArgument, "no dialect {}", name);
}

std::vector<std::string_view> dialect_names() {
    std::vector<std::string_view> names;
    for (const auto& dialect : all_dialects()) names.push_back(dialect->name());  // of literals
    return names;
}

Result<Prompt> prompt_of(const Json& request) {
    Prompt prompt;
    if (const auto messages = request.find("messages"); messages != request.end() && messages->is_array()) {
        prompt.text = chat_text(*messages);
        return prompt;
    }
    for (const char* name : {"input_ids", "prompt", "text"}) {
        const auto found = request.find(name);
        if (found == request.end()) continue;
        if (found->is_string()) {
            prompt.text = found->get<std::string>();
            return prompt;
        }
        if (!found->is_array() || found->empty()) continue;
        const Json& first = found->front();
        if (first.is_number()) append_tokens(*found, prompt.tokens);
        // Of several prompts the first stands for all: they go to one pair.
        else if (first.is_array()) append_tokens(first, prompt.tokens);
        else if (first.is_string()) prompt.text = first.get<std::string>();
        else continue;
        return prompt;
    }
    return fail(Code::kInvalidArgument, "no messages, prompt, text or input_ids");
}

std::optional<uint64_t> cached_tokens_of(const Json& answer) {
    if (!answer.is_object()) return std::nullopt;
    const auto usage = answer.find("usage");
    if (usage == answer.end() || !usage->is_object()) return std::nullopt;
    const auto details = usage->find("prompt_tokens_details");
    if (details == usage->end() || !details->is_object()) return std::nullopt;
    const auto cached = details->find("cached_tokens");
    if (cached == details->end() || !cached->is_number_unsigned()) return std::nullopt;
    return cached->get<uint64_t>();
}

}  // namespace mooncake::conductor
