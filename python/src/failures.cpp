// SPDX-License-Identifier: Apache-2.0
#include "failures.h"

#include <stdexcept>

#include "base/log.h"
#include "interpreter.h"

namespace mooncake::python {

namespace {

std::string& text_of_this_thread() noexcept {
    thread_local std::string text;
    return text;
}

}  // namespace

void record_failure(const char* call, const Error& error) {
    std::string& text = text_of_this_thread();
    text = format_text("{}: {}", call, error.to_string());
    static constinit LogLimit limit(1s);
    if (limit.allow()) log_from_python(LogLevel::kWarning, std::string(text));  // a copy: meanwhile Python code may run on this thread
}

const std::string& last_error() noexcept { return text_of_this_thread(); }

void raise_failure(const char* call, const Error& error) {
    record_failure(call, error);
    throw std::runtime_error(last_error());
}

}  // namespace mooncake::python
