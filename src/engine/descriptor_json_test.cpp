// SPDX-License-Identifier: Apache-2.0
#include "engine/descriptor_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace mooncake {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

SegmentDescriptor sample() {
    SegmentDescriptor descriptor;
    descriptor.name = "node-3";
    descriptor.incarnation = Incarnation{0xfedcba9876543210};
    descriptor.host = "2001:db8::7";
    descriptor.rpc_port = 16001;
    descriptor.boot_id = "b";
    descriptor.endpoints = {{"tcp", std::string("\0\x7f\xff", 3)}, {"shm", ""}};
    descriptor.buffers = {{0xffff'ffff'0000'0000, 0x1000, "cuda:1"}};
    return descriptor;
}

Json sample_json() { return Json::parse(descriptor_to_json(sample(), 15999)); }

void expect_refused(const Json& json, const std::string& why, Code code = Code::kCorrupt) {
    const auto decoded = descriptor_from_json(json.dump());
    ASSERT_FALSE(decoded) << json.dump();
    EXPECT_EQ(decoded.error().code(), code);
    EXPECT_THAT(decoded.error().message(), HasSubstr(why));
}

TEST(DescriptorJson, SurvivesTheDirectory) {
    const auto decoded = descriptor_from_json(descriptor_to_json(sample()));
    ASSERT_TRUE(decoded) << decoded.error().to_string();
    EXPECT_EQ(decoded->name, "node-3");
    EXPECT_EQ(decoded->incarnation, sample().incarnation);
    EXPECT_EQ(decoded->host, "2001:db8::7");
    EXPECT_EQ(decoded->rpc_port, 16001);
    EXPECT_EQ(decoded->boot_id, "b");
    EXPECT_EQ(decoded->endpoints, sample().endpoints);
    ASSERT_EQ(decoded->buffers.size(), 1u);
    EXPECT_EQ(decoded->buffers[0].address, 0xffff'ffff'0000'0000);
    EXPECT_EQ(decoded->buffers[0].length, 0x1000u);
    EXPECT_EQ(decoded->buffers[0].location, "cuda:1");
}

TEST(DescriptorJson, KeepsThePublicLayout) {
    const Json json = sample_json();
    EXPECT_EQ(json.at("name"), "node-3");
    EXPECT_EQ(json.at("protocol"), "tcp");
    EXPECT_EQ(json.at("tcp_data_port"), 15999);
    EXPECT_EQ(json.at("tcp_proto_version"), 2);
    EXPECT_THAT(json.at("timestamp").get<std::string>(), testing::MatchesRegex("....-..-.. ..:..:..\\......."));
    EXPECT_EQ(json.at("buffers").at(0).at("name"), "node-3");
    EXPECT_EQ(json.at("buffers").at(0).at("addr"), 0xffff'ffff'0000'0000);
    EXPECT_EQ(json.at("buffers").at(0).at("length"), 0x1000);
    EXPECT_EQ(json.at("mooncake").at("endpoints").at("tcp"), "007fff");
}

TEST(DescriptorJson, UnknownFieldsAreIgnored) {
    Json json = sample_json();
    json["priority_matrix"] = {{"cpu:0", {1, 2}}};
    json["mooncake"]["colour"] = "blue";
    json["buffers"][0]["rkey"] = {1, 2, 3};
    EXPECT_TRUE(descriptor_from_json(json.dump()));
}

TEST(DescriptorJson, BuffersMayBeAbsent) {
    Json json = sample_json();
    json.erase("buffers");
    const auto decoded = descriptor_from_json(json.dump());
    ASSERT_TRUE(decoded);
    EXPECT_TRUE(decoded->buffers.empty());
}

TEST(DescriptorJson, DescriptorOfAnotherImplementationIsToldApart) {
    Json json = sample_json();
    json.erase("mooncake");
    expect_refused(json, "'node-3' was written by another implementation", Code::kNotSupported);
}

TEST(DescriptorJson, NonsenseIsRefusedWithTheFieldsName) {
    const auto with = [](const char* pointer, Json value) {
        Json json = sample_json();
        json[Json::json_pointer(pointer)] = std::move(value);
        return json;
    };
    expect_refused(with("/name", 7), "'name'");
    expect_refused(with("/name", ""), "'name'");
    expect_refused(with("/name", std::string(513, 'x')), "'name'");
    expect_refused(with("/mooncake", "x"), "'mooncake'");
    expect_refused(with("/mooncake/incarnation", "xyz"), "'incarnation'");
    expect_refused(with("/mooncake/incarnation", "0000000000000000"), "'incarnation'");
    expect_refused(with("/mooncake/host", nullptr), "'host'");
    expect_refused(with("/mooncake/rpc_port", 0), "'rpc_port'");
    expect_refused(with("/mooncake/rpc_port", 65536), "'rpc_port'");
    expect_refused(with("/mooncake/rpc_port", -1), "'rpc_port'");
    expect_refused(with("/mooncake/rpc_port", "15000"), "'rpc_port'");
    expect_refused(with("/mooncake/rpc_port", 1.5), "'rpc_port'");
    expect_refused(with("/mooncake/endpoints", Json::array()), "'endpoints'");
    expect_refused(with("/mooncake/endpoints/tcp", 1), "'tcp'");
    expect_refused(with("/mooncake/endpoints/tcp", "0"), "'tcp'");
    expect_refused(with("/mooncake/endpoints/tcp", "zz"), "'tcp'");
    expect_refused(with("/buffers", 5), "'buffers'");
    expect_refused(with("/buffers/0", 5), "buffer 0");
    expect_refused(with("/buffers/0/name", ""), "'name'");
    expect_refused(with("/buffers/0/addr", 0), "'addr'");
    expect_refused(with("/buffers/0/addr", -4), "'addr'");
    expect_refused(with("/buffers/0/length", 0), "'length'");
    expect_refused(with("/buffers/0/length", UINT64_MAX), "'length'");
    expect_refused(with("/buffers/0/location", std::string(200, 'x')), "'location'");
}

TEST(DescriptorJson, TextThatIsNoObjectIsRefused) {
    const std::string deep(100'000, '[');
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("\xff\xfe"), deep}) {
        const auto decoded = descriptor_from_json(text);
        ASSERT_FALSE(decoded);
        EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
        EXPECT_FALSE(rpc_meta_from_json(text));
    }
}

TEST(DescriptorJson, NameThatIsNotUtf8StillMakesJson) {
    SegmentDescriptor descriptor = sample();
    descriptor.buffers[0].location = "cpu\xff";
    EXPECT_TRUE(descriptor_from_json(descriptor_to_json(descriptor)));
}

TEST(DescriptorJson, TextThatNoEngineWritesIsRefusedBeforeItIsParsed) {
    const std::string valid = R"({"ip_or_host_name": "h", "rpc_port": 1, "more": )";
    const auto nested = [&](size_t levels) { return valid + std::string(levels, '[') + std::string(levels, ']') + "}"; };
    EXPECT_TRUE(rpc_meta_from_json(nested(15)));
    EXPECT_TRUE(rpc_meta_from_json(valid + "\"" + std::string(1000, '[') + "\\\"[" + "\"}")) << "in a text they mean nothing";
    EXPECT_EQ(rpc_meta_from_json(nested(16)).error().code(), Code::kCorrupt);
    EXPECT_EQ(rpc_meta_from_json(valid + "\"" + std::string(64 << 10, 'x') + "\"}").error().code(), Code::kCorrupt);
    SegmentDescriptor descriptor = sample();
    descriptor.buffers.assign(4096, {.address = 1, .length = 1, .location = std::string(128, 'x')});
    EXPECT_TRUE(descriptor_from_json(descriptor_to_json(descriptor))) << "as long as any that we publish";
    EXPECT_EQ(descriptor_from_json(std::string(8 << 20, ' ') + "{}").error().code(), Code::kCorrupt);
}

TEST(RpcMeta, SurvivesTheDirectory) {
    const std::string text = rpc_meta_to_json({.host = "10.0.0.1", .rpc_port = 15428});
    EXPECT_EQ(Json::parse(text), Json::parse(R"({"ip_or_host_name": "10.0.0.1", "rpc_port": 15428})"));
    const auto decoded = rpc_meta_from_json(text);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->host, "10.0.0.1");
    EXPECT_EQ(decoded->rpc_port, 15428);
}

TEST(RpcMeta, UnknownFieldsAreIgnored) { EXPECT_TRUE(rpc_meta_from_json(R"({"ip_or_host_name": "h", "rpc_port": 1, "more": {}})")); }

TEST(RpcMeta, NonsenseIsRefusedWithTheFieldsName) {
    for (const auto& [text, field] :
         std::vector<std::pair<std::string, std::string>>{{R"({"rpc_port": 1})", "ip_or_host_name"},
                                                          {R"({"ip_or_host_name": "", "rpc_port": 1})", "ip_or_host_name"},
                                                          {R"({"ip_or_host_name": "h"})", "rpc_port"},
                                                          {R"({"ip_or_host_name": "h", "rpc_port": 0})", "rpc_port"},
                                                          {R"({"ip_or_host_name": "h", "rpc_port": 70000})", "rpc_port"},
                                                          {R"({"ip_or_host_name": "h", "rpc_port": "1"})", "rpc_port"}}) {
        const auto decoded = rpc_meta_from_json(text);
        ASSERT_FALSE(decoded) << text;
        EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
        EXPECT_THAT(decoded.error().message(), HasSubstr(field));
    }
}

}  // namespace
}  // namespace mooncake
