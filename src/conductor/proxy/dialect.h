// SPDX-License-Identifier: Apache-2.0
// Include only in .cpp files: it needs JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace mooncake::conductor {

using Json = nlohmann::json;

/// Where an instance is reached.
struct Endpoint {
    std::string name;  // "host:port" unless it was given another
    std::string host;
    uint16_t port = 0;
    uint16_t bootstrap_port = 8998;  // of a prefill instance, where the dialect has one
    std::string engine_id;           // as the bootstrap server tells; empty: not asked yet
    uint32_t dp_rank = 0;

    std::string bootstrap_url() const;
};

/// The order in which the two instances hear of a request.
enum class Sequence : uint8_t { kPrefillFirst, kTogether, kDecodeFirst };

/// Names one attempt to hand a request over.
struct HandOver {
    std::string request_id, transfer_id;
    uint64_t room = 0;                 // 63 bits
    std::string callback_url;          // where a decode instance asks for its prefill
    const Json* remembered = nullptr;  // what the conversation's last decode instance said
};

/// One way in which a router, a prefill instance and a decode instance talk about a request. Pure and stateless: makes two requests out of one.
class Dialect {
public:
    virtual ~Dialect() = default;
    virtual std::string_view name() const noexcept = 0;
    virtual Sequence sequence() const noexcept = 0;
    virtual bool needs_engine_id() const noexcept { return false; }
    virtual bool remembers_conversations() const noexcept { return false; }
    virtual Json prefill_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over) const = 0;
    /// `said`: what the prefill instance answered (kPrefillFirst), null otherwise. kCorrupt: the answer lacks what is needed.
    virtual Result<Json> decode_body(const Json& request, const Endpoint& prefill, const HandOver& hand_over, const Json* said) const = 0;
    /// kDecodeFirst: the body for the prefill instance out of what the decode instance called back with.
    virtual Json called_back_body(const Json& request, const Json& /*call*/, const Endpoint& prefill, const HandOver& hand_over) const {
        return prefill_body(request, prefill, hand_over);
    }
};

/// vllm-mooncake, vllm-pull, ascend-pull, ascend-layerwise, sglang, vllm-multiturn. kInvalidArgument: none of them.
Result<std::unique_ptr<Dialect>> make_dialect(std::string_view name);
std::vector<std::string_view> dialect_names();

/// What a prompt is, as far as it can be told without the model's tokens.
struct Prompt {
    std::vector<uint32_t> tokens;  // where the request has them
    std::string text;              // otherwise
    uint64_t token_count() const noexcept { return tokens.empty() ? text.size() / 4 + 1 : tokens.size(); }
};
/// kInvalidArgument: no prompt in it.
Result<Prompt> prompt_of(const Json& request);
/// Tokens that a prompt took from a cache, as an answer's usage says.
std::optional<uint64_t> cached_tokens_of(const Json& answer);

}  // namespace mooncake::conductor
