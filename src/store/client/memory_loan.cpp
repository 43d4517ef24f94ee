// SPDX-License-Identifier: Apache-2.0
#include "store/client/memory_loan.h"

#include "base/log.h"
#include "base/memory_probe.h"
#include "store/member/any_memory.h"

namespace mooncake::store {

MemoryLoan::~MemoryLoan() {
    if (owner_ != nullptr) owner_->give_back(std::move(lent_));
}

Result<> MemoryLender::add(const Piece& piece, bool for_good, size_t own_loans) {
    const Deadline deadline = Deadline::after(kPatience);
    for (;;) {
        auto added = engine_.register_memory(piece.data, piece.length, "*", for_good);
        Lock lock(mutex_);
        if (added && !for_good) ++lent_;
        if (added || added.error().code() != Code::kOverlap || lent_ <= own_loans) return added;
        // Perhaps it is another call's, and over in a moment.
        if (ended_.wait_until(mutex_, deadline.at()) == std::cv_status::timeout) return added;
    }
}

Result<> MemoryLender::register_memory(std::byte* address, uint64_t length) { return add({address, length}, true, 0); }

bool MemoryLender::lend(const Piece& piece, MemoryLoan& loan) {
    if (piece.data == nullptr || piece.length == 0) return false;
    if (!is_host(engine_, piece.data, piece.length)) return true;
    if (is_readable(piece.data, 1)) return false;  // what the CPU reads is the host's to us
    loan.lent_.reserve(loan.lent_.size() + 1);
    const auto added = add(piece, false, loan.lent_.size());
    if (!added) {
        MC_LOG_WARNING_EVERY(1s, "{} bytes at {} cannot be used: {}", piece.length, static_cast<void*>(piece.data),
                             added.error().message());
        return false;
    }
    loan.owner_ = this;
    loan.lent_.push_back(piece.data);
    return true;
}

void MemoryLender::give_back(std::vector<std::byte*> lent) noexcept {
    for (std::byte* const address : lent) (void)engine_.unregister_memory(address);  // a closed engine has let go of it
    Lock lock(mutex_);
    lent_ -= lent.size();
    ended_.notify_all();
}

}  // namespace mooncake::store
