// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "apps/common/config_file.h"
#include "apps/common/flags_master.h"
#include "apps/common/flags_set.h"

namespace mooncake::store {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

using Words = std::vector<std::string>;

struct Outside {
    std::map<std::string, std::string> files, environment;

    MasterFlagSources sources() const {
        return {.read_file = [this](const std::string& path) -> Result<std::string> {
                    const auto found = files.find(path);
                    if (found == files.end()) return fail(Code::kNotFound, "no such file");
                    return found->second;
                },
                .environment = [this](const char* name) -> std::optional<std::string> {
                    const auto found = environment.find(name);
                    return found == environment.end() ? std::nullopt : std::optional(found->second);
                }};
    }
};

Result<MasterFlags> parse(const Words& words, const Outside& outside = {}) { return parse_master_flags(words, outside.sources()); }
std::string error_of(const Words& words, const Outside& outside = {}) {
    const auto flags = parse(words, outside);
    return flags ? "no error" : flags.error().message();
}

struct Documented {
    std::string name, default_value, other;  // `other`: some other value it takes
    bool built = true;
    std::string bad = "";  // a value it refuses; empty: it takes any text
};

// What the documentation promises, flag by flag.
const Documented kDocumented[] = {
    {"config_path", "", "f"},
    {"port", "50051", "50052", true, "65536"},
    {"rpc_port", "0", "1", true, "-1"},
    {"max_threads", "16", "4", true, "0"},
    {"rpc_thread_num", "0", "8", true, "x"},
    {"bind_address", "", "127.0.0.1"},
    {"rpc_address", "0.0.0.0", "127.0.0.1"},
    {"rpc_interface", "", "eth0"},
    {"rpc_conn_timeout_seconds", "0", "5", false, "-1"},
    {"rpc_enable_tcp_no_delay", "true", "false", false, "maybe"},
    {"enable_metric_reporting", "true", "false", true, "2"},
    {"metrics_port", "9003", "0", true, "99999"},
    {"metrics_host", "0.0.0.0", "localhost"},
    {"default_kv_lease_ttl", "10000", "5000", true, "5 parsecs"},
    {"default_kv_soft_pin_ttl", "1800000", "1000", true, "-1"},
    {"max_kv_soft_pin_ttl", "86400000", "3600000", true, ""},
    {"allow_evict_soft_pinned_objects", "true", "false", true, "x"},
    {"eviction_ratio", "0.05", "1", true, "1.01"},
    {"eviction_high_watermark_ratio", "0.9", "0.5", true, "nan"},
    {"nof_eviction_ratio", "0.05", "0.1", false, "2"},
    {"nof_eviction_high_watermark_ratio", "0.9", "0.1", false, "-0.1"},
    {"client_ttl", "10", "20", true, "0"},
    {"put_start_discard_timeout_sec", "30", "31", true, "x"},
    {"put_start_release_timeout_sec", "600", "300", true, "1e400"},
    {"memory_allocator", "offset", "cachelib", true, "jemalloc"},
    {"allocation_strategy", "random", "local_first", true, "best"},
    {"enable_http_metadata_server", "false", "true", true, "x"},
    {"http_metadata_server_port", "8080", "0", true, "70000"},
    {"http_metadata_server_host", "0.0.0.0", "::1"},
    {"enable_metadata_cleanup_on_timeout", "false", "true", true, "x"},
    {"enable_offload", "false", "true", true, "x"},
    {"offload_on_evict", "false", "true", true, "x"},
    {"offload_force_evict", "false", "true", true, "x"},
    {"offloading_queue_limit", "50000", "1", true, "0"},
    {"offload_cap_ratio", "0.5", "0.6", false, "1.1"},
    {"promotion_on_hit", "false", "true", true, "x"},
    {"promotion_admission_threshold", "2", "3", true, "-1"},
    {"promotion_queue_limit", "50000", "3", true, "-1"},
    {"promotion_max_per_heartbeat", "1", "3", false, "-1"},
    {"dynamic_replication_mode", "off", "observe", false, "on"},
    {"dynamic_replication_heat_window_seconds", "10", "3", false, "x"},
    {"dynamic_replication_admission_qps_threshold", "0.8", "3.5", false, "x"},
    {"dynamic_replication_max_memory_replicas", "2", "3", false, "x"},
    {"root_fs_dir", "", "/mnt", false},
    {"global_file_segment_size", "9223372036854775807", "1024", false, "9223372036854775808"},
    {"cluster_id", "mooncake_cluster", "other"},
    {"enable_disk_eviction", "true", "false", false, "x"},
    {"quota_bytes", "0", "1", false, "x"},
    {"enable_multi_tenants", "false", "true", true, "x"},
    {"tenant_quota_connector_type", "file", "etcd", true, "sql"},
    {"tenant_quota_connector_uri", "", "q.yaml"},
    {"enable_ha", "false", "true", false, "x"},
    {"ha_backend_type", "etcd", "redis", false, "zookeeper"},
    {"ha_backend_connstring", "", "a:1", false},
    {"etcd_endpoints", "", "a:1", false},
    {"enable_oplog", "false", "true", false, "x"},
    {"oplog_poll_interval_ms", "1000", "1", false, "x"},
    {"oplog_batch_max_entries", "1024", "1", false, "x"},
    {"batch_oplog_retry_timeout_sec", "180", "1", false, "x"},
    {"pod_name", "", "p", false},
    {"pod_namespace", "", "p", false},
    {"enable_snapshot", "false", "true", false, "x"},
    {"enable_snapshot_restore", "false", "true", false, "x"},
    {"snapshot_interval_seconds", "600", "1", false, "x"},
    {"snapshot_child_timeout_seconds", "300", "1", false, "x"},
    {"snapshot_retention_count", "2", "1", false, "x"},
    {"snapshot_object_store_type", "", "local", false, "tape"},
    {"snapshot_payload_store_type", "", "s3", false, "tape"},
    {"snapshot_payload_backend_type", "", "s3", false, "tape"},
    {"snapshot_catalog_store_type", "", "redis", false, "tape"},
    {"snapshot_catalog_backend_type", "", "embedded", false, "tape"},
    {"snapshot_catalog_store_connstring", "", "a:1", false},
    {"snapshot_catalog_backend_connstring", "", "a:1", false},
    {"snapshot_backup_dir", "", "/b", false},
    {"max_total_finished_tasks", "10000", "1", true, "-1"},
    {"max_total_pending_tasks", "10000", "1", true, "x"},
    {"max_total_processing_tasks", "10000", "1", true, "x"},
    {"pending_task_timeout_sec", "300", "0", true, "x"},
    {"processing_task_timeout_sec", "300", "0", true, "x"},
    {"max_retry_attempts", "10", "3", false, "-1"},
    {"enable_cxl", "false", "true", false, "x"},
    {"cxl_path", "/dev/dax0.0", "/dev/x", false},
    {"cxl_size", "8589934592", "1", false, "x"},
    {"enable_kv_events", "false", "true", false, "x"},
    {"kv_events_bind_endpoint", "", "tcp://*:1", false},
    {"kv_events_backend_id", "", "b", false},
    {"kv_events_emit_legacy_compat", "true", "false", false, "x"},
    {"kv_events_emit_object_key", "true", "false", false, "x"},
    {"kv_events_queue_capacity", "65536", "0", false, "x"},
    {"kv_events_model_name", "", "m"},
    {"kv_events_tenant_id", "default", "m"},
    {"kv_events_additional_salt", "", "m"},
    {"kv_events_lora_name", "", "m"},
    {"kv_events_block_size", "0", "16", true, "x"},
    {"kv_events_dp_rank", "0", "1", true, "x"},
    {"nof_heartbeat_interval_sec", "10", "1", false, "x"},
    {"nof_heartbeat_probe_timeout_ms", "1000", "1", false, "x"},
    {"nof_heartbeat_failures_threshold", "3", "1", false, "x"},
    {"log_dir", "", "/tmp"},
    {"logtostderr", "false", "true", true, "x"},
    {"alsologtostderr", "false", "true", true, "x"},
    {"v", "0", "1", true, "x"},
    {"minloglevel", "0", "2", true, "9"},
    {"max_log_size", "0", "100", true, "x"},
    {"stderrthreshold", "0", "2", true, "x"},
    {"vmodule", "", "a=1"},
};

class EveryMasterFlag : public testing::TestWithParam<Documented> {
protected:
    EveryMasterFlag() { add_master_flags(set_, flags_); }
    MasterFlags flags_;
    FlagSet set_;
};

TEST_P(EveryMasterFlag, HasItsDefault) { EXPECT_EQ(set_.default_value(GetParam().name), GetParam().default_value); }

TEST_P(EveryMasterFlag, TakesAnotherValueInEveryForm) {
    const Documented& flag = GetParam();
    std::vector<Words> forms = {{format_text("-{}={}", flag.name, flag.other)}, {format_text("--{}={}", flag.name, flag.other)}};
    if (flag.other == "true") forms.push_back({"--" + flag.name});
    else if (flag.other == "false") forms.push_back({"--no" + flag.name});
    else forms.insert(forms.end(), {{"--" + flag.name, flag.other}, {"-" + flag.name, flag.other}});
    for (const Words& form : forms) {
        const auto assignments = set_.split(form);
        ASSERT_TRUE(assignments) << assignments.error().message();
        EXPECT_THAT(*assignments, ElementsAre(Pair(flag.name, flag.other)));
    }
    ASSERT_TRUE(set_.set(flag.name, flag.other));
    EXPECT_EQ(set_.value(flag.name), flag.other);
    EXPECT_EQ(set_.set_in_vain().size(), flag.built ? 0U : 1U);
}

TEST_P(EveryMasterFlag, RefusesNonsenseAndSaysWhy) {
    const Documented& flag = GetParam();
    if (flag.bad.empty()) return;
    const auto done = set_.set(flag.name, flag.bad);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(done.error().message(), AllOf(HasSubstr(flag.name), HasSubstr(flag.bad)));
    EXPECT_EQ(set_.value(flag.name), flag.default_value);
    EXPECT_FALSE(parse({format_text("--{}={}", flag.name, flag.bad)}));
}

INSTANTIATE_TEST_SUITE_P(Documented, EveryMasterFlag, testing::ValuesIn(kDocumented), [](const auto& flag) { return flag.param.name; });

TEST(MasterFlags, AreAllDocumentedHere) {
    MasterFlags flags;
    FlagSet set;
    add_master_flags(set, flags);
    std::vector<std::string> missing;
    for (const FlagSpec& spec : set.all()) {
        const bool known = std::any_of(std::begin(kDocumented), std::end(kDocumented),
                                       [&](const Documented& flag) { return flag.name == spec.name; });
        const bool without_effect = spec.help == "accepted, means nothing" || spec.name == "help" || spec.name == "version";
        if (!known && !without_effect) missing.emplace_back(spec.name);
        EXPECT_THAT(master_help(), HasSubstr(format_text("--{} ", spec.name)));
    }
    EXPECT_THAT(missing, IsEmpty());
}

TEST(MasterFlags, AWatermarkThatIsGivenCountsAlsoWhereItIsTheDefault) {
    EXPECT_FALSE(master_options(*parse({})).evict_ahead);
    EXPECT_TRUE(master_options(*parse({"--eviction_high_watermark_ratio=0.90"})).evict_ahead);
}

TEST(MasterFlags, ReachTheMastersOptions) {
    const auto flags = parse({"--default_kv_lease_ttl=5s", "--default_kv_soft_pin_ttl=1m", "--max_kv_soft_pin_ttl=1h", "--client_ttl=3",
                              "--eviction_ratio=0.2", "--eviction_high_watermark_ratio=0.8", "--noallow_evict_soft_pinned_objects",
                              "--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=2", "--allocation_strategy=local_first",
                              "--enable_multi_tenants", "--max_total_pending_tasks=7", "--processing_task_timeout_sec=0"});
    ASSERT_TRUE(flags) << flags.error().message();
    const MasterOptions options = master_options(*flags);
    EXPECT_EQ(options.lease_ttl, 5s);
    EXPECT_EQ(options.soft_pin_ttl, 1min);
    EXPECT_EQ(options.soft_pin_ttl_max, 1h);
    EXPECT_EQ(options.client_ttl, 3s);
    EXPECT_EQ(options.eviction_ratio, 0.2);
    EXPECT_EQ(options.high_watermark, 0.8);
    EXPECT_TRUE(options.evict_ahead);
    EXPECT_FALSE(options.evict_soft_pinned);
    EXPECT_EQ(options.put_discard_timeout, 1s);
    EXPECT_EQ(options.put_release_timeout, 2s);
    EXPECT_EQ(options.placement, PlacementStrategy::kLocalFirst);
    EXPECT_TRUE(options.tenants);
    EXPECT_EQ(options.pending_tasks_max, 7u);
    EXPECT_EQ(options.processing_task_timeout, 0s);
}

TEST(MasterFlags, DefaultsAreThoseOfTheMaster) {
    const MasterOptions ours = master_options(*parse({}));
    const MasterOptions theirs;
    EXPECT_EQ(ours.lease_ttl, theirs.lease_ttl);
    EXPECT_EQ(ours.soft_pin_ttl, theirs.soft_pin_ttl);
    EXPECT_EQ(ours.high_watermark, theirs.high_watermark);
    EXPECT_FALSE(ours.evict_ahead);
    EXPECT_EQ(ours.client_ttl, theirs.client_ttl);
    EXPECT_EQ(ours.finished_tasks_max, theirs.finished_tasks_max);
    EXPECT_EQ(ours.put_release_timeout, theirs.put_release_timeout);
}

TEST(MasterFlags, TellWhichPortAndHowManyThreads) {
    EXPECT_EQ(master_port(*parse({})), 50051);
    EXPECT_EQ(master_port(*parse({"--port=1000"})), 1000);
    EXPECT_EQ(master_port(*parse({"--port=1000", "--rpc_port=2000"})), 2000);
    EXPECT_EQ(master_threads(*parse({}), 64), 16);
    EXPECT_EQ(master_threads(*parse({}), 2), 2);
    EXPECT_EQ(master_threads(*parse({}), 0), 1);
    EXPECT_EQ(master_threads(*parse({"--max_threads=4"}), 64), 4);
    EXPECT_EQ(master_threads(*parse({"--rpc_thread_num=40"}), 2), 40);
}

TEST(MasterFlags, TellHowToLog) {
    EXPECT_EQ(log_options(parse({})->log, {.level = LogLevel::kWarning}).level, LogLevel::kWarning);
    EXPECT_EQ(log_options(parse({"-v=1"})->log, {}).level, LogLevel::kTrace);
    EXPECT_EQ(log_options(parse({"--minloglevel=2"})->log, {}).level, LogLevel::kError);
    EXPECT_EQ(log_options(parse({"--log_dir=/a"})->log, {}).directory, "/a");
    EXPECT_EQ(log_options(parse({"--log_dir=/a", "--logtostderr"})->log, {}).directory, "");
}

TEST(MasterFlags, LastOneWinsAndSwitchesTakeAFollowingWord) {
    EXPECT_EQ(parse({"--port=1", "--port=2"})->port, 2);
    EXPECT_FALSE(parse({"--enable_metric_reporting", "false"})->enable_metric_reporting);
    EXPECT_TRUE(parse({"--enable_multi_tenants", "--port=3"})->enable_multi_tenants);
    EXPECT_TRUE(parse({"--enable-multi-tenants"})->enable_multi_tenants);
    EXPECT_EQ(parse({"--rpc_address="})->rpc_address, "");
    EXPECT_EQ(parse({"--port=0x10"})->port, 16);
}

TEST(MasterFlags, NameWhatIsWrong) {
    EXPECT_THAT(error_of({"--prot=1"}), AllOf(HasSubstr("--prot"), HasSubstr("did you mean --port?")));
    EXPECT_THAT(error_of({"--no_such_thing_at_all"}), AllOf(HasSubstr("unknown flag"), testing::Not(HasSubstr("mean"))));
    EXPECT_THAT(error_of({"--noport"}), HasSubstr("unknown flag --noport"));
    EXPECT_THAT(error_of({"--port"}), HasSubstr("needs a value"));
    EXPECT_THAT(error_of({"serve"}), HasSubstr("'serve' is no flag"));
    EXPECT_THAT(error_of({"--"}), HasSubstr("no flag"));
    EXPECT_THAT(error_of({"-"}), HasSubstr("no flag"));
    EXPECT_THAT(error_of({""}), HasSubstr("no flag"));
    EXPECT_THAT(error_of({"--="}), HasSubstr("unknown flag"));
    EXPECT_THAT(error_of({"--port=70000"}), HasSubstr("from 0 to 65535"));
    EXPECT_THAT(error_of({"--memory_allocator=x"}), HasSubstr("offset, cachelib"));
}

TEST(MasterFlags, RefuseCombinationsThatCannotBeServed) {
    EXPECT_THAT(error_of({"--enable_ha"}), HasSubstr("ha_backend_connstring"));
    EXPECT_THAT(error_of({"--enable_oplog"}), HasSubstr("enable_ha"));
    EXPECT_THAT(error_of({"--enable_oplog", "--enable_ha", "--ha_backend_type=redis", "--ha_backend_connstring=a:1"}), HasSubstr("etcd"));
    EXPECT_THAT(error_of({"--enable_kv_events", "--kv_events_backend_id=a"}), HasSubstr("kv_events_bind_endpoint"));
    EXPECT_THAT(error_of({"--default_kv_soft_pin_ttl=2d"}), HasSubstr("max_kv_soft_pin_ttl"));
    EXPECT_THAT(error_of({"--put_start_discard_timeout_sec=700"}), HasSubstr("put_start_release_timeout_sec"));
    EXPECT_THAT(error_of({"--enable_multi_tenants", "--tenant_quota_connector_type=etcd"}), HasSubstr("not built"));
    EXPECT_TRUE(parse({"--enable_ha", "--etcd_endpoints=a:1"}));
}

TEST(MasterFlags, WarnOnceOfAllThatIsNotBuilt) {
    EXPECT_THAT(parse({})->warnings, IsEmpty());
    EXPECT_THAT(parse({"--enable_disk_eviction=true", "--noenable_snapshot", "--cluster_id=x"})->warnings, IsEmpty());
    const auto flags = parse({"--offload_cap_ratio=0.4", "--quota_bytes=5", "--allocation_strategy=cxl"});
    ASSERT_TRUE(flags);
    EXPECT_THAT(flags->warnings,
                ElementsAre("not built yet, without effect: --offload_cap_ratio, --quota_bytes, --allocation_strategy=cxl"));
}

TEST(MasterFlags, PreferTheCommandLineToTheFileToDefaults) {
    const Outside outside{
        .files = {{"m.json", R"({"rpc_port": 7000, "eviction_ratio": 0.25, "client_live_ttl_sec": 60,
        "enable_http_metadata_server": true, "default_kv_lease_ttl": "2s", "cluster_id": null})"},
                  {"m.yaml", "rpc_port: 7001\nclient_ttl: 5s\nenable_metric_reporting: no\nrpc_address: \"127.0.0.1\"\n"}}};
    const auto json = parse({"--config_path=m.json", "--eviction_ratio=0.5"}, outside);
    ASSERT_TRUE(json) << json.error().message();
    EXPECT_EQ(master_port(*json), 7000);
    EXPECT_EQ(json->eviction_ratio, 0.5);
    EXPECT_EQ(json->client_ttl, 60s);
    EXPECT_EQ(json->default_kv_lease_ttl, 2s);
    EXPECT_TRUE(json->enable_http_metadata_server);
    EXPECT_EQ(json->metrics_port, 9003);
    const auto yaml = parse({"--config_path", "m.yaml", "--port=8000"}, outside);
    ASSERT_TRUE(yaml) << yaml.error().message();
    EXPECT_EQ(master_port(*yaml), 8000) << "the file's rpc_port must not go before the command line's port";
    EXPECT_EQ(yaml->client_ttl, 5s);
    EXPECT_FALSE(yaml->enable_metric_reporting);
    EXPECT_EQ(yaml->rpc_address, "127.0.0.1");
}

