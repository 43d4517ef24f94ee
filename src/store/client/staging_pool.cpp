// SPDX-License-Identifier: Apache-2.0
#include "store/client/staging_pool.h"

namespace mooncake::store {

StagingBuffer StagingPool::take(uint64_t length) {
    StagingBuffer buffer;
    Lock lock(mutex_);
    const auto offset = allocator_.find(length);
    if (!offset) return buffer;
    buffer.block_ = allocator_.take(*offset, length, 0);
    buffer.owner_ = this;
    buffer.data_ = memory_ + *offset;
    buffer.size_ = length;
    return buffer;
}

void StagingPool::give_back(uint32_t block) {
    Lock lock(mutex_);
    allocator_.free(block);
}

uint64_t StagingPool::free_bytes() const {
    Lock lock(mutex_);
    return allocator_.free_bytes();
}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(block_, other.block_);
    return *this;
}

StagingBuffer::~StagingBuffer() {
    if (owner_ != nullptr) owner_->give_back(block_);
}

}  // namespace mooncake::store
