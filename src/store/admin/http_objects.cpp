// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"
#include "store/admin/admin_views.h"
#include "store/admin/http_admin.h"
#include "store/admin/http_json.h"
#include "store/service/contain.h"

namespace mooncake::store {

namespace {

std::string_view tenant_of(const net::HttpServerRequest& request) {
    const std::string* tenant = request.parameter("tenant_id");
    return tenant == nullptr ? TenantTable::kDefaultName : std::string_view(*tenant);
}

Json disks_json(const ObjectView& object) {
    if (object.on_disks.empty()) return {};
    Json places = Json::array();
    for (const PlaceView& place : object.on_disks)
        places.push_back({{"object_size", place.length}, {"transport_endpoint", place.endpoint}});
    return places;
}

Json places_json(const ObjectView& object) {
    Json places = Json::array();
    for (const PlaceView& place : object.places) {
        places.push_back({{"size_", place.length},
                          {"buffer_address_", place.address},
                          {"protocol_", place.protocol},
                          {"transport_endpoint_", place.endpoint}});
    }
    return places;
}

}  // namespace

net::HttpResponse AdminService::query_key(const Request& request) {
    const std::string* key = request.parameter("key");
    if (key == nullptr || key->empty()) return error_answer(StoreCode::kInvalidParams, "the parameter 'key' is missing");
    const ObjectView object = lease_object(master_, tenant_of(request), *key);
    metrics_.get_replicas({.items = {{.code = object.code, .length = object.places.empty() ? 0 : object.places.front().length}}},
                          /*on_disk=*/object.places.empty() && !object.on_disks.empty() ? 1 : 0);
    if (object.code == StoreCode::kOk) return json_answer({{"success", true}, {"data", places_json(object)}});
    Response answer = error_answer(object.code);
    answer.status = 404;  // whatever the reason, there is nothing to be read
    return answer;
}

net::HttpResponse AdminService::batch_query_keys(const Request& request) const {
    // "keys" holds several, cut at commas; a key with a comma in it can be given as "key".
    std::vector<std::string> keys;
    for (const auto& [name, value] : request.parameters) {
        if (name == "keys")
            for (std::string& key : split_list(value)) keys.push_back(std::move(key));
        if (name == "key" && !value.empty()) keys.push_back(value);
    }
    if (keys.empty()) return error_answer(StoreCode::kInvalidParams, "the parameter 'keys' is missing");
    const std::vector<ObjectView> objects = view_objects(master_, tenant_of(request), keys);
    Json data = Json::object();
    for (size_t i = 0; i < keys.size(); ++i) {
        const bool ok = objects[i].code == StoreCode::kOk;
        data[keys[i]] = {{"ok", ok},
                         {"error", ok ? Json() : Json(store_code_name(objects[i].code))},
                         {"values", ok ? places_json(objects[i]) : Json()},
                         {"disk_values", nullptr},
                         {"local_disk_values", ok ? disks_json(objects[i]) : Json()},
                         {"nof_values", nullptr}};
    }
    return json_answer({{"success", true}, {"data", std::move(data)}});
}

net::HttpResponse AdminService::all_keys(const Request& request) const {
    const std::string* tenant = request.parameter("tenant_id");
    const auto walk = KeyWalk::begin(master_, tenant == nullptr ? std::nullopt : std::optional<std::string_view>(*tenant));
    if (!walk) return error_answer(walk.error());
    Response answer;
    answer.pieces = [keys = *walk]() mutable {
        std::string lines;
        contain("get_all_keys", [&] { lines = keys.next_lines(); });  // else the answer is cut short
        return lines;
    };
    return answer;
}

}  // namespace mooncake::store
