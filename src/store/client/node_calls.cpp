// SPDX-License-Identifier: Apache-2.0
#include "store/client/node_calls.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "store/protocol/messages_tiers.h"

namespace mooncake::store {

namespace {

constexpr Duration kConnectTimeout = 2s;
constexpr Duration kReleaseTimeout = 5s;

/// Answers that are waited for; shared with the callbacks.
struct Answers {
    Mutex mutex;
    std::condition_variable_any all;
    std::vector<Result<rpc::Bytes>> bodies MC_GUARDED_BY(mutex);
    size_t missing MC_GUARDED_BY(mutex) = 0;
};

/// Whether the parts are answers to these questions.
Result<StageReply> checked(Result<rpc::Bytes> body, const StageRequest& request) {
    if (!body) return Unexpected(std::move(body).error());
    MC_ASSIGN_OR_RETURN(StageReply reply, decode_stage_reply(*body));
    if (reply.parts.size() != request.items.size())
        return fail(Code::kCorrupt, "{} answers for {} parts", reply.parts.size(), request.items.size());
    for (size_t i = 0; i < reply.parts.size(); ++i)
        if (reply.parts[i].code == StoreCode::kOk && reply.parts[i].length > request.items[i].length)
            return fail(Code::kCorrupt, "more was staged than asked for");
    return reply;
}

}  // namespace

std::shared_ptr<rpc::Client> NodeCalls::client() {
    Lock lock(mutex_);
    if (stopped_) return nullptr;
    if (!client_)
        client_ = rpc::Client::create(
            {.connect_timeout = kConnectTimeout, .hello = {.incarnation = incarnation_, .features = 0, .software = "mooncake client"}});
    return client_;
}

void NodeCalls::stage(std::vector<Question>& questions) {
    const std::shared_ptr<rpc::Client> calls = client();
    if (!calls) {
        for (Question& question : questions) question.reply = fail(Code::kCancelled, "the client stops");
        return;
    }
    const auto answers = std::make_shared<Answers>();
    {
        Lock lock(answers->mutex);
        answers->missing = questions.size();
        answers->bodies.assign(questions.size(), fail(Code::kInternal, "no answer"));
    }
    for (size_t i = 0; i < questions.size(); ++i) {
        Question& question = questions[i];
        question.sent = Clock::now();
        calls->call_async(question.service, rpc::Method::kNodeStage, encode_stage_request(question.request), question.deadline,
                          [answers, i](Result<rpc::Bytes> body) {
                              Lock lock(answers->mutex);
                              answers->bodies[i] = std::move(body);
                              if (--answers->missing == 0) answers->all.notify_all();
                          });
    }
    std::vector<Result<rpc::Bytes>> bodies;
    answers->mutex.lock();
    while (answers->missing != 0) answers->all.wait(answers->mutex);  // each has a deadline
    bodies.swap(answers->bodies);
    answers->mutex.unlock();
    for (size_t i = 0; i < questions.size(); ++i) questions[i].reply = checked(std::move(bodies[i]), questions[i].request);
}

void NodeCalls::release(const std::string& service, const std::vector<uint64_t>& leases) {
    if (leases.empty()) return;
    if (const std::shared_ptr<rpc::Client> calls = client())
        calls->call_async(service, rpc::Method::kNodeRelease, encode_release_request({.leases = leases}), Deadline::after(kReleaseTimeout),
                          [](const Result<rpc::Bytes>&) {});
}

void NodeCalls::stop() {
    std::shared_ptr<rpc::Client> client;
    {
        Lock lock(mutex_);
        stopped_ = true;
        client = client_;
    }
    if (client) client->stop();
}

}  // namespace mooncake::store
