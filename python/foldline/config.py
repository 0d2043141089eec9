"""Settings of a server: built-in < TOML file < environment (``FOLDLINE_…``) < flags.

Every setting has a dotted key (``memory.cache_bytes``), which is its place in the file, its environment variable
(``FOLDLINE_MEMORY_CACHE_BYTES``) and its name for ``foldline serve --set``. The table ``policy`` is the lowest layer of
every session's policy. ``providers.NAME`` says how the model provider of that name is reached (S2); its variables are
``FOLDLINE_PROVIDERS_NAME_…``.
"""

from __future__ import annotations

import difflib
import enum
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from foldline.domain.errors import FoldlineError
from foldline.domain.policy import DURATIONS, Policy, field_names, resolve

ENV_PREFIX = "FOLDLINE_"
ENV_FILE = "FOLDLINE_CONFIG"
MIB = 1024 * 1024


class ConfigError(ValueError):
    """A setting that cannot hold; the message names it, its value, where it came from, and what is allowed."""


@dataclass(frozen=True, slots=True)
class About:
    """What a setting is for, and its range beyond its type."""

    doc: str
    check: Callable[[Any], bool] | None = None
    allowed: str = ""


def _positive(value: float) -> bool:
    return value > 0


def _not_negative(value: float) -> bool:
    return value >= 0


