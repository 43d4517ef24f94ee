// SPDX-License-Identifier: Apache-2.0
#include "coordination/redis/redis_protocol.h"

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <vector>

namespace mooncake {

namespace {

/// What hiredis' reader builds for us. It owns its objects until redisReaderGetReply() hands one out.
struct ParsedReply {
    RedisReply reply;
    bool is_error = false;
};

void* create_text(const redisReadTask* task, char* text, size_t length) {
    auto* parsed = new ParsedReply;
    parsed->reply = {.kind = RedisReply::Kind::kText, .text = std::string(text, length)};
    parsed->is_error = task->type == REDIS_REPLY_ERROR;
    return parsed;
}

void* create_integer(const redisReadTask*, long long number) {
    auto* parsed = new ParsedReply;
    parsed->reply = {.kind = RedisReply::Kind::kInteger, .text = {}, .number = number};
    return parsed;
}

void* create_nil(const redisReadTask*) { return new ParsedReply; }

redisReplyObjectFunctions make_functions() {
    redisReplyObjectFunctions functions{};
    functions.createString = create_text;
    // None of our commands is answered by a list; to the reader this looks like lack of memory, and it stops.
    functions.createArray = [](const redisReadTask*, auto) -> void* { return nullptr; };
    functions.createInteger = create_integer;
    functions.createNil = create_nil;
    functions.freeObject = [](void* object) { delete static_cast<ParsedReply*>(object); };
    return functions;
}

redisReader* create_reader() {
    static redisReplyObjectFunctions functions = make_functions();
    return ::redisReaderCreateWithFunctions(&functions);
}

/// "ERR wrong number of arguments": the first word tells what kind it is.
Unexpected server_error(const std::string& text) {
    for (const std::string_view word : {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"})
        if (text.starts_with(word)) return fail(Code::kUnavailable, "the server says: {}", text);
    return fail(Code::kRefused, "the server says: {}", text);
}

}  // namespace

std::string encode_redis_command(std::span<const std::string_view> arguments) {
    std::vector<const char*> texts;
    std::vector<size_t> lengths;
    for (const std::string_view argument : arguments) {
        texts.push_back(argument.data() != nullptr ? argument.data() : "");
        lengths.push_back(argument.size());
    }
    char* text = nullptr;
    const auto length = ::redisFormatCommandArgv(&text, static_cast<int>(texts.size()), texts.data(), lengths.data());
    MC_CHECK(length >= 0);  // only lack of memory makes it fail
    std::string command(text, static_cast<size_t>(length));
    std::free(text);
    return command;
}

void RedisDecoder::ReaderDeleter::operator()(redisReader* reader) const noexcept { ::redisReaderFree(reader); }

RedisDecoder::RedisDecoder() : reader_(create_reader()) { MC_CHECK(reader_ != nullptr); }

void RedisDecoder::feed(std::string_view bytes) { ::redisReaderFeed(reader_.get(), bytes.data(), bytes.size()); }

Result<std::optional<RedisReply>> RedisDecoder::next() {
    void* object = nullptr;
    if (::redisReaderGetReply(reader_.get(), &object) != REDIS_OK)
        return fail(Code::kCorrupt, "the answer is not of redis: {}", reader_->errstr);
    if (object == nullptr) return std::nullopt;
    const std::unique_ptr<ParsedReply> parsed(static_cast<ParsedReply*>(object));
    if (parsed->is_error) return server_error(parsed->reply.text);
    return std::move(parsed->reply);
}

}  // namespace mooncake
