// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/memory_probe.h"
#include "store/bridge/client/thin_client.h"

/// The calls of thin clients that move bytes.
namespace mooncake::store::bridge {

namespace {

constexpr auto kInvalid = static_cast<int64_t>(StoreCode::kInvalidParams);

}  // namespace

/// The memory that a call names, in terms of the node's: what it does not know gets a place in working memory, or in memory made for this call.
class ThinClient::Plan {
public:
    explicit Plan(ThinClient& client) : client_(client) {}
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    ~Plan() {
        if (in_doubt_) [[maybe_unused]]
            const auto* const never_used_again = new StagingBuffer(std::move(staged_));
        if (own_entry_ != 0) client_.line_.unshare(own_entry_);
    }

    /// The next value or part; `unsure`: the kernel is asked when bytes are copied there.
    void add(std::string_view key, std::span<const Piece> pieces, bool unsure = false) {
        keys_.push_back(key);
        counts_.push_back(static_cast<uint32_t>(pieces.size()));
        for (const Piece& piece : pieces) {
            auto shared = client_.shared_piece(piece);
            if (!shared && piece.data != nullptr && piece.length < uint64_t{1} << 62) {
                foreign_.push_back({pieces_.size(), piece, foreign_bytes_, unsure});
                foreign_bytes_ += piece.length;
            }
            pieces_.push_back(shared.value_or(SharedPiece{}));
        }
    }

    /// Finds a place for what the node does not know; with `fill`, it is copied there. False: there is none.
    bool prepare(bool fill) {
        if (foreign_bytes_ == 0) return true;
        if (foreign_bytes_ >= uint64_t{1} << 62 || !find_place()) {
            MC_LOG_WARNING_EVERY(1s, "there is no working memory for {} bytes", foreign_bytes_);
            return false;
        }
        const SharedPiece place = own_entry_ != 0 ? SharedPiece{.entry = own_entry_, .offset = 0, .length = foreign_bytes_}
                                                  : *client_.shared_piece(place_);
        for (const Foreign& foreign : foreign_) {
            pieces_[foreign.index] = {place.entry, place.offset + foreign.at, foreign.piece.length};
            if (fill) std::memcpy(place_.data + foreign.at, foreign.piece.data, foreign.piece.length);
        }
        return true;
    }

    Request request() const {
        Request request;
        request.keys = keys_;
        request.piece_counts = counts_;
        request.pieces = pieces_;
        return request;
    }

    /// After a read: copies to where it was wanted. A value that cannot be copied becomes kInvalidParams.
    void bring_back(std::vector<int64_t>& results) {
        size_t next = 0, piece = 0;
        for (size_t i = 0; i < counts_.size(); ++i) {
            uint64_t left = results[i] > 0 ? static_cast<uint64_t>(results[i]) : 0;
            for (const size_t end = piece + counts_[i]; piece < end; ++piece) {
                const uint64_t length = std::min(left, pieces_[piece].length);
                left -= length;
                if (next == foreign_.size() || foreign_[next].index != piece) continue;
                const Foreign& foreign = foreign_[next++];
                if (length != 0 && !copy(foreign, length)) results[i] = kInvalid;
            }
        }
    }
    /// The node may still write where it was asked to.
    void doubt(const std::vector<int64_t>& results) {
        in_doubt_ = !results.empty() && results.front() == static_cast<int64_t>(StoreCode::kRpcTimeout);
    }

private:
    struct Foreign {
        size_t index = 0;  // in pieces_
        Piece piece;
        uint64_t at = 0;  // in the place for all
        bool unsure = false;
    };

    bool find_place() {
        if (client_.staging_) staged_ = client_.staging_->take(foreign_bytes_);
        place_ = {staged_.data(), foreign_bytes_};
        if (staged_) return true;
        auto block = HostBlock::allocate(foreign_bytes_, 0, false);
        if (!block) return false;
        place_.data = (*block)->data();
        const auto entry = client_.line_.share(*block);
        if (!entry) return false;
        own_ = std::move(*block);
        own_entry_ = *entry;
        return true;
    }
    bool copy(const Foreign& foreign, uint64_t length) const {
        const std::byte* const from = place_.data + foreign.at;
        if (foreign.unsure) return copy_if_there(foreign.piece.data, from, length);
        std::memcpy(foreign.piece.data, from, length);
        return true;
    }

