// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "conductor/simulate/simulator.h"

namespace mooncake::conductor {

namespace {

constexpr double kWidth = 720, kHeight = 440, kLeft = 60, kRight = 150, kTop = 40, kBottom = 50;
constexpr std::array kColours = {"#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e1b", "#444444", "#17a2a2", "#b5651d"};
constexpr size_t kPointsMax = 400;  // of one curve

std::string escape(const std::string& text) {
    std::string safe;
    for (const char c : text) {
        if (c == '<') safe += "&lt;";
        else if (c == '&') safe += "&amp;";
        else safe += c;
    }
    return safe;
}

struct Scale {
    double low, high;  // powers of ten
    double x(double value) const {
        return kLeft + (std::log10(std::max(value, std::pow(10, low))) - low) / (high - low) * (kWidth - kLeft - kRight);
    }
    static double y(double share) { return kHeight - kBottom - share * (kHeight - kTop - kBottom); }
};

Scale scale_of(std::span<const Curve> curves) {
    double low = 1e9, high = 1e-9;
    for (const Curve& curve : curves) {
        if (curve.values.empty()) continue;
        // The fastest percent would take half of the axis.
        low = std::min(low, curve.values[curve.values.size() / 100]);
        high = std::max(high, curve.values.back());
    }
    low = std::floor(std::log10(std::max(low, 1e-3)));
    return {.low = low, .high = std::max(low + 1, std::ceil(std::log10(std::max(high, 1e-3))))};
}

std::string axes(const Scale& scale, const std::string& axis) {
    std::string svg;
    for (double power = scale.low; power <= scale.high; ++power) {
        const double x = scale.x(std::pow(10, power));
        svg += fmt::format(
            R"(<line x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}" stroke="#ddd"/><text x="{0:.1f}" y="{3}" text-anchor="middle">{4:g}</text>)",
            x, kTop, kHeight - kBottom, kHeight - kBottom + 16, std::pow(10, power));
    }
    for (int percent = 0; percent <= 100; percent += 25) {
        const double y = Scale::y(percent / 100.0);
        svg += fmt::format(
            R"(<line x1="{1}" y1="{0:.1f}" x2="{2}" y2="{0:.1f}" stroke="#ddd"/><text x="{3}" y="{0:.1f}" text-anchor="end">{4} %</text>)",
            y, kLeft, kWidth - kRight, kLeft - 6, percent);
    }
    return svg +
           fmt::format(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)", (kLeft + kWidth - kRight) / 2, kHeight - 12, escape(axis));
}

std::string draw(const Curve& curve, size_t number, const Scale& scale) {
    const char* colour = kColours[number % kColours.size()];
    std::string points;
    const size_t count = curve.values.size(), steps = std::min(count, kPointsMax);
    for (size_t i = 0; i < steps; ++i) {
        const size_t at = steps == 1 ? 0 : i * (count - 1) / (steps - 1);
        points += fmt::format("{:.1f},{:.1f} ", scale.x(curve.values[at]),
                              Scale::y(static_cast<double>(at + 1) / static_cast<double>(count)));
    }
    return fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="1.6" points="{}"/><text x="{}" y="{}" fill="{}">{}</text>)",
                       colour, points, kWidth - kRight + 10, kTop + 16 + 18 * static_cast<double>(number), colour, escape(curve.name));
}

}  // namespace

std::string plot_shares(const std::string& title, const std::string& axis, std::span<const Curve> curves) {
    const Scale scale = scale_of(curves);
    std::string svg = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="sans-serif" font-size="12">)",
        kWidth, kHeight);
    svg += fmt::format(R"(<rect width="100%" height="100%" fill="white"/><text x="{}" y="24" font-size="15">{}</text>)", kLeft,
                       escape(title));
    svg += axes(scale, axis);
    for (size_t i = 0; i < curves.size(); ++i) svg += draw(curves[i], i, scale);
    return svg + "</svg>\n";
}

}  // namespace mooncake::conductor
