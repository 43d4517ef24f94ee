// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/log.h"
#include "bindings.h"
#include "failures.h"

namespace mooncake::python {

enum class TransferOpcode : uint8_t { kRead = 0, kWrite = 1 };

static void bind_opcode(nb::module_& module) {
    nb::enum_<TransferOpcode> opcode(module, "TransferOpcode", nb::is_arithmetic(),
                                     "Which way the bytes go: Read fetches from the peer, Write sends.");
    opcode.value("Read", TransferOpcode::kRead, "peer -> local buffer").value("Write", TransferOpcode::kWrite, "local buffer -> peer");
    opcode.export_values();
    for (const auto& [upper, name] : {std::pair{"READ", "Read"}, std::pair{"WRITE", "Write"}}) {  // as some documents spell them
        opcode.attr(upper) = opcode.attr(name);
        module.attr(upper) = opcode.attr(name);
    }
}

void bind_types(nb::module_& module) {
    bind_opcode(module);
    nb::class_<Notification>(module, "TransferNotify", "A message for the peer, delivered after the data of its transfer is in place.")
        .def(nb::init<>())
        .def(nb::init<std::string, std::string>(), nb::arg("name"), nb::arg("msg"))
        .def_rw("name", &Notification::name)
        .def_rw("msg", &Notification::message)
        .def("__repr__", [](const Notification& self) {
            return nb::str("TransferNotify(name={!r}, msg={!r})").attr("format")(self.name, self.message);
        });
    nb::class_<InnerEngine>(module, "InnerTransferEngine", "The engine itself, to be shared with other modules of this package. Opaque.");
    nb::class_<PreparedCalls>(
        module, "PreparedTransfer",
        "A transfer whose lists were read, checked and resolved once, made by TransferEngine.prepare(); may be run any\n"
        "number of times, from any thread.")
        .def(
            "write", [](PreparedCalls& self, nb::handle after) { return self.run(Direction::kWrite, after); }, nb::kw_only(),
            nb::arg("after") = nb::none(), "Sends the buffers to the peer and waits. Returns 0, or -1 on failure.")
        .def(
            "read", [](PreparedCalls& self, nb::handle after) { return self.run(Direction::kRead, after); }, nb::kw_only(),
            nb::arg("after") = nb::none(), "Fetches the buffers from the peer and waits. Returns 0, or -1 on failure.")
        .def(
            "submit_write", [](PreparedCalls& self, nb::handle after) { return self.submit(Direction::kWrite, after); }, nb::kw_only(),
            nb::arg("after") = nb::none(),
            "Starts sending. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure.")
        .def(
            "submit_read", [](PreparedCalls& self, nb::handle after) { return self.submit(Direction::kRead, after); }, nb::kw_only(),
            nb::arg("after") = nb::none(),
            "Starts fetching. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure.");
    nb::class_<CompletionPort>(module, "_CompletionPort", "Where an event loop hears of finished batches.")
        .def(nb::init<>())
        .def("fileno", &CompletionPort::fileno)
        .def("put", &CompletionPort::put, nb::arg("token"))
        .def("take", &CompletionPort::take);
    module.attr("SUPPORT_EFA") = efa_usable();
    // What the build can do; features() tells what of it this process can.
    for (const char* flag : {"SUPPORT_CUDA", "SUPPORT_INTRA_NVLINK"}) module.attr(flag) = true;
    for (const char* flag : {"SUPPORT_HIP", "SUPPORT_MNNVL", "SUPPORT_MUSA"}) module.attr(flag) = false;
    module.def("_list_features", [] {
        std::vector<std::tuple<std::string, bool, std::string>> features;
        for (Feature& feature : without_gil([] { return list_features(); }))
            features.emplace_back(std::move(feature.name), feature.usable, std::move(feature.reason));
        return features;
    });
}

void bind_life(EngineClass& engine) {
    using nb::literals::operator""_a;
    engine.def(nb::init<>())
        .def("initialize", &TransferEngine::initialize, "local_hostname"_a, "metadata_server"_a, "protocol"_a, "device_name"_a.none(),
             "Starts the engine. Returns 0, or -1 (see last_error()), after which it may be called again.\n\n"
             "local_hostname: the name peers reach us by, \"10.0.0.1\" or \"10.0.0.1:12345\".\n"
             "metadata_server: \"P2PHANDSHAKE\", or the address of a directory: \"http://...\", \"etcd://...\", \"redis://...\".\n"
             "protocol: the transport preferred between hosts; what this machine does not have falls back to tcp.\n"
             "device_name: comma-separated network devices to use; \"\" or \"auto-discovery\" for all.")
        .def("initialize_ext", &TransferEngine::initialize_ext, "local_hostname"_a, "metadata_server"_a, "protocol"_a,
             "device_name"_a.none(), "metadata_type"_a,
             "As initialize(), with the scheme of the directory (\"http\", \"etcd\", \"redis\") in metadata_type.")
        .def("close", &TransferEngine::close,
             "Ends everything that runs, takes all memory back from the peers and joins the engine's threads. Later calls fail. "
             "RuntimeError if a\n"
             "process of this host hangs in the midst of an access to our memory: everything else is done, and calling it again waits for "
             "that.")
        .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
        .def(
            "__exit__",
            [](TransferEngine& self, nb::handle raised, nb::handle, nb::handle) {
                try {
                    self.close();
                } catch (const std::runtime_error&) {
                    if (raised.is_none()) throw;  // else what was raised inside is of more interest; last_error() has this
                }
            },
            "exc_type"_a.none(), "exc_value"_a.none(), "traceback"_a.none())
        .def("get_rpc_port", &TransferEngine::get_rpc_port,
             "The port of this engine: f\"{host}:{port}\" is the name peers pass as target_hostname. RuntimeError before initialize().")
        .def("get_engine", &TransferEngine::get_engine,
             "The engine itself, for other modules of this package. RuntimeError before initialize().")
        .def("get_engine_ptr", &TransferEngine::get_engine_ptr, "The address of the native engine. RuntimeError before initialize().")
        .def("get_local_topology", &TransferEngine::get_local_topology, "device_name"_a = nb::none(),
             "Which network devices are near which memory, as JSON: {\"cpu:0\": [[preferred], [others]], ...}. Works before initialize().")
        .def("get_metrics", &TransferEngine::get_metrics,
             "Counters and latencies in the Prometheus text format. RuntimeError before initialize().")
        .def(
            "last_error", [](const TransferEngine&) { return last_error(); },
            "What went wrong in the last failed call of this thread, of any engine: peer, path, stage and system error. \"\" if nothing "
            "did.");
}

/// What is written in Python: it runs Python code of its own, or has no need of anything native.
static void take_python_parts(nb::module_& module, EngineClass& engine) {
    const nb::module_ methods = nb::module_::import_("mooncake._methods");
    engine.attr("transfer_async") = methods.attr("transfer_async");
    module.attr("__getattr__") = methods.attr("find_part");
    module.attr("__dir__") = methods.attr("list_parts");
}

}  // namespace mooncake::python

NB_MODULE(engine_of_main, module) {
    using namespace mooncake::python;
    // Engines that live to the end of the process are closed by the exit hook; nothing is lost that a warning would help to find.
    nb::set_leak_warnings(false);
    module.doc() = "Moves bytes between registered memory of any two processes.";
    bind_types(module);
    module.def("_log_warning", [](const std::string& text) { log_from_python(mooncake::LogLevel::kWarning, text); });
    EngineClass engine(
        module, "TransferEngine", nb::is_weak_referenceable(),
        "One end of transfers: registers memory that peers may read and write, and reads and writes theirs. Everything may be\n"
        "called from any thread. Addresses are ints; buffers may also be objects with the buffer protocol or DLPack.");
    bind_life(engine);
    bind_memory(engine);
    bind_sync_transfers(engine);
    bind_async_transfers(engine);
    bind_stream_transfers(engine);
    bind_peers(engine);
    engine.attr("TransferOpcode") = module.attr("TransferOpcode");
    take_python_parts(module, engine);
}

extern "C" NB_EXPORT PyObject* PyInit_engine() { return mooncake::python::in_main_interpreter() ? PyInit_engine_of_main() : nullptr; }
