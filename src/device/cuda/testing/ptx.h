// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mooncake::cuda::testing {

/// Runs the text of a kernel without a GPU, one thread after the other: the few instructions that ours has, on memory of this process. Throws
/// std::runtime_error for what it does not know. For tests.
class PtxProgram {
public:
    explicit PtxProgram(const std::string& text);

    /// By the names of the parameters.
    using Parameters = std::map<std::string, uint64_t>;
    void run(uint32_t blocks, uint32_t threads, const Parameters& parameters) const;

private:
    struct Instruction {
        std::string guard;  // a predicate; empty: always
        std::string name;
        std::vector<std::string> operands;
    };
    using Registers = std::map<std::string, uint64_t>;

    void run_thread(Registers registers, const Parameters& parameters) const;
    static void compute(const Instruction& instruction, Registers& registers);
    static void access(const Instruction& instruction, Registers& registers);

    std::vector<Instruction> code_;
    std::map<std::string, size_t> labels_;
};

}  // namespace mooncake::cuda::testing
