// SPDX-License-Identifier: Apache-2.0
// Runs one fuzz target as a plain test: its corpus, then a fixed series of mutations of it. The real search is `make fuzz`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

std::string corpus_folder;

std::vector<Input> read_corpus() {
    std::vector<Input> inputs;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(corpus_folder, missing)) {
        std::ifstream file(entry.path(), std::ios::binary);
        inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    std::sort(inputs.begin(), inputs.end());  // the folder's order differs between machines, the test must not
    return inputs;
}

/// A copy on the heap of exactly the input's size, so that AddressSanitizer sees every read beyond it.
void feed(const Input& input) {
    const Input exact(input);
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

/// Flips bits, cuts, repeats and overwrites, as damaged or hostile messages would.
Input mutate(Input input, std::mt19937_64& random) {
    const uint64_t changes = 1 + random() % 4;
    for (uint64_t i = 0; i < changes; ++i) {
        if (input.empty()) input.push_back(static_cast<uint8_t>(random()));
        const auto at = static_cast<std::ptrdiff_t>(random() % input.size());
        switch (random() % 5) {
            case 0: input[static_cast<size_t>(at)] ^= static_cast<uint8_t>(1u << (random() % 8)); break;
            case 1: input[static_cast<size_t>(at)] = static_cast<uint8_t>(random()); break;
            case 2: input.erase(input.begin() + at, input.end()); break;
            case 3: input.insert(input.begin() + at, random() % 16, static_cast<uint8_t>(random() % 2 ? 0xff : 0)); break;
            default: input.erase(input.begin() + at); break;
        }
    }
    return input;
}

TEST(Fuzz, SurvivesTheCorpusAndItsMutations) {
    std::vector<Input> inputs = read_corpus();
    inputs.emplace_back();
    for (const Input& input : inputs) feed(input);

    std::mt19937_64 random(20240607);
    for (int i = 0; i < 20'000; ++i) feed(mutate(inputs[random() % inputs.size()], random));
    for (int i = 0; i < 2'000; ++i) {
        Input noise(random() % 600);
        for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
        feed(noise);
    }
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc > 1) corpus_folder = argv[1];
    return RUN_ALL_TESTS();
}
