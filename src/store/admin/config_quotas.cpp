// SPDX-License-Identifier: Apache-2.0
#include "store/admin/config_quotas.h"

#include <fcntl.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/read_file.h"
#include "base/unique_fd.h"
#include "store/service/tenant_name.h"

namespace mooncake::store {

namespace {

constexpr size_t kQuotaBytesMax = 1 << 20;

std::string lower_without_blanks(std::string_view text) {
    std::string result;
    for (const char c : text)
        if (c != ' ' && c != '\t') result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return result;
}

Result<> add_tenant(const YAML::Node& entry, Quotas& quotas) {
    if (!entry.IsMap() || !entry["name"] || !entry["name"].IsScalar() || !entry["quota"] || !entry["quota"].IsScalar())
        return fail(Code::kInvalidArgument, "every tenant needs a name and a quota");
    const std::string name = entry["name"].Scalar();
    if (!valid_tenant_name(name)) return fail(Code::kInvalidArgument, "'{}' cannot be the name of a tenant", name);
    auto quota = parse_quota(entry["quota"].Scalar());
    if (!quota) return Unexpected(std::move(quota).error().with_context(name));
    if (!quotas.emplace(name, *quota).second) return fail(Code::kInvalidArgument, "tenant '{}' is named twice", name);
    return {};
}

Result<> write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail_errno(Code::kUnavailable, errno, "cannot write");
        text.remove_prefix(static_cast<size_t>(written));
    }
    if (::fsync(fd) != 0) return fail_errno(Code::kUnavailable, errno, "cannot write");
    return {};
}

}  // namespace

Result<uint64_t> parse_quota(std::string_view text) {
    constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},        {"b", 1},       {"kb", 0x1p10},
                                                              {"mb", 0x1p20}, {"gb", 0x1p30}, {"tb", 0x1p40}};
    const std::string clean = lower_without_blanks(text);
    const size_t digits = std::min(clean.find_first_not_of("0123456789."), clean.size());
    const auto* const unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                          [&](const auto& entry) { return entry.first == clean.substr(digits); });
    const Unexpected bad = fail(Code::kInvalidArgument, "'{}' is no quota such as 512MB or 2GB", text);
    if (unit == std::end(kUnits) || digits == 0) return bad;
    uint64_t bytes = 0;
    if (const auto [end, status] = std::from_chars(clean.data(), clean.data() + digits, bytes);
        unit->second == 1 && status == std::errc() && end == clean.data() + digits) {
        if (bytes == 0 || bytes > INT64_MAX) return bad;  // exact, unlike what follows
        return bytes;
    }
    double number = 0;
    const auto [end, status] = std::from_chars(clean.data(), clean.data() + digits, number);
    if (status != std::errc() || end != clean.data() + digits) return bad;
    number = std::floor(number * unit->second);
    if (number < 1 || number >= 0x1p63) return bad;
    return static_cast<uint64_t>(number);
}

Result<Quotas> parse_quotas(std::string_view text) try {
    if (text.size() > kQuotaBytesMax) return fail(Code::kInvalidArgument, "the file is longer than {} bytes", kQuotaBytesMax);
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsMap()) return fail(Code::kInvalidArgument, "a policy with 'version' and 'tenants' is expected");
    if (!root["version"] || !root["version"].IsScalar() || root["version"].Scalar() != "1")
        return fail(Code::kInvalidArgument, "version 1 is expected");
    const YAML::Node tenants = root["tenants"];
    Quotas quotas;
    if (!tenants || tenants.IsNull()) return quotas;
    if (!tenants.IsSequence()) return fail(Code::kInvalidArgument, "'tenants' must be a list");
    for (const YAML::Node& entry : tenants) MC_RETURN_IF_ERROR(add_tenant(entry, quotas));
    return quotas;
} catch (const YAML::Exception& problem) {
    return fail(Code::kInvalidArgument, "not readable as YAML: {}", problem.what());
}

std::string format_quotas(const Quotas& quotas) {
    YAML::Emitter out;
    out << YAML::BeginMap << YAML::Key << "version" << YAML::Value << 1 << YAML::Key << "tenants" << YAML::Value << YAML::BeginSeq;
    for (const auto& [name, bytes] : quotas) {
        out << YAML::BeginMap << YAML::Key << "name" << YAML::Value << YAML::DoubleQuoted << name << YAML::Key << "quota" << YAML::Value
            << format_text("{}B", bytes) << YAML::EndMap;
    }
    out << YAML::EndSeq << YAML::EndMap;
    return std::string(out.c_str()) + "\n";
}

Result<Quotas> load_quotas(const std::string& path) {
    MC_ASSIGN_OR_RETURN(const std::string text, read_file(path, kQuotaBytesMax));
    auto quotas = parse_quotas(text);
    if (!quotas) return Unexpected(std::move(quotas).error().with_context(path));
    return quotas;
}

Result<> save_quotas(const std::string& path, const Quotas& quotas) {
    const std::string text = format_quotas(quotas);
    if (text.size() > kQuotaBytesMax)  // the next master would not start with it
        return fail(Code::kNoSpace, "{}: the quotas of all tenants have {} bytes; at most {} are allowed", path, text.size(),
                    kQuotaBytesMax);
    const std::string fresh = format_text("{}.{}.new", path, ::getpid());
    const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) return fail_errno(Code::kUnavailable, errno, "cannot create {}", fresh);
    if (auto written = write_all(fd.get(), text); !written) {
        ::unlink(fresh.c_str());
        return Unexpected(std::move(written).error().with_context(fresh));
    }
    if (::rename(fresh.c_str(), path.c_str()) != 0) return fail_errno(Code::kUnavailable, errno, "cannot replace {}", path);
    return {};
}

}  // namespace mooncake::store
