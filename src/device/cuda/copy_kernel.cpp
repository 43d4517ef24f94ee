// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_kernel.h"

#include <algorithm>

#include "base/log.h"

namespace mooncake::cuda {

namespace {

constexpr const char* kText = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .entry mc_copy_pieces(.param .u64 pieces, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %lane, %warp, %warps, %count, %t<3>, %v<16>;
    .reg .b64 %list, %piece, %from, %to, %length, %apart, %width, %head, %units, %tail, %at, %next, %f, %t64, %lane64;

    ld.param.u64 %list, [pieces];
    ld.param.u32 %count, [count];
    mov.u32 %t0, %tid.x;
    and.b32 %lane, %t0, 31;
    shr.u32 %warp, %t0, 5;
    mov.u32 %t1, %ntid.x;
    shr.u32 %t1, %t1, 5;
    mov.u32 %t2, %ctaid.x;
    mad.lo.u32 %warp, %t2, %t1, %warp;
    mov.u32 %t2, %nctaid.x;
    mul.lo.u32 %warps, %t1, %t2;
    cvt.u64.u32 %lane64, %lane;

PIECE: // each warp takes every n-th
    setp.ge.u32 %p0, %warp, %count;
    @%p0 bra DONE;
    mul.wide.u32 %piece, %warp, 24;
    add.u64 %piece, %list, %piece;
    ld.global.u64 %from, [%piece];
    ld.global.u64 %to, [%piece+8];
    ld.global.u64 %length, [%piece+16];
    add.u32 %warp, %warp, %warps;

    // the widest unit for which both sides can be aligned
    xor.b64 %apart, %from, %to;
    mov.u64 %width, 16;
    and.b64 %t64, %apart, 15;
    setp.eq.u64 %p0, %t64, 0;
    @%p0 bra HEAD;
    mov.u64 %width, 4;
    and.b64 %t64, %apart, 3;
    setp.eq.u64 %p0, %t64, 0;
    @%p0 bra HEAD;
    mov.u64 %width, 1;

HEAD: // bytes before the first unit that is aligned on both sides
    sub.u64 %t64, %width, 1;
    neg.s64 %head, %from;
    and.b64 %head, %head, %t64;
    min.u64 %head, %head, %length;
    setp.ge.u64 %p0, %lane64, %head;
    @%p0 bra BODY;
    add.u64 %f, %from, %lane64;
    add.u64 %at, %to, %lane64;
    ld.global.u8 %v0, [%f];
    st.global.u8 [%at], %v0;

BODY:
    add.u64 %from, %from, %head;
    add.u64 %to, %to, %head;
    sub.u64 %length, %length, %head;
    and.b64 %tail, %length, %t64;
    sub.u64 %units, %length, %tail;
    mul.lo.u64 %at, %lane64, %width;
    setp.eq.u64 %p0, %width, 16;
    @%p0 bra WIDE;
    setp.eq.u64 %p0, %width, 4;
    @%p0 bra WORDS;

BYTES:
    setp.ge.u64 %p0, %at, %units;
    @%p0 bra TAIL;
    add.u64 %f, %from, %at;
    add.u64 %next, %to, %at;
    ld.global.u8 %v0, [%f];
    st.global.u8 [%next], %v0;
    add.u64 %at, %at, 32;
    bra BYTES;

WORDS:
    add.u64 %next, %at, 384;
    setp.ge.u64 %p0, %next, %units;
    @%p0 bra WORD;
    add.u64 %f, %from, %at;
    ld.global.u32 %v0, [%f];
    ld.global.u32 %v1, [%f+128];
    ld.global.u32 %v2, [%f+256];
    ld.global.u32 %v3, [%f+384];
    add.u64 %f, %to, %at;
    st.global.u32 [%f], %v0;
    st.global.u32 [%f+128], %v1;
    st.global.u32 [%f+256], %v2;
    st.global.u32 [%f+384], %v3;
    add.u64 %at, %at, 512;
    bra WORDS;

WORD:
    setp.ge.u64 %p0, %at, %units;
    @%p0 bra TAIL;
    add.u64 %f, %from, %at;
    ld.global.u32 %v0, [%f];
    add.u64 %f, %to, %at;
    st.global.u32 [%f], %v0;
    add.u64 %at, %at, 128;
    bra WORD;

WIDE:
    add.u64 %next, %at, 1536;
    setp.ge.u64 %p0, %next, %units;
    @%p0 bra VECTOR;
    add.u64 %f, %from, %at;
    ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%f];
    ld.global.v4.u32 {%v4, %v5, %v6, %v7}, [%f+512];
    ld.global.v4.u32 {%v8, %v9, %v10, %v11}, [%f+1024];
    ld.global.v4.u32 {%v12, %v13, %v14, %v15}, [%f+1536];
    add.u64 %f, %to, %at;
    st.global.v4.u32 [%f], {%v0, %v1, %v2, %v3};
    st.global.v4.u32 [%f+512], {%v4, %v5, %v6, %v7};
    st.global.v4.u32 [%f+1024], {%v8, %v9, %v10, %v11};
    st.global.v4.u32 [%f+1536], {%v12, %v13, %v14, %v15};
    add.u64 %at, %at, 2048;
    bra WIDE;

VECTOR:
    setp.ge.u64 %p0, %at, %units;
    @%p0 bra TAIL;
    add.u64 %f, %from, %at;
    ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%f];
    add.u64 %f, %to, %at;
    st.global.v4.u32 [%f], {%v0, %v1, %v2, %v3};
    add.u64 %at, %at, 512;
    bra VECTOR;

TAIL:
    setp.ge.u64 %p0, %lane64, %tail;
    @%p0 bra PIECE;
    add.u64 %at, %units, %lane64;
    add.u64 %f, %from, %at;
    add.u64 %next, %to, %at;
    ld.global.u8 %v0, [%f];
    st.global.u8 [%next], %v0;
    bra PIECE;

DONE: // the host sees what was stored to it
    membar.sys;
    ret;
}
)";

}  // namespace

