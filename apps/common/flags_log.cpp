// SPDX-License-Identifier: Apache-2.0
#include "apps/common/flags_log.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace mooncake::store {

namespace {

std::string local_time_text() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    char text[32] = {};
    std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
    return text;
}

/// Makes `link` lead to `target`; what fails is not worth more than it is.
void replace_link(const std::string& link, const std::string& target) {
    const std::string fresh = format_text("{}.{}", link, ::getpid());
    if (::symlink(target.c_str(), fresh.c_str()) != 0) return;
    if (std::rename(fresh.c_str(), link.c_str()) != 0) ::unlink(fresh.c_str());
}

}  // namespace

void add_log_flags(FlagSet& set, LogFlags& f) {
    set.add({.name = "log_dir", .target = &f.log_dir, .help = "log to a file in this folder"});
    set.add({.name = "logtostderr", .target = &f.logtostderr, .help = "to stderr, whatever --log_dir says"});
    set.add({.name = "alsologtostderr", .target = &f.alsologtostderr, .help = "as --logtostderr"});
    set.add({.name = "v", .target = &f.v, .help = "1 and more: log details", .min = -10, .max = 100});
    set.add({.name = "minloglevel", .target = &f.minloglevel, .help = "0 info, 1 warnings, 2 errors, 3 nothing", .max = 4});
    for (const std::string_view name : {"colorlogtostderr", "log_prefix", "stop_logging_if_full_disk", "symbolize_stacktrace",
                                        "timestamp_in_logfile_name", "log_utc_time", "drop_log_memory"})
        set.add({.name = name, .target = set.spare(false), .help = "accepted, means nothing"});
    for (const std::string_view name :
         {"max_log_size", "logbufsecs", "logbuflevel", "stderrthreshold", "log_file_mode", "logfile_mode", "logemaillevel"})
        set.add({.name = name, .target = set.spare(int64_t{0}), .help = "accepted, means nothing", .min = -1});
    for (const std::string_view name : {"vmodule", "log_link", "log_backtrace_at", "logmailer", "alsologtoemail"})
        set.add({.name = name, .target = set.spare(std::string_view()), .help = "accepted, means nothing"});
    set.add({.name = "help", .target = &f.help, .help = "print this and end"});
    set.add({.name = "version", .target = &f.version, .help = "print the version and end"});
}

LogOptions log_options(const LogFlags& flags, LogOptions base) {
    if (flags.v >= 1) base.level = LogLevel::kTrace;
    if (flags.minloglevel == 1) base.level = LogLevel::kWarning;
    if (flags.minloglevel == 2) base.level = LogLevel::kError;
    if (flags.minloglevel >= 3) base.level = LogLevel::kOff;
    if (!flags.log_dir.empty()) base.directory = flags.log_dir;
    if (flags.logtostderr || flags.alsologtostderr) base.directory.clear();
    return base;
}

void configure_program_log(const LogFlags& flags, LogOptions base, const std::string& program) {
    LogOptions options = log_options(flags, std::move(base));
    if (!options.directory.empty()) {
        const std::string name = format_text("{}.INFO.{}.{}", program, local_time_text(), ::getpid());
        options.file = format_text("{}/{}", options.directory, name);
        configure_log(options);
        replace_link(format_text("{}/{}.INFO", options.directory, program), name);
    } else {
        configure_log(options);
    }
}

}  // namespace mooncake::store
