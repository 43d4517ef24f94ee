# SPDX-License-Identifier: Apache-2.0
"""Configurations from files and variables."""

import json
import logging

import pytest

from mooncake import mooncake_config
from mooncake.mooncake_config import DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE, MooncakeConfig, _parse_bool, _parse_segment_size

REQUIRED = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for variable, _, _ in mooncake_config._FIELDS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)


@pytest.fixture
def from_file(tmp_path):
    def load(content) -> MooncakeConfig:
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return MooncakeConfig.from_file(str(path))

    return load


@pytest.mark.parametrize("value, size", [(5, 5), (5.9, 5), ("5", 5), (" 16 MB ", 16 << 20), ("16mb", 16 << 20), ("1gb", 1 << 30), ("1G", 1 << 30), ("2t", 2 << 40),
                                         ("7b", 7), ("3K", 3072), ("1.5gb", 3 << 29), ("1e9", 10**9), ("1TB", 1 << 40), ("0", 0), (".5k", 512),
                                         ("123456789012345678", 123456789012345678)])
def test_sizes_are_read(value, size):
    assert _parse_segment_size(value) == size


@pytest.mark.parametrize("value", ["", " ", "gb", "50%", "16 XB", "1 2", "1..5", "0x10", "ten", "1gbb", "nan", "inf"])
def test_sizes_that_are_none_are_value_errors(value):
    with pytest.raises(ValueError):
        _parse_segment_size(value)


@pytest.mark.parametrize("value", [None, [], b"5", {}])
def test_sizes_that_are_no_text_are_type_errors(value):
    with pytest.raises(TypeError):
        _parse_segment_size(value)


@pytest.mark.parametrize("value, truth", [("true", True), ("1", True), ("YES", True), (" on ", True), ("Enable", True), ("false", False), ("0", False), ("no", False),
                                          ("off", False), ("DISABLE", False), ("", False), (None, False), (1, True), (0, False), (2.5, True), (True, True)])
def test_truth_values_are_read(value, truth):
    assert _parse_bool(value) is truth


def test_other_words_are_value_errors():
    with pytest.raises(ValueError):
        _parse_bool("perhaps")


def test_file_needs_three_fields_and_has_defaults(from_file):
    config = from_file(REQUIRED)
    assert config == MooncakeConfig("h", "P2PHANDSHAKE", DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE, "tcp", "", "m:1", False, "", "default", False, 9300)
    assert (DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE) == (3355443200, 1073741824)


@pytest.mark.parametrize("field", REQUIRED)
def test_missing_field_is_named(from_file, field):
    with pytest.raises(ValueError, match=f"Missing required config field: {field}"):
        from_file({name: value for name, value in REQUIRED.items() if name != field})
    with pytest.raises(ValueError, match=field):
        from_file({**REQUIRED, field: "  "})


def test_file_may_say_everything(from_file):
    config = from_file({**REQUIRED, "global_segment_size": "1gb", "local_buffer_size": 0, "protocol": " RDMA ", "device_name": "mlx5_0", "enable_ssd_offload": "yes",
                        "ssd_offload_path": None, "tenant_id": None, "enable_client_http_server": 1, "client_http_port": "9400", "unknown": 1})
    assert (config.global_segment_size, config.local_buffer_size, config.protocol, config.device_name) == (1 << 30, 0, "rdma", "mlx5_0")
    assert (config.enable_ssd_offload, config.ssd_offload_path, config.tenant_id) == (True, "", "default")
    assert (config.enable_client_http_server, config.client_http_port) == (True, 9400)


@pytest.mark.parametrize("field, value, says", [("global_segment_size", -1, "global_segment_size"), ("local_buffer_size", "-5", "local_buffer_size"),
                                                ("protocol", "", "Invalid protocol"), ("protocol", 5, "Invalid protocol"), ("client_http_port", 70000, "client_http_port"),
                                                ("client_http_port", "x", "x")])
def test_fields_that_make_no_sense_are_value_errors(from_file, field, value, says):
    with pytest.raises(ValueError, match=says):
        from_file({**REQUIRED, field: value})


@pytest.mark.parametrize("field, value, kind", [
    ("local_hostname", "", ValueError), ("local_hostname", 5, ValueError), ("metadata_server", " ", ValueError), ("master_server_address", None, ValueError),
    ("global_segment_size", -1, ValueError), ("local_buffer_size", -1, ValueError), ("global_segment_size", "1gb", TypeError),
    ("local_buffer_size", None, TypeError), ("protocol", "", ValueError), ("protocol", None, ValueError)])
def test_objects_that_make_no_sense_cannot_be_made(field, value, kind):
    fields = dict(local_hostname="h", metadata_server="m", global_segment_size=1, local_buffer_size=2, protocol=" TCP ", device_name="",
                  master_server_address="a")
    assert MooncakeConfig(**fields).protocol == "tcp"
    with pytest.raises(kind, match=field):
        MooncakeConfig(**{**fields, field: value})


@pytest.mark.parametrize("content", ["[]", "5", "{", ""])
def test_files_that_are_no_object_are_value_errors(from_file, content):
    with pytest.raises(ValueError):
        from_file(content)


def test_unknown_protocol_only_warns(from_file, caplog):
    with caplog.at_level(logging.WARNING, logger=mooncake_config.logger.name):
        assert from_file({**REQUIRED, "protocol": "pigeons"}).protocol == "pigeons"
    assert "Unrecognised protocol" in caplog.text
    caplog.clear()
    from_file({**REQUIRED, "protocol": "rpc_only"})
    assert caplog.text == ""


def test_environment_is_read(monkeypatch):
    for name, value in {"MOONCAKE_MASTER": "m:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "4gb", "MOONCAKE_DEVICE": "d", "MOONCAKE_TENANT_ID": "t",
                        "MOONCAKE_OFFLOAD_ENABLED": "on", "MOONCAKE_CLIENT_HTTP_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server, config.master_server_address) == ("localhost", "P2PHANDSHAKE", "m:1")
    assert (config.global_segment_size, config.device_name, config.tenant_id, config.enable_ssd_offload, config.client_http_port) == (4 << 30, "d", "t", True, 1)


def test_file_named_in_the_environment_wins(monkeypatch, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(REQUIRED))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    monkeypatch.setenv("MOONCAKE_MASTER", "other:2")
    assert MooncakeConfig.load_from_env().master_server_address == "m:1"


def test_empty_environment_is_a_value_error_that_names_both_variables():
    with pytest.raises(ValueError, match="MOONCAKE_CONFIG_PATH.*MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
