// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/version.h"
#include "commands.h"

namespace {

using namespace mooncake;

constexpr const char* kUsage =
    "mooncake COMMAND [flags]; mooncake COMMAND --help explains the flags\n\n"
    "  proxy     serve the OpenAI API in front of prefill and decode instances\n"
    "  simulate  replay a trace of requests on virtual time and say what the scheduler makes of it\n";

int complain(const std::string& text) {
    std::fprintf(stderr, "mooncake: %s\n", text.c_str());
    return 1;
}

Result<int> run(const std::string& command, std::span<const std::string> arguments) {
    if (command == "proxy") return run_proxy(arguments);
    if (command == "simulate") return run_simulate(arguments);
    if (command == "--version" || command == "-version") return std::printf("mooncake %s\n", std::string(version()).c_str()) < 0 ? 1 : 0;
    if (command == "--help" || command == "-help" || command == "help") return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
    return fail(Code::kInvalidArgument, "no command {}; see mooncake --help", command);
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 2) {
        std::fputs(kUsage, stderr);
        return 1;
    }
    const std::vector<std::string> arguments(argv + 2, argv + argc);
    const auto status = run(argv[1], arguments);
    return status ? *status : complain(status.error().to_string());
} catch (const std::exception& thrown) {  // no thread or no memory was to be had
    return complain(thrown.what());
}