def split_address(value: str) -> tuple[str, int] | None:
    """Host, without brackets, and port of ``host:port`` or ``[v6]:port``; None for what is neither."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\s\]]+)?)\]|([^\s:\[\]]+)):(\d{1,5})", value, re.ASCII)
    if found is None or int(found[3]) > 65_535:
        return None
    return found[1] or found[2], int(found[3])


def _is_address(value: str) -> bool:
    return not value or split_address(value) is not None


@dataclass(frozen=True, slots=True)
class Store:
    synchronous: Annotated[
        Literal["FULL", "NORMAL"],
        About("FULL syncs the disk at every commit; NORMAL may lose the last commits with the machine, not with us"),
    ] = "FULL"


@dataclass(frozen=True, slots=True)
class Server:
    workers: Annotated[int, About("threads that serve calls", _positive, "> 0")] = 16
    max_calls: Annotated[int, About("calls running or waiting; further ones are OVERLOADED", _positive, "> 0")] = 256
    max_streams: Annotated[int, About("open streams, a thread each; further ones OVERLOADED", _positive, "> 0")] = 64
    max_message_bytes: Annotated[
        int, About("largest message taken or sent", lambda v: 65_536 <= v <= 2**29, "65536-536870912")
    ] = 16 * MIB
    max_wait: Annotated[float, About("seconds: longest deadline, and that of calls without one", _positive, "> 0")] = (
        600.0
    )
    heartbeat_interval: Annotated[
        float, About("seconds of silence: a stream says that it lives, a curator loses its tasks", _positive, "> 0")
    ] = 15.0
    drain_delay: Annotated[float, About("seconds from NOT_SERVING to the stop", _not_negative, ">= 0")] = 0.0
    drain_grace: Annotated[float, About("seconds for calls under way at the stop", _not_negative, ">= 0")] = 10.0
    reflection: Annotated[bool, About("whether the server describes its services")] = True


def _is_base_url(value: str) -> bool:
    """A URL with a password would show it to whoever reads the configuration."""
    return not value or bool(re.fullmatch(r"https?://[^\s/@]+(?:/[^\s?#]*)?", value))


@dataclass(frozen=True, slots=True)
class Memory:
    cache_bytes: Annotated[int, About("vectors held in memory, over all sessions", _not_negative, ">= 0")] = 256 * MIB
    embedder: Annotated[
        Literal["minilm", "openai", "none"],
        About("the embedded model, an OpenAI-compatible endpoint, or none: search by words alone"),
    ] = "minilm"
    model: Annotated[str, About("embedding model of the endpoint")] = ""
    base_url: Annotated[
        str,
        About("where the endpoint is; empty for OpenAI's", _is_base_url, "http(s)://host[:port][/path], no password"),
    ] = ""
    api_key_env: Annotated[str, About("environment variable that holds the endpoint's key")] = ""
    api_key_file: Annotated[Path | None, About("file that holds the endpoint's key, read anew for each call")] = None


@dataclass(frozen=True, slots=True)
class Admin:
    """Where the keys of administrators lie (M7); without any, what needs one is refused."""

    keys_env: Annotated[str, About("environment variable that holds the admin keys, spaces between them")] = ""
    keys_file: Annotated[
        Path | None, About("file that holds the admin keys, a line each, read anew for each call that needs one")
    ] = None


@dataclass(frozen=True, slots=True)
class Log:
    level: Annotated[Literal["debug", "info", "warning", "error"], About("least level logged, as JSON, to stderr")] = (
        "info"
    )


@dataclass(frozen=True, slots=True)
class Provider:
    """How summaries are written by the models of one provider (S2); keys are named, never held."""

    type: Annotated[
        Literal["openai", "openai_responses", "anthropic", "google"],
        About("the API: Chat Completions (also of compatible servers), Responses, Messages, generateContent"),
    ]
    base_url: Annotated[
        str,
        About(
            "where the API is; empty for the provider's own", _is_base_url, "http(s)://host[:port][/path], no password"
        ),
    ] = ""
    api_key_env: Annotated[str, About("environment variable that holds the key")] = ""
    api_key_file: Annotated[Path | None, About("file that holds the key, read anew for each summary")] = None
    model: Annotated[str, About("model that writes for sessions whose own model is another provider's")] = ""
    window: Annotated[
        int | None, About("tokens: the models' window where the catalog's is too large", _positive, "> 0")
    ] = None
    max_output: Annotated[
        int | None, About("most tokens asked for; unset is twice the summary's budget", _positive, "> 0")
    ] = None
    compaction: Annotated[
        Literal["compact-2026-09-04", "compact-2026-01-12"],
        About("the beta of Anthropic's own compaction (policy.native.enabled)"),
    ] = "compact-2026-09-04"


@dataclass(frozen=True, slots=True)
class Config:
    """What a server runs with.

    Attributes:
        policy: dotted policy fields set by file or environment; a layer of ``domain.policy.resolve``.
        providers: by name, which is what ``ModelRef.provider`` says.
        origins: of every setting and policy field that is not built-in, where its value came from: ``file``, the
            environment variable, or the flag.
        ignored: environment variables that look like ours and name no setting.
    """

    data: Annotated[Path, About("directory of the store")] = Path(".foldline")
    listen: Annotated[
        str,
        About(
            "TCP address, host:port; port 0 takes a free one; empty for none",
            _is_address,
            "HOST:PORT or [IPv6]:PORT with a port of 0-65535, or empty",
        ),
    ] = "127.0.0.1:7420"
    socket: Annotated[
        str | None, About("Unix socket; unset is foldline.sock in the data directory; empty for none")
    ] = None
    compactor: Annotated[
        str, About("entry point of the group foldline.compactors that folds in our place; empty for none")
    ] = ""
    catalog: Annotated[Path | None, About("JSON file of models, laid over the built-in catalog; empty for none")] = None
    store: Store = field(default_factory=Store)
    server: Server = field(default_factory=Server)
    memory: Memory = field(default_factory=Memory)
    admin: Admin = field(default_factory=Admin)
    log: Log = field(default_factory=Log)
    policy: Mapping[str, Any] = field(default_factory=dict)
    providers: Mapping[str, Provider] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Config:
        """Reads all layers; ``env`` None is this process's environment, a flag of None was not given.

        Raises:
            ConfigError: an unknown key, a value out of its type or range, a file that cannot be read.
        """
        env = os.environ if env is None else env
        given: dict[str, tuple[Any, str]] = {}
        path = file or env.get(ENV_FILE)
        if path:
            given.update({key: (value, "file") for key, value in _flatten(_read(Path(path)), "").items()})
        variables, ignored = _from_env(env)
        given.update(variables)
        given.update({key: (v, _flag(key)) for key, v in (flags or {}).items() if v is not None})
        values = {key: _convert(key, value, origin) for key, (value, origin) in given.items()}
        for key, (_, origin) in given.items():
            if origin == "file" and path and values[key] is not None and _BESIDE_THE_FILE.fullmatch(key):
                values[key] = Path(path).absolute().parent / values[key]
        policy = {key.removeprefix("policy."): v for key, v in values.items() if key.startswith("policy.")}
        try:
            resolve({"config": policy})
        except FoldlineError as error:
            field = error.metadata.get("field") or error.metadata["method"]
            raise ConfigError(f"{error.message} (from {given[field][1]})") from None
        origins = {key: origin for key, (_, origin) in given.items()}
        providers = _providers(values)
        config: Config = _build(cls, values, "", policy=policy, providers=providers, origins=origins, ignored=ignored)
        return config

    def describe(self) -> list[tuple[str, str, str]]:
        """(key, value as text, origin) of every setting, policy apart."""
        told = [(key, _text(self._told(key)), self.origins.get(key, "default")) for key in SETTINGS]
        for name, provider in sorted(self.providers.items()):
            for own in _PROVIDER:
                key = f"providers.{name}.{own}"
                told.append((key, _text(getattr(provider, own)), self.origins.get(key, "default")))
        return told

    def _told(self, key: str) -> Any:
        return self.socket_path if key == "socket" else _value(self, key)

    @property
    def socket_path(self) -> str:
        """Where the Unix socket is; empty for none."""
        return str(self.data / "foldline.sock") if self.socket is None else self.socket


@dataclass(frozen=True, slots=True)
class Setting:
    type: Any
    about: About


def _settings(kind: type, prefix: str) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if is_dataclass(hint) and isinstance(hint, type):
            found |= _settings(hint, f"{prefix}{name}.")
        elif get_origin(hint) is Annotated:
            found[prefix + name] = Setting(*get_args(hint))
    return found


def _knob(key: str) -> Setting:
    """A field of the policy; its range is ``domain.policy``'s."""
    hint: Any = Policy
    for name in key.split(".")[1:]:
        hint = get_type_hints(hint)[name]
    return Setting(hint, About(_SECONDS if key.removeprefix("policy.") in DURATIONS else ""))


