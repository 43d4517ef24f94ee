// SPDX-License-Identifier: Apache-2.0
// A whole pool in one process, for one machine: the master, and a node that lends memory to it, and a directory on a disk if it is given one. Flags: those of
// mooncake_master, --global_segment_size and --offload_path.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/config_file.h"
#include "apps/common/flags_master.h"
#include "apps/common/master_program.h"
#include "apps/common/stop_signals.h"
#include "base/log.h"
#include "base/options.h"
#include "base/version.h"
#include "store/process/offload_options.h"
#include "store/process/store_client.h"

namespace {

using namespace mooncake;
using namespace mooncake::store;

constexpr std::string_view kSizeFlag = "-global_segment_size", kDiskFlag = "-offload_path";

int complain(std::string_view text) {
    std::fprintf(stderr, "mooncake_standalone: %s\n", std::string(text).c_str());
    return 1;
}

/// Takes a flag of our own out of the arguments; the text of its value.
std::string take(std::vector<std::string>& arguments, std::string_view flag, std::string value) {
    for (auto at = arguments.begin(); at != arguments.end();) {
        // With one dash or two, as all flags.
        const std::string_view word = at->starts_with("--") ? std::string_view(*at).substr(1) : std::string_view(*at);
        if (word.starts_with(flag) && word.substr(flag.size()).starts_with('=')) {
            value = word.substr(flag.size() + 1);
            at = arguments.erase(at);
        } else if (word == flag && at + 1 != arguments.end()) {
            value = *(at + 1);
            at = arguments.erase(at, at + 2);
        } else {
            ++at;
        }
    }
    return value;
}

}  // namespace

int main(int argc, char** argv) try {
    StopSignals signals;
    const Environment environment = process_environment();
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto size = parse_size(take(arguments, kSizeFlag, "1GB"));
    if (!size) return complain(size.error().message());
    const std::string disk = take(arguments, kDiskFlag, "");
    const auto flags = parse_master_flags(arguments, {.read_file = read_config_file, .environment = environment});
    if (!flags) return complain(flags.error().message());
    if (flags->log.help)
        return std::printf(
                   "%s  -%s (memory lent to the pool)\n      default: 1GB\n  -%s (directory on a disk for values that leave memory, with "
                   "an offload flag)\n"
                   "      default: \"\", none\n",
                   master_help().c_str(), std::string(kSizeFlag).c_str(), std::string(kDiskFlag).c_str()) < 0;
    if (flags->log.version) return std::printf("mooncake_standalone %s\n", std::string(version()).c_str()) < 0;
    configure_program_log(flags->log, load_options(environment).log, "mooncake_standalone");
    for (const std::string& warning : flags->warnings) MC_LOG_WARNING("{}", warning);

    auto program = MasterProgram::start(*flags);
    if (!program) return complain(program.error().to_string());
    StoreConfig config{.local_hostname = "127.0.0.1",
                       .segment_bytes = *size,
                       .buffer_bytes = 0,
                       .master = format_text("127.0.0.1:{}", (*program)->port()),
                       .options = load_store_options(environment)};
    if (!disk.empty()) {
        auto loaded = load_disk_config(environment, disk);
        if (!loaded) return complain(loaded.error().message());
        config.disk = std::move(*loaded);
    }
    auto node = StoreClient::create(config);
    if (!node) return complain(format_text("cannot lend {} bytes: {}", *size, store_code_name(node.error())));
    std::printf("Master service started on port %u\nadmin page http://127.0.0.1:%u/\nthe pool is ready\n", (*program)->port(),
                (*program)->admin_port());
    std::fflush(stdout);
    const int signal_number = signals.wait();
    MC_LOG_INFO("ending on signal {}", signal_number);
    (*node)->close();
    node->reset();
    program->reset();
    return 0;
} catch (const std::exception& thrown) {  // no thread or no memory was to be had
    return complain(thrown.what());
}
