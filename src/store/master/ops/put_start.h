// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/master/ops/placer.h"
#include "store/master/transaction.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// One put_start or upsert_start from its first item to its last, in as many parts as its caller likes: others may have their turn between
/// them. Items of one group are started all or none, whatever parts they lie in; what must be undone for that is undone before anything
/// else is started, and its ranges are free at once: nobody was told of them. So nobody must be answered for the same request meanwhile.
/// Borrows the request.
class PutStarter {
public:
    PutStarter(const PutStartRequest& request, bool upsert);

    /// Starts or undoes at most `steps` more items; true: that was all.
    bool run(Transaction& transaction, Time now, size_t steps);
    /// When all is done.
    PutStartReply take_reply() { return std::move(reply_); }

private:
    static constexpr size_t kPrefetch = ObjectTable::kWindow;
    static constexpr uint32_t kNone = UINT32_MAX;

    /// What a group of the request has come to.
    struct Group {
        StoreCode refused = StoreCode::kOk;
        uint32_t last_started = kNone;  // the others by started_before_
    };
    class Part;

    const PutStartRequest& request_;
    const bool upsert_;
    size_t next_ = 0;     // the item to be started next
    size_t run_end_ = 0;  // up to here all lengths are that of next_
    PutStartReply reply_;
    std::unordered_map<std::string_view, Group> groups_;
    std::vector<uint32_t> started_before_;  // per item: the one of its group that was started before it
    Group* undoing_ = nullptr;              // the group of which nothing is to remain
};

}  // namespace mooncake::store
