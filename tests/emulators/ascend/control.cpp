// SPDX-License-Identifier: Apache-2.0
// Faults by rule, and the log of calls. Rules: "FUNCTION[,peer=TEXT][,nth=N][,count=N]->ACTION[:NUMBER]", apart by ';'. Actions: return, delay (ms), hang,
// close, corrupt, short, waiting, crash.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <list>

#include "tests/emulators/ascend/state.h"

namespace emu {

namespace {

struct Rule {
    std::string function, peer, action;
    long number = 0, nth = 1, count = -1;
    long seen = 0;
};

struct Control {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<Rule> rules;
    uint64_t releases = 0;
    long hanging = 0;
    std::deque<std::string> log;
    bool environment_read = false;
};

Control& control() {
    static Control& only = *new Control;
    return only;
}

void add_rule(Control& all, const std::string& text) {
    const size_t arrow = text.find("->");
    if (arrow == std::string::npos) return;
    Rule rule;
    std::string left = text.substr(0, arrow);
    rule.action = text.substr(arrow + 2);
    if (const size_t colon = rule.action.find(':'); colon != std::string::npos) {
        rule.number = std::strtol(rule.action.c_str() + colon + 1, nullptr, 10);
        rule.action.resize(colon);
    }
    for (bool first = true; !left.empty(); first = false) {
        const size_t comma = left.find(',');
        const std::string part = left.substr(0, comma);
        left = comma == std::string::npos ? "" : left.substr(comma + 1);
        if (first) rule.function = part;
        else if (part.rfind("peer=", 0) == 0) rule.peer = part.substr(5);
        else if (part.rfind("nth=", 0) == 0) rule.nth = std::strtol(part.c_str() + 4, nullptr, 10);
        else if (part.rfind("count=", 0) == 0) rule.count = std::strtol(part.c_str() + 6, nullptr, 10);
    }
    all.rules.push_back(rule);
}

void add_rules(Control& all, std::string text) {
    while (!text.empty()) {
        const size_t end = text.find(';');
        add_rule(all, text.substr(0, end));
        text = end == std::string::npos ? "" : text.substr(end + 1);
    }
}

std::optional<Rule> match(Control& all, const char* function, const std::string& peer) {
    for (Rule& rule : all.rules) {
        if (rule.function != function || (!rule.peer.empty() && rule.peer != peer)) continue;
        ++rule.seen;
        if (rule.seen < rule.nth || (rule.count >= 0 && rule.seen >= rule.nth + rule.count)) continue;
        return rule;
    }
    return std::nullopt;
}

}  // namespace

std::string setting(const char* name, const std::string& otherwise) {
    const char* const found = std::getenv(name);
    return found == nullptr ? otherwise : found;
}

Verdict enter(const char* function, const std::string& peer, const std::function<bool()>& ended) {
    Control& all = control();
    std::unique_lock<std::mutex> lock(all.mutex);
    if (!all.environment_read) {
        all.environment_read = true;
        add_rules(all, setting("ASCEND_EMU_FAULTS", ""));
    }
    const Context* const context = current();
    all.log.push_back(std::string(function) + " thread=" + std::to_string(::gettid()) +
                      " device=" + std::to_string(context == nullptr ? -1 : context->device) + (peer.empty() ? "" : " peer=" + peer));
    if (all.log.size() > 20000) all.log.pop_front();
    const auto rule = match(all, function, peer);
    Verdict verdict;
    if (!rule) return verdict;
    if (rule->action == "return") verdict.answer = rule->number;
    else if (rule->action == "close") verdict.drop_link = true;
    else if (rule->action == "corrupt") verdict.corrupt = rule->number;
    else if (rule->action == "short") verdict.stop_after = rule->number;
    else if (rule->action == "waiting") verdict.waiting = true;
    else if (rule->action == "crash") ::abort();
    else if (rule->action == "delay") {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(rule->number));
    } else if (rule->action == "hang") {
        const uint64_t before = all.releases;
        ++all.hanging;
        while (all.releases == before && !(ended && ended())) all.changed.wait_for(lock, std::chrono::milliseconds(2));
        --all.hanging;
    }
    return verdict;
}

}  // namespace emu

EMU_API void ascend_emu_faults(const char* rules) {
    emu::Control& all = emu::control();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.environment_read = true;
    all.rules.clear();
    emu::add_rules(all, rules);
}

/// Ends what hangs.
EMU_API void ascend_emu_release() {
    emu::Control& all = emu::control();
    const std::lock_guard<std::mutex> lock(all.mutex);
    ++all.releases;
    all.changed.notify_all();
}

EMU_API long ascend_emu_hanging() {
    emu::Control& all = emu::control();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.hanging;
}

EMU_API void ascend_emu_clear_log() {
    emu::Control& all = emu::control();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.log.clear();
}

/// The log as lines. Returns how long it is, whatever fits.
EMU_API size_t ascend_emu_log(char* to, size_t room) {
    emu::Control& all = emu::control();
    const std::lock_guard<std::mutex> lock(all.mutex);
    std::string text;
    for (const std::string& line : all.log) text += line + "\n";
    if (room > 0) {
        const size_t length = std::min(room - 1, text.size());
        std::memcpy(to, text.data(), length);
        to[length] = 0;
    }
    return text.size();
}
