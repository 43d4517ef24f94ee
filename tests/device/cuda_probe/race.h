// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/format.h"
#include "device/cuda/copy_kernel.h"
#include "probe.h"

/// What our speed is measured against.
namespace probe {

/// Runs both in turn, so that whatever else happens on the machine meets both; medians.
class Race {
public:
    Race(Table& table, int rounds) : table_(table), rounds_(rounds) {
        table.tell("", mooncake::format_text("{:>10} {:>10} {:>8}", "ours", "driver", "ratio"));
    }

    void row(const std::string& what, size_t bytes, const std::function<void()>& ours, const std::function<void()>& driver) {
        std::vector<double> our_times, driver_times;
        ours();
        driver();
        for (int i = 0; i < rounds_; ++i) {
            our_times.push_back(seconds_of(ours));
            driver_times.push_back(seconds_of(driver));
        }
        const auto median = [](std::vector<double>& all) {
            std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2), all.end());
            return all[all.size() / 2];
        };
        const double our_time = median(our_times), driver_time = median(driver_times);
        const auto speed = [bytes](double time) {
            return bytes >= (size_t{1} << 20) ? mooncake::format_text("{:.1f} GB/s", static_cast<double>(bytes) / time / 1e9)
                                              : mooncake::format_text("{:.2f} us", time * 1e6);
        };
        table_.tell(what, mooncake::format_text("{:>10} {:>10} {:>8.2f}", speed(our_time), speed(driver_time), driver_time / our_time));
    }

private:
    Table& table_;
    const int rounds_;
};

/// The kernel by itself: what it can do, without anything that we do around it.
class RawKernel {
public:
    explicit RawKernel(const Application& app) : app_(app) {
        if (app.cuda->module_load == nullptr || app.cuda->launch == nullptr) return;
        const double time = seconds_of([&] { status_ = app.cuda->module_load(&module_, mooncake::cuda::CopyKernel::text()); });
        if (status_ == abi::kSuccess) status_ = app.cuda->module_function(&function_, module_, mooncake::cuda::CopyKernel::kName);
        void* memory = nullptr;
        (void)app.cuda->host_allocate(&memory, mooncake::cuda::CopyKernel::kListBytes, abi::kHostPortable);
        list_ = static_cast<mooncake::cuda::CopyKernel::Piece*>(memory);
        load_ = mooncake::format_text("{}, {:.1f} ms", app.name_of(status_), time * 1e3);
    }
    ~RawKernel() {
        if (list_ != nullptr) (void)app_.cuda->host_free(list_);
        if (module_ != nullptr) (void)app_.cuda->module_unload(module_);
    }
    RawKernel(const RawKernel&) = delete;
    RawKernel& operator=(const RawKernel&) = delete;

    bool usable() const { return status_ == abi::kSuccess && function_ != nullptr; }
    const std::string& load() const { return load_; }
    void set(std::span<const mooncake::CopyPart> parts) {
        count_ = 0;
        for (const mooncake::CopyPart& part : parts)
            for (size_t at = 0; at < part.length && count_ < mooncake::cuda::CopyKernel::kPiecesMax;
                 at += mooncake::cuda::CopyKernel::kPieceBytes)
                list_[count_++] = {.from = address_of(part.from) + at,
                                   .to = address_of(part.to) + at,
                                   .length = std::min<uint64_t>(mooncake::cuda::CopyKernel::kPieceBytes, part.length - at)};
    }
    void run(uint32_t blocks) const {
        mooncake::cuda::CopyKernel::Piece* list = list_;
        uint32_t count = count_;
        void* parameters[] = {&list, &count};
        (void)app_.cuda->launch(function_, blocks, 1, 1, mooncake::cuda::CopyKernel::kThreads, 1, 1, 0, app_.stream, parameters, nullptr);
        (void)app_.stream_synchronize(app_.stream);
    }

private:
    const Application& app_;
    Status status_ = -1;
    abi::Module module_ = nullptr;
    abi::Function function_ = nullptr;
    mooncake::cuda::CopyKernel::Piece* list_ = nullptr;
    uint32_t count_ = 0;
    std::string load_ = "not in this library";
};

}  // namespace probe
