// SPDX-License-Identifier: Apache-2.0
#include <gflags/gflags.h>
#include <signal.h>

#include <cstdio>
#include <string_view>

#include "base/log.h"
#include "base/options.h"
#include "base/version.h"
#include "bench.h"
#include "report.h"

DEFINE_string(mode, "initiator", "initiator: move data; target: lend memory to initiators");
DEFINE_string(metadata_server, "P2PHANDSHAKE", "P2PHANDSHAKE, or the directory: http://..., etcd://..., redis://...");
DEFINE_string(local_server_name, "127.0.0.1", "our host, or host:port, as the other side reaches it");
DEFINE_string(bind_address, "", "where our ports listen; empty: everywhere, or on loopback alone if that is our host");
DEFINE_string(segment_id, "", "the target's name, as it prints it (initiator)");
DEFINE_string(protocol, "tcp", "the transport preferred between hosts");
DEFINE_string(device_name, "", "NICs to use, separated by commas; empty: all");
DEFINE_string(operation, "read", "read or write");
DEFINE_uint64(block_size, 65536, "bytes of one block");
DEFINE_int32(batch_size, 128, "blocks moved by one call");
DEFINE_int32(threads, 12, "threads that call");
DEFINE_int32(duration, 10, "seconds");
DEFINE_uint64(buffer_size, uint64_t{1} << 30, "bytes of memory on each side");
DEFINE_string(report_unit, "GB", "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb");
DEFINE_uint32(report_precision, 2, "digits after the point");
DEFINE_bool(json, false, "print the result as one line of JSON");
DEFINE_bool(use_managed_buffer, false, "memory from the engine, which peers on the same host can map");
DEFINE_bool(auto_discovery, false, "accepted; topology is always discovered");
DEFINE_string(nic_priority_matrix, "", "a file that says which NICs are near which memory");
DEFINE_string(backend, "classic", "accepted; there is one engine");
DEFINE_bool(use_vram, false, "GPU memory; not in this build");
DEFINE_int32(gpu_id, 0, "the GPU, with --use_vram");

namespace {

using namespace mooncake;  // NOLINT(google-build-using-namespace)

Result<Direction> parse_operation(std::string_view text) {
    if (text == "read") return Direction::kRead;
    if (text == "write") return Direction::kWrite;
    return fail(Code::kInvalidArgument, "--operation is read or write, not {}", text);
}

Result<> check_flags() {
    if (FLAGS_mode != "initiator" && FLAGS_mode != "target")
        return fail(Code::kInvalidArgument, "--mode is initiator or target, not {}", FLAGS_mode);
    if (FLAGS_mode == "initiator" && FLAGS_segment_id.empty())
        return fail(Code::kInvalidArgument, "--segment_id is missing: the target prints it");
    if (FLAGS_block_size == 0 || FLAGS_buffer_size == 0 || FLAGS_batch_size < 1 || FLAGS_threads < 1 || FLAGS_duration < 1)
        return fail(Code::kInvalidArgument, "sizes, batch size, threads and duration must be positive");
    if (!bench::unit_bytes(FLAGS_report_unit)) return fail(Code::kInvalidArgument, "--report_unit: {} is not known", FLAGS_report_unit);
    if (FLAGS_use_vram) MC_LOG_WARNING("--use_vram has no effect in this build: host memory is used");
    if (FLAGS_backend != "classic") MC_LOG_WARNING("--backend={} has no effect: there is one engine", FLAGS_backend);
    return {};
}

Result<bench::Options> read_flags() {
    MC_RETURN_IF_ERROR(check_flags());
    bench::Options options;
    MC_ASSIGN_OR_RETURN(options.direction, parse_operation(FLAGS_operation));
    options.engine = {.local_name = FLAGS_local_server_name,
                      .metadata = FLAGS_metadata_server,
                      .protocol = FLAGS_protocol,
                      .devices = split_list(FLAGS_device_name),
                      .options = load_options()};
    if (!FLAGS_bind_address.empty()) options.engine.options.bind_address = FLAGS_bind_address;
    if (!FLAGS_nic_priority_matrix.empty()) options.engine.options.topology_file = FLAGS_nic_priority_matrix;
    options.segment = FLAGS_segment_id;
    options.block_bytes = FLAGS_block_size;
    options.blocks_per_batch = static_cast<uint32_t>(FLAGS_batch_size);
    options.threads = static_cast<uint32_t>(FLAGS_threads);
    options.buffer_bytes = FLAGS_buffer_size;
    options.duration = std::chrono::seconds(FLAGS_duration);
    options.managed_memory = FLAGS_use_managed_buffer;
    options.unit = FLAGS_report_unit;
    options.precision = static_cast<int>(FLAGS_report_precision);
    options.json = FLAGS_json;
    return options;
}

Result<> run() {
    MC_ASSIGN_OR_RETURN(const bench::Options options, read_flags());
    if (FLAGS_mode == "initiator") return bench::run_initiator(options);
    // Before any thread exists, so that the signals wait for run_target().
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ending, nullptr);
    return bench::run_target(options);
}

}  // namespace

int main(int argc, char** argv) {
    gflags::SetUsageMessage("measures the speed of transfers between two processes; start the target first");
    gflags::SetVersionString(std::string(mooncake::version()));
    gflags::ParseCommandLineFlags(&argc, &argv, true);
    auto done = run();
    if (done) return 0;
    std::fprintf(stderr, "transfer_engine_bench: %s\n", done.error().to_string().c_str());
    return 1;
}