    ThinClient& client_;
    std::vector<std::string_view> keys_;
    std::vector<uint32_t> counts_;
    std::vector<SharedPiece> pieces_;
    std::vector<Foreign> foreign_;
    uint64_t foreign_bytes_ = 0;
    StagingBuffer staged_;
    std::shared_ptr<HostBlock> own_;
    uint32_t own_entry_ = 0;
    Piece place_;
    bool in_doubt_ = false;
};

std::vector<StoreCode> ThinClient::write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) {
    if (values.empty()) return {};
    const auto pass = enter();
    if (!pass) return std::vector<StoreCode>(values.size(), StoreCode::kUnavailableInCurrentStatus);
    Plan plan(*this);
    std::vector<std::string_view> groups;
    for (const ValueToWrite& value : values) {
        plan.add(value.key, value.pieces);
        if (!value.group.empty() && groups.empty()) groups.resize(values.size());
        if (!groups.empty()) groups[static_cast<size_t>(&value - values.data())] = value.group;
    }
    if (!plan.prepare(true)) return std::vector<StoreCode>(values.size(), StoreCode::kInvalidParams);
    Request request = plan.request();
    request.groups = groups;
    request.config = config;
    request.flag = replace;
    return ask_codes(Kind::kWrite, request, values.size());
}

std::vector<int64_t> ThinClient::read(std::span<const ValueToRead> values) {
    if (values.empty()) return {};
    const auto pass = enter();
    if (!pass) return std::vector<int64_t>(values.size(), static_cast<int64_t>(StoreCode::kUnavailableInCurrentStatus));
    Plan plan(*this);
    for (const ValueToRead& value : values) plan.add(value.key, value.pieces, value.unsure);
    if (!plan.prepare(false)) return std::vector<int64_t>(values.size(), kInvalid);
    std::vector<int64_t> results = ask(Kind::kRead, plan.request(), values.size()).numbers;
    plan.doubt(results);
    plan.bring_back(results);
    return results;
}

std::vector<int64_t> ThinClient::ask_parts(Kind kind, std::span<const PartToRead> parts) {
    if (parts.empty()) return {};
    const auto pass = enter();
    if (!pass) return std::vector<int64_t>(parts.size(), static_cast<int64_t>(StoreCode::kUnavailableInCurrentStatus));
    Plan plan(*this);
    std::vector<uint64_t> offsets;
    for (const PartToRead& part : parts) {
        plan.add(part.key, std::span(&part.to, 1), part.unsure);
        offsets.push_back(part.offset);
    }
    if (!plan.prepare(false)) return std::vector<int64_t>(parts.size(), kInvalid);
    Request request = plan.request();
    request.offsets = offsets;
    std::vector<int64_t> results = ask(kind, request, parts.size()).numbers;
    plan.doubt(results);
    plan.bring_back(results);
    return results;
}

std::vector<int64_t> ThinClient::read_parts(std::span<const PartToRead> parts) { return ask_parts(Kind::kReadParts, parts); }
std::vector<int64_t> ThinClient::read_open(std::span<const PartToRead> parts) { return ask_parts(Kind::kReadOpen, parts); }

std::vector<StoreCode> ThinClient::open_reads(std::span<const std::string_view> keys) {
    Request request;
    request.keys = keys;
    return ask_codes(Kind::kOpenReads, request, keys.size());
}

bool ThinClient::close_reads(std::span<const std::string_view> keys) {
    Request request;
    request.keys = keys;
    return ask_number(Kind::kCloseReads, request) == 1;
}

std::vector<StoreCode> ThinClient::open_writes(std::span<const Reservation> values, const WriteConfig& config) {
    std::vector<std::string_view> keys, groups;
    std::vector<uint64_t> lengths;
    for (const Reservation& value : values) {
        keys.push_back(value.key);
        groups.push_back(value.group);
        lengths.push_back(value.length);
    }
    Request request;
    request.keys = keys;
    request.groups = groups;
    request.offsets = lengths;
    request.config = config;
    return ask_codes(Kind::kOpenWrites, request, values.size());
}

std::vector<int64_t> ThinClient::write_open(std::span<const PartToWrite> parts) {
    if (parts.empty()) return {};
    const auto pass = enter();
    if (!pass) return std::vector<int64_t>(parts.size(), static_cast<int64_t>(StoreCode::kUnavailableInCurrentStatus));
    Plan plan(*this);
    std::vector<uint64_t> offsets;
    for (const PartToWrite& part : parts) {
        plan.add(part.key, std::span(&part.from, 1));
        offsets.push_back(part.offset);
    }
    if (!plan.prepare(true)) return std::vector<int64_t>(parts.size(), kInvalid);
    Request request = plan.request();
    request.offsets = offsets;
    return ask(Kind::kWriteOpen, request, parts.size()).numbers;
}

std::vector<StoreCode> ThinClient::close_writes(std::span<const std::string_view> keys, bool revoke) {
    Request request;
    request.keys = keys;
    request.flag = revoke;
    return ask_codes(Kind::kCloseWrites, request, keys.size());
}

}  // namespace mooncake::store::bridge