TEST(MasterFlags, ReportTroubleWithTheFile) {
    const Outside outside{
        .files = {{"typo", "prot: 1\nmetrics_port: 0\n"}, {"bad", "metrics_port: many\n"}, {"list", "- a\n- b\n"}, {"cut", "{\"port\": "}}};
    EXPECT_THAT(error_of({"--config_path=none"}, outside), HasSubstr("none"));
    EXPECT_THAT(error_of({"--config_path=bad"}, outside), AllOf(HasSubstr("bad"), HasSubstr("metrics_port"), HasSubstr("many")));
    EXPECT_THAT(error_of({"--config_path=list"}, outside), HasSubstr("expected"));
    EXPECT_THAT(error_of({"--config_path=cut"}, outside), HasSubstr("JSON"));
    const auto typo = parse({"--config_path=typo"}, outside);
    ASSERT_TRUE(typo);
    EXPECT_THAT(typo->warnings, ElementsAre(AllOf(HasSubstr("prot"), HasSubstr("--port"))));
    EXPECT_EQ(typo->metrics_port, 0);
}

TEST(MasterFlags, FindTheMetadataServerToCleanFromTheEnvironment) {
    Outside outside{.files = {{"c.json", R"({"metadata_server": "http://c:1/metadata"})"}},
                    .environment = {{"MOONCAKE_CONFIG_PATH", "c.json"}}};
    EXPECT_EQ(parse({}, outside)->metadata_server, "");
    EXPECT_EQ(parse({"--enable_metadata_cleanup_on_timeout"}, outside)->metadata_server, "http://c:1/metadata");
    outside.environment["MOONCAKE_TE_META_DATA_SERVER"] = "http://e:1/metadata";
    outside.environment["MC_METADATA_CLUSTER_ID"] = "blue";
    EXPECT_EQ(parse({"--enable_metadata_cleanup_on_timeout"}, outside)->metadata_server, "http://e:1/metadata");
    EXPECT_EQ(parse({}, outside)->metadata_cluster_id, "blue");
    EXPECT_EQ(parse({"--enable_metadata_cleanup_on_timeout", "--enable_http_metadata_server"}, outside)->metadata_server, "");
    outside.environment["MOONCAKE_TE_META_DATA_SERVER"] = "P2PHANDSHAKE";
    EXPECT_THAT(parse({"--enable_metadata_cleanup_on_timeout"}, outside)->warnings, ElementsAre(HasSubstr("nothing to clean")));
}

TEST(MasterFlags, HelpAndVersionNeedNothingElse) {
    for (const char* word : {"--help", "-help", "-h", "--helpfull"}) EXPECT_TRUE(parse({word, "--config_path=none"})->log.help) << word;
    EXPECT_TRUE(parse({"--version"})->log.version);
}

TEST(ParseDuration, UnderstandsUnits) {
    EXPECT_EQ(*parse_duration("10000", 1ms), 10s);
    EXPECT_EQ(*parse_duration("10000", 1s), 10000s);
    EXPECT_EQ(*parse_duration(" 500ms ", 1s), 500ms);
    EXPECT_EQ(*parse_duration("5s", 1ms), 5s);
    EXPECT_EQ(*parse_duration("30m", 1ms), 30min);
    EXPECT_EQ(*parse_duration("1H", 1ms), 1h);
    EXPECT_EQ(*parse_duration("1.5 s", 1ms), 1500ms);
    EXPECT_EQ(*parse_duration("0", 1ms), 0s);
    EXPECT_EQ(*parse_duration("1000000000001", 1ms), std::chrono::milliseconds(1000000000001));
    for (const char* bad : {"", " ", "s", "-1", "+1", "1e3", "5 weeks", "1s2", "0x10", ".", "1..2", "9999999999999999", "1 m s", "inf"})
        EXPECT_FALSE(parse_duration(bad, 1ms)) << bad;
}

TEST(ParseConfig, ReadsBothLanguages) {
    EXPECT_THAT(*parse_config(" {\"a\": 1, \"b\": \"x y\", \"c\": true, \"d\": 0.5, \"e\": null}"),
                ElementsAre(Pair("a", "1"), Pair("b", "x y"), Pair("c", "true"), Pair("d", "0.5")));
    EXPECT_THAT(*parse_config("# comment\na: 1\nb: 'x y'\nc:\n"), ElementsAre(Pair("a", "1"), Pair("b", "x y")));
    EXPECT_THAT(*parse_config(""), IsEmpty());
    EXPECT_THAT(*parse_config("{}"), IsEmpty());
}

TEST(ParseConfig, RefusesWhatIsNeither) {
    for (const std::string& bad :
         {std::string("{"), std::string("{\"a\": {}}"), std::string("{\"a\": [1]}"), std::string("a: [1]"), std::string("a: {b: 1}"),
          std::string("[1]"), std::string("just text"), std::string("a: b: c"), std::string("? [x]\n: 1\n"), std::string("a: \"b"),
          std::string("\0\xff\xfe", 3), std::string(kConfigBytesMax + 1, ' '), std::string(100000, '['), std::string(100000, '{')})
        EXPECT_FALSE(parse_config(bad)) << bad.substr(0, 40);
}

}  // namespace

}  // namespace mooncake::store
