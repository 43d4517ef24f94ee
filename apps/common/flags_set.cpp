// SPDX-License-Identifier: Apache-2.0
#include "apps/common/flags_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/parse_switch.h"

namespace mooncake::store {

namespace {

constexpr double kDurationMaxS = 100.0 * 365 * 24 * 3600;

template <typename... Handlers>
struct Overloaded : Handlers... {
    using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return result;
}

Result<int64_t> parse_integer(std::string_view text) {
    std::string_view digits = trimmed(text);
    const bool negative = digits.starts_with('-');
    if (negative || digits.starts_with('+')) digits.remove_prefix(1);
    const int base = digits.starts_with("0x") || digits.starts_with("0X") ? 16 : 10;
    if (base == 16) digits.remove_prefix(2);
    uint64_t magnitude = 0;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
    const uint64_t limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (status != std::errc() || end != digits.data() + digits.size() || magnitude > limit)
        return fail(Code::kInvalidArgument, "an integer is expected");
    return negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

Result<double> parse_number(std::string_view text) {
    text = trimmed(text);
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
        return fail(Code::kInvalidArgument, "a number is expected");
    return value;
}

Result<> check_range(const FlagSpec& spec, double value) {
    if (value >= spec.min && value <= spec.max) return {};
    if (std::isinf(spec.max)) return fail(Code::kInvalidArgument, "it must be at least {}", spec.min);
    return fail(Code::kInvalidArgument, "it must be from {} to {}", spec.min, spec.max);
}

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string duration_text(Duration duration, Duration unit) {
    return duration % unit == 0ns ? format_text("{}", duration / unit) : format_text("{}ms", duration / 1ms);
}

std::string text_of(const FlagTarget& target) {
    return std::visit(
        Overloaded{[](const bool* value) { return std::string(*value ? "true" : "false"); },
                   [](const int64_t* value) { return format_text("{}", *value); },
                   [](const double* value) { return format_text("{}", *value); }, [](const std::string* value) { return *value; },
                   [](const Milliseconds& value) { return duration_text(*value.target, 1ms); },
                   [](const Seconds& value) { return duration_text(*value.target, 1s); }},
        target);
}

std::string_view type_name(const FlagTarget& target) {
    return std::visit(
        Overloaded{[](const bool*) { return "switch"; }, [](const int64_t*) { return "integer"; }, [](const double*) { return "number"; },
                   [](const std::string*) { return "text"; }, [](const Milliseconds&) { return "duration, in ms or with a unit"; },
                   [](const Seconds&) { return "duration, in s or with a unit"; }},
        target);
}

Result<> assign_duration(const FlagSpec& spec, Duration* target, std::string_view text, Duration unit) {
    MC_ASSIGN_OR_RETURN(const Duration value, parse_duration(text, unit));
    MC_RETURN_IF_ERROR(check_range(spec, seconds_of(value)));
    *target = value;
    return {};
}

Result<> assign_text(const FlagSpec& spec, std::string* target, std::string_view text) {
    if (!spec.choices.empty() && std::find(spec.choices.begin(), spec.choices.end(), text) == spec.choices.end()) {
        std::string allowed;
        for (const std::string_view choice : spec.choices) allowed += format_text("{}{}", allowed.empty() ? "" : ", ", choice);
        return fail(Code::kInvalidArgument, "it must be one of {}", allowed);
    }
    *target = text;
    return {};
}

template <typename Parsed, typename Value>
Result<> assign_number(const FlagSpec& spec, const Result<Parsed>& parsed, Value* target) {
    if (!parsed) return Unexpected(parsed.error());
    MC_RETURN_IF_ERROR(check_range(spec, static_cast<double>(*parsed)));
    *target = *parsed;
    return {};
}

Result<> assign(const FlagSpec& spec, std::string_view text) {
    return std::visit(Overloaded{[&](bool* target) -> Result<> {
                                     MC_ASSIGN_OR_RETURN(*target, parse_switch(text));
                                     return {};
                                 },
                                 [&](int64_t* target) { return assign_number(spec, parse_integer(text), target); },
                                 [&](double* target) { return assign_number(spec, parse_number(text), target); },
                                 [&](std::string* target) { return assign_text(spec, target, text); },
                                 [&](const Milliseconds& target) { return assign_duration(spec, target.target, text, 1ms); },
                                 [&](const Seconds& target) { return assign_duration(spec, target.target, text, 1s); }},
                      spec.target);
}

/// How many letters have to be put in, taken out or changed to make one out of the other; `limit` if it is that many or more.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
    if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = std::exchange(row[0], i), least = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min(std::min(row[j], row[j - 1]) + 1, changed);
            least = std::min(least, row[j]);
        }
        if (least >= limit) return limit;
    }
    return std::min(row[b.size()], limit);
}

}  // namespace

Result<Duration> parse_duration(std::string_view text, Duration unit) {
    constexpr std::pair<std::string_view, Duration> kUnits[] = {{"ms", 1ms}, {"s", 1s}, {"m", 1min}, {"min", 1min}, {"h", 1h}, {"d", 24h}};
    text = trimmed(text);
    const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string suffix = lower(trimmed(text.substr(digits)));
    auto number = parse_number(text.substr(0, digits));
    if (!suffix.empty()) {
        const auto* const found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                               [&](const auto& entry) { return entry.first == suffix; });
        if (found == std::end(kUnits)) number = fail(Code::kInvalidArgument, "no such unit");
        else unit = found->second;
    }
    if (!number) return fail(Code::kInvalidArgument, "a duration such as 500ms, 5s, 30m or 1h is expected");
    if (*number * seconds_of(unit) > kDurationMaxS) return fail(Code::kInvalidArgument, "that is more than a hundred years");
    // Whole numbers are exact.
    const double whole = std::floor(*number);
    return static_cast<Duration::rep>(whole) * unit +
           std::chrono::duration_cast<Duration>((*number - whole) * std::chrono::duration<double>(unit));
}

