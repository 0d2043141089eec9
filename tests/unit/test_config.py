"""Settings: defaults < file < environment < flags, each value with its origin, and no key that nobody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foldline.config import SETTINGS, Config, ConfigError, Provider, split_address
from foldline.domain.enums import OnFailure
from foldline.domain.errors import FoldlineError
from foldline.domain.policy import Policy, check_layer, field_names
from foldline.domain.rows import ModelRef
from foldline.v1 import policy_pb2
from hypothesis import given, settings
from hypothesis import strategies as st


def load(file: Path | None = None, env: dict[str, str] | None = None, flags: dict[str, Any] | None = None) -> Config:
    return Config.load(file, env or {}, flags)


def written(folder: Path, text: str) -> Path:
    path = folder / "foldline.toml"
    path.write_text(text)
    return path


class TestLayers:
    def test_without_any_the_defaults_hold(self) -> None:
        config = load()
        assert config == Config()
        assert {origin for _, _, origin in config.describe()} == {"default"}
        assert [key for key, _, _ in config.describe()] == list(SETTINGS)

    def test_flags_win_over_environment_over_file(self, tmp_path: Path) -> None:
        text = 'listen = "127.0.0.1:1"\nserver.workers = 1\nserver.max_calls = 1\nmemory.cache_bytes = 1'
        file = written(tmp_path, text)
        env = {"FOLDLINE_SERVER_WORKERS": "2", "FOLDLINE_SERVER_MAX_CALLS": "2"}
        config = load(file, env, {"server.max_calls": "3", "listen": None})
        told = {key: (value, origin) for key, value, origin in config.describe()}
        assert told["listen"] == ("127.0.0.1:1", "file")
        assert told["memory.cache_bytes"] == ("1", "file")
        assert told["server.workers"] == ("2", "FOLDLINE_SERVER_WORKERS")
        assert told["server.max_calls"] == ("3", "--set server.max_calls")
        assert (config.server.workers, config.server.max_calls, config.memory.cache_bytes) == (2, 3, 1)

    def test_the_environment_may_name_the_file(self, tmp_path: Path) -> None:
        file = written(tmp_path, "server.workers = 7")
        assert load(env={"FOLDLINE_CONFIG": str(file)}).server.workers == 7

    def test_a_file_names_other_files_from_its_own_place(self, tmp_path: Path) -> None:
        """Where the server keeps its own, from where it was started."""
        (tmp_path / "etc").mkdir()
        text = 'catalog = "models.json"\ndata = "d"\n[providers.p]\ntype = "openai"\napi_key_file = "../key"'
        file = written(tmp_path / "etc", text)
        config = load(file)
        assert config.catalog == tmp_path / "etc" / "models.json"
        assert config.providers["p"].api_key_file == tmp_path / "etc" / "../key"
        assert config.data == Path("d")
        assert load(file, flags={"catalog": "here.json"}).catalog == Path("here.json")
        assert load(file, flags={"catalog": ""}).catalog is None
        assert load(written(tmp_path / "etc", 'catalog = "/abs/m.json"')).catalog == Path("/abs/m.json")

    @pytest.mark.parametrize("given", ["", "a\0b", "~nobody-of-this-name/x"])
    def test_what_is_no_path_is_refused(self, given: str) -> None:
        with pytest.raises(ConfigError, match=r"data is .* \(from --data\), allowed is a path"):
            load(flags={"data": given})

    @pytest.mark.parametrize(
        ("given", "split"),
        [
            ("127.0.0.1:0", ("127.0.0.1", 0)),
            ("localhost:65535", ("localhost", 65535)),
            ("[::1]:7420", ("::1", 7420)),
            ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
            ("my-host.example:080", ("my-host.example", 80)),
        ],
    )
    def test_addresses_are_read(self, given: str, split: tuple[str, int]) -> None:
        assert split_address(load(flags={"listen": given}).listen) == split

    @pytest.mark.parametrize(
        "given",
        ["127.0.0.1", ":7420", "7420", "h:", "h:-1", "h:65536", "h:999999", "h:7x", "h:٣", "::1:7420", "[h]:1", "[]:1",
         "a b:1", "[::1]", "unix:/tmp/s", "http://h:1"],
    )  # fmt: skip
    def test_what_is_no_address_is_refused(self, given: str) -> None:
        with pytest.raises(ConfigError, match="allowed is HOST:PORT"):
            load(flags={"listen": given})

    @settings(max_examples=50)
    @given(host=st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), port=st.integers(0, 70_000))
    def test_ports_are_held_to_what_there_is(self, host: str, port: int) -> None:
        assert split_address(f"{host}:{port}") == ((host, port) if port <= 65_535 else None)

    def test_an_empty_text_is_a_value(self) -> None:
        assert load(flags={"listen": ""}).listen == ""
        assert load(flags={"data": "d"}).socket_path == "d/foldline.sock"
        assert load(flags={"data": "d", "socket": ""}).socket_path == ""

    def test_the_socket_is_told_as_it_is_also_where_nobody_named_it(self) -> None:
        """An empty one would say that there is none."""
        assert ("socket", "d/foldline.sock", "default") in load(flags={"data": "d"}).describe()
        assert ("socket", "", "--socket") in load(flags={"data": "d", "socket": ""}).describe()

    def test_policy_comes_from_nested_tables_dotted_keys_and_variables(self, tmp_path: Path) -> None:
        file = written(
            tmp_path,
            'policy.retention.turns = 2\n[policy.summary]\non_failure = "RESCUE"\nredact = ["a+", "b"]\n'
            'fast_model = { provider = "openai", model = "gpt-4o-mini" }\ntimeout = 30',
        )
        config = load(file, {"FOLDLINE_POLICY_AUTO_COMPACT": "false", "FOLDLINE_POLICY_COOLDOWN": "1.5"})
        assert config.policy == {
            "retention.turns": 2,
            "summary.on_failure": OnFailure.RESCUE,
            "summary.redact": ("a+", "b"),
            "summary.fast_model": ModelRef("openai", "gpt-4o-mini"),
            "summary.timeout": 30.0,
            "auto_compact": False,
            "cooldown": 1.5,
        }
        assert config.origins["policy.cooldown"] == "FOLDLINE_POLICY_COOLDOWN"


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("workers = 3", "workers .from file. is no setting"),
            ("[server]\nwrokers = 3", "server.wrokers .from file. is no setting; did you mean server.workers"),
            ("[policy]\nthreshold = 3", "policy.threshold .from file. is no setting"),
            ("server.workers = 0", "server.workers is 0 .from file., allowed is > 0"),
            ('server.workers = "many"', "server.workers is 'many' .from file., allowed is a whole number"),
            ("server.workers = 1.5", "server.workers is 1.5 .from file., allowed is a whole number"),
            ("server.reflection = 1", "server.reflection is 1 .from file., allowed is true or false"),
            ('store.synchronous = "OFF"', "allowed is FULL or NORMAL"),
            ('policy.summary.oversize = "SHRINK"', "allowed is TRIM or MAP"),
            ("policy.min_progress = 1.5", r"policy.min_progress is 1.5, allowed is \[0, 1\) .from file."),
            ("policy.estimate.factor_min = 3.0", "policy.estimate.factor_min 3.0 exceeds factor_max 2.5 .from file."),
            ("policy.summary.fast_model = { name = 'x' }", "allowed is a table of provider and model"),
            ('policy.cooldown = "10m"', "policy.cooldown is '10m' .from file., allowed is a number of seconds"),
            ('server.max_wait = "1h"', "server.max_wait is '1h' .from file., allowed is a number of seconds"),
            ('policy.summary.timeout = "1m"', "allowed is a number of seconds"),
            ('policy.min_progress = "some"', "policy.min_progress is 'some' .from file., allowed is a number$"),
            ("server = 3", "server .from file. is no setting"),
            ("providers.p.modle = 'x'", "providers.p.modle .from file. is no setting; did you mean providers.p.model"),
            ("providers.p.api_key = 'x'", "is no setting; did you mean providers.p.api_key_"),
            ("[provider.p]\ntype = 'openai'", "provider.p.type .*; did you mean providers.p.type"),
            ("x = [", "is not TOML"),
        ],
    )
    def test_of_a_file_name_key_value_and_what_is_allowed(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load(written(tmp_path, text))

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("FOLDLINE_LISTN", "x", "FOLDLINE_LISTN names no setting; did you mean FOLDLINE_LISTEN"),
            ("FOLDLINE_MEMORY_CACHE", "x", "FOLDLINE_MEMORY_CACHE names no setting"),
            ("FOLDLINE_POLICY_X", "x", "FOLDLINE_POLICY_X names no setting"),
            ("FOLDLINE_SERVER_WORKERS", "0", "from FOLDLINE_SERVER_WORKERS"),
            ("FOLDLINE_POLICY_RETENTION_TURNS", "-1", "from FOLDLINE_POLICY_RETENTION_TURNS"),
            ("FOLDLINE_POLICY_SUMMARY_REDACT", "[", "from FOLDLINE_POLICY_SUMMARY_REDACT"),
        ],
    )
    def test_of_a_variable_name_it(self, name: str, value: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load(env={name: value})

    @pytest.mark.parametrize("name", field_names())
    def test_of_a_knob_it_says_seconds_where_the_contract_has_a_duration(self, tmp_path: Path, name: str) -> None:
        kind: Any = policy_pb2.Policy.DESCRIPTOR
        for part in name.split("."):
            field = kind.fields_by_name[part]
            kind = field.message_type
        is_duration = kind is not None and kind.full_name == "google.protobuf.Duration"
        with pytest.raises(ConfigError) as refused:
            load(written(tmp_path, f"policy.{name} = {{ no = true }}"))
        assert str(refused.value).endswith(" of seconds") == is_duration

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
            load(tmp_path / "none.toml")

    def test_a_bad_value_under_a_good_one_is_refused_only_where_it_would_hold(self, tmp_path: Path) -> None:
        config = load(written(tmp_path, "server.workers = 0"), {"FOLDLINE_SERVER_WORKERS": "4"})
        assert config.server.workers == 4


def test_variables_that_orchestrators_set_for_a_service_are_let_be() -> None:
    """A Kubernetes service named ``foldline`` puts these into every pod of its namespace."""
    env = {
        "FOLDLINE_PORT": "tcp://10.0.0.1:7420",
        "FOLDLINE_PORT_7420_TCP": "tcp://10.0.0.1:7420",
        "FOLDLINE_PORT_7420_TCP_ADDR": "10.0.0.1",
        "FOLDLINE_SERVICE_HOST": "10.0.0.1",
        "FOLDLINE_SERVICE_PORT": "7420",
        "FOLDLINE_SERVICE_PORT_GRPC": "7420",
        "OTHER": "1",
    }
    config = load(env=env)
    assert config.ignored == tuple(sorted(env))[:-1]
    assert config == Config(ignored=config.ignored)


NUMBERS = [
    "threshold_fraction",
    "target_fraction",
    "min_progress",
    "retention.turns",
    "summary.retries",
    "bounding.min_bytes",
    "background.fraction",
    "summary.coverage_floor",
    "run_ttl",
]


@given(st.sampled_from(NUMBERS), st.integers(-3, 10) | st.floats(-2, 3, width=16))
def test_a_policy_value_is_taken_where_the_domain_takes_it(name: str, value: float) -> None:
    """The file and the variable refuse what ``check_layer`` refuses, and what is no value of the type."""
    default: Any = Policy()
    for part in name.split("."):
        default = getattr(default, part)
    try:
        check_layer({name: value})
        allowed = not (isinstance(default, int) and isinstance(value, float) and not value.is_integer())
    except FoldlineError:
        allowed = False
    variable = "FOLDLINE_POLICY_" + name.upper().replace(".", "_")
    try:
        config = load(env={variable: str(value)})
    except ConfigError:
        assert not allowed
    else:
        assert allowed
        assert config.policy == {name: value}


class TestProviders:
    """S2: who can write summaries is configured by name; keys are named, never held (W8)."""

    def test_a_table_names_a_provider_and_is_described_without_its_key(self, tmp_path: Path) -> None:
        text = '[providers.openai]\ntype = "openai"\nbase_url = "http://h:1/v1"\napi_key_env = "K"\nwindow = 8192'
        config = load(written(tmp_path, text), {"K": "sk-secret"})
        assert config.providers == {"openai": Provider("openai", "http://h:1/v1", "K", window=8192)}
        told = {key: (value, origin) for key, value, origin in config.describe()}
        assert told["providers.openai.api_key_env"] == ("K", "file")
        assert told["providers.openai.window"] == ("8192", "file")
        assert told["providers.openai.model"] == ("", "default")
        assert "sk-secret" not in str(config.describe())

    def test_variables_and_flags_name_one_too(self) -> None:
        env = {"FOLDLINE_PROVIDERS_MY_LOCAL_TYPE": "openai", "FOLDLINE_PROVIDERS_MY_LOCAL_BASE_URL": "http://h"}
        config = load(env=env, flags={"providers.g.type": "google", "providers.g.api_key_file": "k"})
        assert config.providers == {
            "my_local": Provider("openai", "http://h"),
            "g": Provider("google", api_key_file=Path("k")),
        }

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('base_url = "http://h"', "providers.p has no type, allowed is openai or openai_responses or anthropic"),
            ('type = "opena"', "providers.p.type is 'opena' .from file., allowed is openai or"),
            ('type = "openai"\napi_key = "sk-secret"', "providers.p.api_key .from file. is no setting"),
            ('type = "openai"\nbase_url = "h:1"', "providers.p.base_url is 'h:1' .from file., allowed is http"),
            ('type = "openai"\nwindow = 0', "providers.p.window is 0 .from file., allowed is > 0"),
            ('type = "openai"\napi_key_env = "K"\napi_key_file = "k"', "by api_key_env and by api_key_file: one"),
            ('type = "openai"\ncompaction = "compact-2026-09-04"', "compaction is of Anthropic's API, type is openai"),
            ('type = "anthropic"\ncompaction = "compact-2027"', "compaction"),
        ],
    )
    def test_a_wrong_one_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as refused:
            load(written(tmp_path, f"[providers.p]\n{text}"))
        assert "sk-secret" not in str(refused.value)

    def test_a_password_in_a_url_is_refused(self, tmp_path: Path) -> None:
        text = '[providers.p]\ntype = "openai"\nbase_url = "https://user:pw@host/v1"'
        with pytest.raises(ConfigError, match="no password") as refused:
            load(written(tmp_path, text))
        assert "pw" not in str(refused.value)

    def test_s4_a_list_is_json_where_it_comes_as_text(self) -> None:
        text = '["tok-[0-9]+"]'
        by_variable = load(env={"FOLDLINE_POLICY_SUMMARY_REDACT": text})
        by_flag = load(flags={"policy.summary.redact": text})
        assert by_variable.policy["summary.redact"] == by_flag.policy["summary.redact"] == ("tok-[0-9]+",)
        with pytest.raises(ConfigError, match="allowed is a list of texts"):
            load(env={"FOLDLINE_POLICY_SUMMARY_REDACT": "tok-[0-9]+"})

    def test_w8_a_key_in_the_query_of_a_url_is_not_shown(self, tmp_path: Path) -> None:
        text = '[providers.p]\ntype = "google"\nbase_url = "https://host/v1?key=AIzaSecret"'
        with pytest.raises(ConfigError, match=r"base_url is 'https://host/v1\?\[redacted\]'") as refused:
            load(written(tmp_path, text))
        assert "AIza" not in str(refused.value)

    def test_a_variable_of_no_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="FOLDLINE_PROVIDERS_P_API_KEY names no setting"):
            load(env={"FOLDLINE_PROVIDERS_P_API_KEY": "sk-secret"})
