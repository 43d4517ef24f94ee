// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include "base/log.h"
#include "base/memory_probe.h"
#include "store_bindings.h"

namespace mooncake::python {

namespace {

/// Methods that are written in Python: those that read arguments in many forms, and those made of others.
void take_python_methods(nb::module_& module, StoreClass& store) {
    const nb::module_ methods = nb::module_::import_("mooncake._store_methods");
    for (const char* part : {"METHODS", "TENSOR_METHODS"})
        for (const auto& [name, method] : nb::cast<nb::dict>(methods.attr(part))) nb::setattr(store, name, method);
    for (const auto& [name, value] : nb::cast<nb::dict>(methods.attr("NAMES"))) nb::setattr(module, name, value);
}

}  // namespace

}  // namespace mooncake::python

NB_MODULE(store_of_main, module) {
    using namespace mooncake::python;
    // Stores that live to the end of the process are closed by the exit hook; nothing is lost that a warning would help to find.
    nb::set_leak_warnings(false);
    nb::module_::import_("mooncake.engine");  // whose engines setup() takes
    module.doc() = "A pool of memory lent by many processes, addressed by key.";
    bind_store_enums(module);
    bind_replicate_config(module);
    bind_replicas(module);
    bind_blocks(module);
    bind_host_memory(module);
    module.def("_log_info", [](const std::string& text) { log_from_python(mooncake::LogLevel::kInfo, text); });
    module.def("_log_warning", [](const std::string& text) { log_from_python(mooncake::LogLevel::kWarning, text); });
    module.def("_address_of", [](nb::handle object) {
        const auto view = BufferView::of(object);
        if (!view) throw nb::type_error("an object with memory of its own is expected");
        return reinterpret_cast<uintptr_t>(view->data());
    });
    module.def("_is_readable", [](uintptr_t address, uint64_t length) {
        const nb::gil_scoped_release released;
        return mooncake::is_readable(reinterpret_cast<const std::byte*>(address), length);
    });
    module.def("_is_writable", [](uintptr_t address, uint64_t length) {
        const nb::gil_scoped_release released;
        return mooncake::is_writable(reinterpret_cast<std::byte*>(address), length);
    });
    StoreClass store(
        module, "MooncakeDistributedStore", nb::is_weak_referenceable(), nb::dynamic_attr(),
        "One member of the pool: reads and writes values, and lends memory if told to. No work is done before setup(). Everything\n"
        "may be called from any thread. Answers are 0 or more for success, negative for failure; lists have the length and the\n"
        "order of the question.");
    bind_store_life(store);
    bind_values(store);
    bind_zero_copy(store);
    bind_parts(store);
    bind_segments(store);
    take_python_methods(module, store);
}

extern "C" NB_EXPORT PyObject* PyInit_store() { return mooncake::python::in_main_interpreter() ? PyInit_store_of_main() : nullptr; }