void FlagSet::add(FlagSpec spec) {
    MC_CHECK(numbers_.emplace(spec.name, specs_.size()).second);
    defaults_.push_back(text_of(spec.target));
    specs_.push_back(std::move(spec));
}

bool* FlagSet::spare(bool value) { return &std::get<bool>(spares_.emplace_back(value)); }
int64_t* FlagSet::spare(int64_t value) { return &std::get<int64_t>(spares_.emplace_back(value)); }
double* FlagSet::spare(double value) { return &std::get<double>(spares_.emplace_back(value)); }
std::string* FlagSet::spare(std::string_view value) { return &std::get<std::string>(spares_.emplace_back(std::string(value))); }

const FlagSpec* FlagSet::find(std::string_view name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? nullptr : &specs_[found->second];
}

std::string FlagSet::nearest(std::string_view name) const {
    const FlagSpec* best = nullptr;
    size_t distance = std::max<size_t>(name.size() / 3, 2) + 1;
    for (const FlagSpec& spec : specs_) {
        const size_t here = edit_distance(name, spec.name, distance);
        if (here < distance) best = &spec, distance = here;
    }
    return best == nullptr ? std::string() : format_text("; did you mean --{}?", best->name);
}

Result<FlagSet::Assignment> FlagSet::split_one(std::string_view flag, std::span<const std::string> rest, bool& took_next) const {
    const size_t equals = std::min(flag.find('='), flag.size());
    std::string name(flag.substr(0, equals));
    std::replace(name.begin(), name.end(), '-', '_');
    const FlagSpec* spec = find(name);
    const bool is_switch = spec != nullptr && std::holds_alternative<bool*>(spec->target);
    if (spec == nullptr && name.starts_with("no") && equals == flag.size()) {
        const FlagSpec* negated = find(std::string_view(name).substr(2));
        if (negated != nullptr && std::holds_alternative<bool*>(negated->target)) return Assignment{negated->name, "false"};
    }
    if (spec == nullptr) return fail(Code::kInvalidArgument, "unknown flag --{}{}", name, nearest(name));
    if (equals < flag.size()) return Assignment{name, flag.substr(equals + 1)};
    const bool next_is_switch = !rest.empty() && (rest.front() == "true" || rest.front() == "false");
    if (is_switch && !next_is_switch) return Assignment{name, "true"};
    if (rest.empty()) return fail(Code::kInvalidArgument, "flag --{} needs a value", name);
    took_next = true;
    return Assignment{name, rest.front()};
}

Result<std::vector<FlagSet::Assignment>> FlagSet::split(std::span<const std::string> arguments) const {
    std::vector<Assignment> result;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string_view flag = arguments[i];
        if (flag == "-h" || flag == "--helpfull" || flag == "--helpshort") flag = "--help";
        if (!flag.starts_with('-') || flag == "-" || flag == "--") return fail(Code::kInvalidArgument, "'{}' is no flag", flag);
        flag.remove_prefix(flag.starts_with("--") ? 2 : 1);
        bool took_next = false;
        MC_ASSIGN_OR_RETURN(Assignment assignment, split_one(flag, arguments.subspan(i + 1), took_next));
        result.push_back(std::move(assignment));
        if (took_next) ++i;
    }
    return result;
}

Result<> FlagSet::set(std::string_view name, std::string_view text) {
    const FlagSpec* spec = find(name);
    if (spec == nullptr) return fail(Code::kNotFound, "unknown flag --{}{}", name, nearest(name));
    if (auto done = assign(*spec, text); !done)
        return fail(Code::kInvalidArgument, "--{} cannot be '{}': {}", name, text, done.error().message());
    if (spec->given != nullptr) *spec->given = true;
    return {};
}

Result<> FlagSet::set_from_file(std::string_view name, std::string_view text) {
    for (const FlagSpec& spec : specs_)
        if (!spec.name_in_files.empty() && spec.name_in_files == name) return set(spec.name, text);
    return set(name, text);
}

std::vector<std::string_view> FlagSet::set_in_vain() const {
    std::vector<std::string_view> result;
    for (size_t i = 0; i < specs_.size(); ++i)
        if (!specs_[i].built && text_of(specs_[i].target) != defaults_[i]) result.push_back(specs_[i].name);
    return result;
}

std::string FlagSet::value(std::string_view name) const {
    const FlagSpec* spec = find(name);
    MC_CHECK(spec != nullptr);
    return text_of(spec->target);
}

const std::string& FlagSet::default_value(std::string_view name) const {
    const auto found = numbers_.find(name);
    MC_CHECK(found != numbers_.end());
    return defaults_[found->second];
}

std::string FlagSet::help() const {
    std::string result;
    for (size_t i = 0; i < specs_.size(); ++i) {
        const FlagSpec& spec = specs_[i];
        const std::string_view shown = defaults_[i].empty() ? std::string_view("\"\"") : std::string_view(defaults_[i]);
        result += format_text("  --{} ({}{})\n      {}; default: {}\n", spec.name, spec.help, spec.built ? "" : "; not built yet",
                              type_name(spec.target), shown);
    }
    return result;
}

}  // namespace mooncake::store
