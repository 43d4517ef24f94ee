// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/testing/ptx.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace mooncake::cuda::testing {

namespace {

std::string trimmed(std::string text) {
    if (const size_t comment = text.find("//"); comment != std::string::npos) text.erase(comment);
    const size_t from = text.find_first_not_of(" \t"), to = text.find_last_not_of(" \t");
    return from == std::string::npos ? std::string() : text.substr(from, to - from + 1);
}

/// "a, {b, c}, [d+8]": parts, braces and brackets gone, and of each address its register and its offset.
std::vector<std::string> operands_of(const std::string& text) {
    std::vector<std::string> operands;
    std::string now;
    for (const char c : text + ",") {
        if (c == ',' || c == '+') {
            if (!now.empty()) operands.push_back(now);
            now.clear();
        } else if (std::strchr("{}[]; ", c) == nullptr) {
            now += c;
        }
    }
    return operands;
}

uint64_t value_of(const std::string& operand, const std::map<std::string, uint64_t>& registers) {
    if (operand[0] != '%') return std::stoull(operand);
    const auto found = registers.find(operand);
    if (found == registers.end()) throw std::runtime_error(operand + " is read before it is set");
    return found->second;
}

bool ends_with(const std::string& text, const char* end) { return text.ends_with(end); }

}  // namespace

PtxProgram::PtxProgram(const std::string& text) {
    std::istringstream lines(text.substr(text.find("{\n") + 2));
    for (std::string line; std::getline(lines, line);) {
        line = trimmed(line);
        if (line.empty() || line.starts_with(".reg") || line == "}") continue;
        if (line.ends_with(':')) {
            labels_[line.substr(0, line.size() - 1)] = code_.size();
            continue;
        }
        Instruction instruction;
        if (line[0] == '@') {
            instruction.guard = line.substr(1, line.find(' ') - 1);
            line = trimmed(line.substr(line.find(' ')));
        }
        if (line.ends_with(';')) line.pop_back();
        const size_t space = line.find(' ');
        instruction.name = line.substr(0, space);
        if (space != std::string::npos) instruction.operands = operands_of(line.substr(space));
        code_.push_back(std::move(instruction));
    }
}

void PtxProgram::compute(const Instruction& instruction, Registers& registers) {
    const std::string& name = instruction.name;
    const auto& o = instruction.operands;
    const auto in = [&](size_t i) { return value_of(o[i], registers); };
    uint64_t value = 0;
    if (name.starts_with("mov.") || name.starts_with("cvt.u64.u32")) value = in(1);
    else if (name.starts_with("and.")) value = in(1) & in(2);
    else if (name.starts_with("xor.")) value = in(1) ^ in(2);
    else if (name.starts_with("shr.u32")) value = static_cast<uint32_t>(in(1)) >> in(2);
    else if (name.starts_with("add.")) value = in(1) + in(2);
    else if (name.starts_with("sub.")) value = in(1) - in(2);
    else if (name.starts_with("neg.")) value = uint64_t{0} - in(1);
    else if (name.starts_with("min.u64")) value = std::min(in(1), in(2));
    else if (name.starts_with("mul.")) value = in(1) * in(2);
    else if (name.starts_with("mad.lo.")) value = in(1) * in(2) + in(3);
    else if (name.starts_with("setp.ge.")) value = in(1) >= in(2) ? 1 : 0;
    else if (name.starts_with("setp.eq.")) value = in(1) == in(2) ? 1 : 0;
    else throw std::runtime_error("no such instruction: " + name);
    const bool narrow = (ends_with(name, "32") && !name.starts_with("mul.wide") && !name.starts_with("cvt.u64"));
    registers[o[0]] = narrow ? static_cast<uint32_t>(value) : value;
}

void PtxProgram::access(const Instruction& instruction, Registers& registers) {
    const bool load = instruction.name.starts_with("ld.");
    const size_t width = ends_with(instruction.name, "u64") ? 8 : ends_with(instruction.name, "u32") ? 4 : 1;
    const size_t vector = instruction.name.find(".v4.") != std::string::npos ? 4 : 1;
    const auto& o = instruction.operands;
    // "ld v.., [a+n]", "st [a+n], v..": the offset may be missing.
    const size_t address_at = load ? vector : 0;
    uint64_t address = value_of(o[address_at], registers);
    if (o.size() == vector + 2) address += value_of(o[address_at + 1], registers);
    if (address % (width * vector) != 0) throw std::runtime_error("an address that is not aligned: " + instruction.name);
    const size_t first = load ? 0 : o.size() - vector;
    for (size_t i = 0; i < vector; ++i) {
        void* const there = reinterpret_cast<void*>(address + i * width);
        if (load) {
            uint64_t value = 0;
            std::memcpy(&value, there, width);
            registers[o[first + i]] = value;
        } else {
            const uint64_t value = value_of(o[first + i], registers);
            std::memcpy(there, &value, width);
        }
    }
}

void PtxProgram::run_thread(Registers registers, const Parameters& parameters) const {
    for (size_t at = 0; at < code_.size();) {
        const Instruction& instruction = code_[at++];
        if (!instruction.guard.empty() && value_of(instruction.guard, registers) == 0) continue;
        if (instruction.name == "ret") return;
        if (instruction.name == "bra") at = labels_.at(instruction.operands[0]);
        else if (instruction.name == "membar.sys") continue;
        else if (instruction.name.starts_with("ld.param")) registers[instruction.operands[0]] = parameters.at(instruction.operands[1]);
        else if (instruction.name.starts_with("ld.") || instruction.name.starts_with("st.")) access(instruction, registers);
        else compute(instruction, registers);
    }
}

void PtxProgram::run(uint32_t blocks, uint32_t threads, const Parameters& parameters) const {
    for (uint32_t block = 0; block < blocks; ++block)
        for (uint32_t thread = 0; thread < threads; ++thread)
            run_thread({{"%tid.x", thread}, {"%ntid.x", threads}, {"%ctaid.x", block}, {"%nctaid.x", blocks}}, parameters);
}

}  // namespace mooncake::cuda::testing
