// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coordination/directory.h"

namespace mooncake {

/// A metadata server that keeps one value per `?key=`: GET, PUT and DELETE on one URL. kInvalidArgument: no http URL;
/// kNotSupported: https, since no TLS library is linked.
Result<std::unique_ptr<Directory>> make_http_directory(const std::string& url);

}  // namespace mooncake
