// SPDX-License-Identifier: Apache-2.0
#include "store/node/promotion.h"

#include <algorithm>
#include <string>

#include "store/member/write_moves.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr Duration kReadPatience = 10s;  // of one piece

StoreCode code_of(Code code) {
    switch (code) {
        case Code::kOk: return StoreCode::kOk;
        case Code::kNotFound:
        case Code::kInvalidArgument: return StoreCode::kObjectNotFound;
        case Code::kCorrupt: return StoreCode::kChecksumMismatch;
        case Code::kBusy: return StoreCode::kNoAvailableHandle;
        case Code::kCancelled: return StoreCode::kUnavailableInCurrentStatus;
        default: return StoreCode::kInvalidRead;
    }
}

/// One value on its way.
class Way {
public:
    Way(const PromotionSetup& setup, PromotionBuffer& buffer) : setup_(setup), buffer_(buffer) {}

    PromotionOutcome run() {
        const CopyOrder& order = setup_.order;
        if (order.targets.empty() || order.length == 0) return {.code = StoreCode::kInvalidParams};
        const auto object = setup_.tier.find(order.generation, texts_);
        if (!object || object->key != order.key || object->length != order.length) return {.code = StoreCode::kObjectNotFound};
        tenant_ = object->tenant;
        std::vector<uint64_t> table;
        table.reserve(chunk_count(order.length));
        for (uint64_t at = 0; at < order.length; at += PromotionBuffer::kBytes) {
            const uint64_t bytes = std::min(PromotionBuffer::kBytes, order.length - at);
            setup_.reads.stand_back();
            if (setup_.stop.stop_requested()) return {.code = StoreCode::kUnavailableInCurrentStatus};
            if (const StoreCode code = read(at, bytes); code != StoreCode::kOk) return {.code = code};
            for (uint64_t chunk = 0; chunk < bytes; chunk += kChunkBytes)
                table.push_back(hash_bytes({buffer_.data() + chunk, std::min(kChunkBytes, bytes - chunk)}));
            if (const PromotionOutcome outcome = write(at, buffer_.data(), bytes); outcome.code != StoreCode::kOk) return outcome;
        }
        const bool one = table_bytes(order.length) == 0;
        const uint64_t checksum = one ? table[0] : hash_table(table);
        if (order.checksum != 0 && checksum != order.checksum) return {.code = StoreCode::kChecksumMismatch};
        return one ? PromotionOutcome{} : write(order.length, reinterpret_cast<const std::byte*>(table.data()), table_bytes(order.length));
    }

private:
    StoreCode read(uint64_t at, uint64_t bytes) {
        TierRead read{.tenant = tenant_,
                      .key = setup_.order.key,
                      .generation = setup_.order.generation,
                      .offset = at,
                      .into = {buffer_.data(), bytes}};
        Completion completion;
        setup_.tier.read({&read, 1}, Deadline::after(kReadPatience), completion);
        completion.wait(Deadline::never(), Duration::zero());
        return code_of(read.result);
    }
    PromotionOutcome write(uint64_t at, const std::byte* bytes, uint64_t length) {
        const auto pass = setup_.pool.fence.enter(setup_.asked);
        if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
        WriteMoves moves(setup_.pool, pass);
        for (const ReplicaLocation& target : setup_.order.targets)
            if (!moves.add(0, pass.epoch(), target, at, bytes, length)) return {.code = StoreCode::kSegmentNotFound};
        PromotionOutcome outcome;
        for (const WriteMoves::Failure& failure : moves.run()) {
            outcome.code = StoreCode::kTransferFail;
            if (failure.in_doubt) outcome.in_doubt = failure.in_doubt;
        }
        return outcome;
    }

    const PromotionSetup& setup_;
    PromotionBuffer& buffer_;
    std::string texts_;
    std::string_view tenant_;
};

}  // namespace

PromotionOutcome promote_value(const PromotionSetup& setup, PromotionBuffer& buffer) { return Way(setup, buffer).run(); }

}  // namespace mooncake::store