_SECONDS = "seconds"
"""What a setting is about that is a duration: nothing else says so of a number."""
SETTINGS = _settings(Config, "")
"""Every server setting by key; those of providers have keys of their own."""
_PROVIDER = _settings(Provider, "")
_BESIDE_THE_FILE = re.compile(r"catalog|memory\.api_key_file|admin\.keys_file|providers\..+\.api_key_file")
"""Files that a configuration file names from its own place; where the server keeps its own is the caller's matter."""
_PROVIDER_KEY = re.compile(rf"providers\.([A-Za-z0-9_-]+)\.({'|'.join(_PROVIDER)})")
_PROVIDER_VARIABLE = re.compile(rf"{ENV_PREFIX}PROVIDERS_([A-Z0-9_]+?)_({'|'.join(_PROVIDER).upper()})")
_KNOWN = (*SETTINGS, *(f"policy.{name}" for name in field_names()))
_VARIABLES = {ENV_PREFIX + key.upper().replace(".", "_"): key for key in _KNOWN}
_SECTIONS = (*{f"{ENV_PREFIX}{key.split('.')[0].upper()}_" for key in _KNOWN if "." in key}, f"{ENV_PREFIX}PROVIDERS_")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None


def _flatten(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key not in _KNOWN:
            found |= _flatten(value, f"{key}.")
        else:
            found[key] = value
    return found


def _from_env(env: Mapping[str, str]) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Settings from variables, and the variables of our prefix that are none.

    Orchestrators set variables of a service's name (``FOLDLINE_PORT``), so an unknown one is refused only where it
    cannot be meant otherwise: in one of our sections, or a slip away from a known name.
    """
    values: dict[str, tuple[str, str]] = {}
    ignored: list[str] = []
    bare = {name.removeprefix(ENV_PREFIX): name for name in _VARIABLES}
    for name in sorted(n for n in env if n.startswith(ENV_PREFIX) and n != ENV_FILE):
        if name in _VARIABLES:
            values[_VARIABLES[name]] = (env[name], name)
            continue
        if found := _PROVIDER_VARIABLE.fullmatch(name):
            values[f"providers.{found[1].lower()}.{found[2].lower()}"] = (env[name], name)
            continue
        near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), bare, 1, 0.8)
        if near or name.startswith(_SECTIONS):
            raise ConfigError(f"{name} names no setting{_meant([bare[n] for n in near])}")
        ignored.append(name)
    return values, tuple(ignored)


def _flag(key: str) -> str:
    return f"--{key}" if key in ("data", "listen", "socket") else f"--set {key}"


def _meant(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _provider_keys(key: str) -> list[str]:
    """What an unknown key may mean, if it is of a provider: the same name with each setting of one."""
    table, _, rest = key.partition(".")
    name = rest.rpartition(".")[0]
    return [f"providers.{name}.{own}" for own in _PROVIDER] if name and table.startswith("provider") else []


def _convert(key: str, value: Any, origin: str) -> Any:
    provider = _PROVIDER_KEY.fullmatch(key)
    if key not in _KNOWN and not provider:
        near = difflib.get_close_matches(key, (*_KNOWN, *_provider_keys(key)), 1)
        raise ConfigError(f"{key} (from {origin}) is no setting{_meant(near)}")
    setting = _PROVIDER[provider[2]] if provider else SETTINGS.get(key) or _knob(key)
    try:
        made = _typed(value, setting.type)
    except (msgspec.ValidationError, msgspec.DecodeError, TypeError):
        allowed = _kind(setting.type) + (" of seconds" if setting.about.doc.startswith(_SECONDS) else "")
        raise ConfigError(f"{key} is {value!r} (from {origin}), allowed is {allowed}") from None
    about = setting.about
    if about.check is not None and not about.check(made):
        shown = re.sub(r"[?#].*", "?[redacted]'", re.sub(r"//.*@", "//[redacted]@", repr(value)))
        raise ConfigError(f"{key} is {shown} (from {origin}), allowed is {about.allowed}")
    return made


def _options(kind: Any) -> tuple[Any, ...]:
    """What a value may be: the members of a union or literal, else the type itself."""
    return (kind,) if get_origin(kind) is tuple else get_args(kind) or (kind,)


def _typed(value: Any, kind: Any) -> Any:
    options = _options(kind)
    if Path in options:
        return _path(msgspec.convert(value, str), optional=type(None) in options)
    if isinstance(value, str) and str not in options and value[:1] in ("[", "{"):
        value = msgspec.json.decode(value)
    for option in options:
        if isinstance(value, dict) and set(value) != set(getattr(option, "__struct_fields__", value)):
            raise TypeError("a table of other keys")
    return msgspec.convert(value, kind, strict=not isinstance(value, str))


def _path(text: str, *, optional: bool) -> Path | None:
    if optional and not text:
        return None
    if not text or "\0" in text:
        raise TypeError("no path")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # the home of nobody
        raise TypeError(str(error)) from error


def _kind(kind: Any) -> str:
    options = _options(kind)
    names: list[str] = []
    for option in options:
        if isinstance(option, type) and issubclass(option, enum.Enum):
            names += [str(member.value) for member in option]
        elif hasattr(option, "__struct_fields__"):
            names.append(f"a table of {' and '.join(option.__struct_fields__)}")
        elif get_origin(option) is tuple:
            names.append("a list of texts")
        elif isinstance(option, type):
            names += [] if option is type(None) else [_WORDS.get(option, option.__name__)]
        else:
            names.append(str(option))
    return " or ".join(names)


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def _build(kind: Any, values: Mapping[str, Any], prefix: str, **extra: Any) -> Any:
    hints = get_type_hints(kind)
    made: dict[str, Any] = dict(extra)
    for item in fields(kind):
        key = prefix + item.name
        if is_dataclass(hints[item.name]):
            made[item.name] = _build(hints[item.name], values, f"{key}.")
        elif key in values:
            made[item.name] = values[key]
    return kind(**made)


def _providers(values: Mapping[str, Any]) -> dict[str, Provider]:
    """Providers by name.

    Raises:
        ConfigError: one without a type, with two sources of its key, or with a setting of another API.
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if found := _PROVIDER_KEY.fullmatch(key):
            tables.setdefault(found[1], {})[found[2]] = value
    for name, table in tables.items():
        if "type" not in table:
            raise ConfigError(f"providers.{name} has no type, allowed is {_kind(_PROVIDER['type'].type)}")
        if "compaction" in table and table["type"] != "anthropic":
            raise ConfigError(f"providers.{name}.compaction is of Anthropic's API, type is {table['type']}")
        if table.get("api_key_env") and table.get("api_key_file"):
            raise ConfigError(f"providers.{name} names a key by api_key_env and by api_key_file: one of them")
    return {name: Provider(**table) for name, table in tables.items()}


def _value(node: Any, key: str) -> Any:
    for name in key.split("."):
        node = getattr(node, name)
    return node


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