const char* CopyKernel::text() noexcept { return kText; }

CopyKernel::State CopyKernel::load(const Scope& scope) {
    if (scope->module_load == nullptr || scope->module_function == nullptr || scope->module_unload == nullptr || scope->launch == nullptr)
        return State::kUnusable;
    abi::Status status = scope->module_load(&module_, kText);
    const char* what = "cuModuleLoadData";
    if (status == abi::kSuccess) {
        abi::Function function = nullptr;
        what = "cuModuleGetFunction";
        status = scope->module_function(&function, module_, kName);
        function_.store(function, std::memory_order_release);
        if (status == abi::kSuccess) return State::kReady;
        if (!driver_.gone()) driver_.notice(scope->module_unload(module_));
    }
    module_ = nullptr;
    const Error why = driver_.failure(device_, what, status);
    if (!driver_.gone())
        MC_LOG_WARNING("small pieces of memory of GPU {} are copied one by one, which is slow: {}", device_, why.message());
    return State::kUnusable;
}

bool CopyKernel::ready(const Scope& scope) {
    const State known = state_.load(std::memory_order_acquire);
    if (known != State::kUntried) return known == State::kReady;
    Lock lock(mutex_);
    if (state_.load(std::memory_order_relaxed) == State::kUntried) state_.store(load(scope), std::memory_order_release);
    return state_.load(std::memory_order_relaxed) == State::kReady;
}

Result<bool> CopyKernel::launch(const Scope& scope, abi::Stream stream, std::span<const Piece> list, uint32_t blocks_max) {
    const Piece* pieces = list.data();
    auto count = static_cast<uint32_t>(list.size());
    void* parameters[] = {&pieces, &count};
    const uint32_t warps = kThreads / 32, blocks = std::min(blocks_max, (count + warps - 1) / warps);
    const abi::Status status = scope->launch(function_.load(std::memory_order_acquire), blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters,
                                             nullptr);
    if (status == abi::kSuccess) return true;
    Error why = driver_.failure(device_, "cuLaunchKernel", status);
    if (driver_.dead(device_) || driver_.silent()) return Unexpected(std::move(why));
    MC_LOG_WARNING_EVERY(60s, "{}: the pieces are copied one by one", why.message());
    return false;
}

void CopyKernel::give_back(const Scope& scope) {
    Lock lock(mutex_);
    if (module_ != nullptr && !driver_.gone()) driver_.notice(scope->module_unload(module_));
    module_ = nullptr;
}

}  // namespace mooncake::cuda
