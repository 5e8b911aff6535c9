"""Configuration: every variable read once, typed, and a value that cannot be right stops the start and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from app import create_app
from config import ROOT, Config, ConfigError

# Each variable with values that are right, as they are then read, and values that are wrong.
SIZES = ["", "x", "1.5", "-1", "9" * 30, "9" * 5000, "1 000", "0x10", "NaN"]
SECONDS = ["x", "0", "-1", "nan", "inf", "1e9", "5s", "1,5"]
FLAGS = ["maybe", "2", "-1", "wahr", "y e s"]
VARIABLES = {
    "HOST": ({"127.0.0.1": "127.0.0.1", "localhost": "localhost", "::1": "::1"}, ["0.0.0.0", "::", "10.0.0.1", "a b"]),
    "PORT": ({"0": 0, "8000": 8000, "65535": 65535}, [*SIZES, "65536"]),
    "ALLOW_ANYONE": ({"1": True, "true": True, "YES": True, "on": True, "0": False, "off": False}, FLAGS),
    "TRUSTED_HOSTS": (
        {"a": ("a",), "Chat.Intranet, b ,": ("chat.intranet", "b"), "x-1.y_z": ("x-1.y_z",)},
        ["http://a", "a:8000", "a/b", "a b", "*", "a,b:1"],
    ),
    "URL_PREFIX": (
        {"/holdfast": "/holdfast", "holdfast/": "/holdfast", "/": "", "/a/b-c.d": "/a/b-c.d"},
        ["/a b", "http://x", "/a?b", "//a//b", '/"', "/é"],
    ),
    "WORKERS": ({"1": 1, "64": 64}, [*SIZES, "0", "65"]),
    "MAX_CONNECTIONS": ({"1000": 1000}, [*SIZES, "0"]),
    "LOG_LEVEL": (
        {"debug": "DEBUG", "INFO": "INFO", "Warning": "WARNING", "error": "ERROR"},
        ["loud", "5", "INFO,DEBUG"],
    ),
    "DATA_DIR": ({"/tmp/x": Path("/tmp/x"), "here": Path.cwd() / "here"}, ["~nobody-of-this-name/x"]),
    "CHAT_DB_PATH": ({"/tmp/x.db": Path("/tmp/x.db"), "x.db": Path.cwd() / "x.db"}, ["~nobody-of-this-name/x"]),
    "BUSY_TIMEOUT_MS": ({"0": 0, "30000": 30000}, [*SIZES, "600001"]),
    "SQLITE_SYNCHRONOUS": ({"full": "FULL", "NORMAL": "NORMAL", "extra": "EXTRA"}, ["OFF", "0", "x", "FULL; DROP"]),
    "HISTORY_LIMIT": ({"0": 0, "20": 20, "1000": 1000}, [*SIZES, "1001"]),
    "MAX_HISTORY_TOKENS": ({"0": 0, "8000": 8000}, [*SIZES, "10000001"]),
    "SESSIONS_DEFAULT_LIMIT": ({"1": 1, "100": 100}, [*SIZES, "0", "101"]),
    "MESSAGES_DEFAULT_LIMIT": ({"1": 1, "200": 200}, [*SIZES, "0", "201"]),
    "SESSION_TITLE_MAX_LEN": ({"1": 1, "1000": 1000}, [*SIZES, "0", "1001"]),
    "MAX_QUERY_CHARS": ({"1": 1, "200000": 200000}, [*SIZES, "0"]),
    "MAX_BODY_MB": ({"1": 1, "1000": 1000}, [*SIZES, "0", "1001"]),
    "MAX_IMAGE_MB": ({"1": 1, "1000": 1000}, [*SIZES, "0", "1001"]),
    "LLM_BASE_URL": (
        {
            "http://127.0.0.1:11434/v1": "http://127.0.0.1:11434/v1",
            "https://h/v1//": "https://h/v1",
            "http://[::1]:8": "http://[::1]:8",
        },
        ["127.0.0.1:11434", "ftp://x", "http://", "http:///v1", "http://a b", "http://[::1", "http://a:99999",
         "http://a:x", "file:///etc", "http://me:hunter2@h/v1"],
    ),
    "LLM_API_KEY": ({"sk-1": "sk-1", " padded ": "padded"}, []),
    "LLM_MODEL": ({"llama3:8b": "llama3:8b"}, []),
    "LLM_CONNECT_TIMEOUT": ({"5": 5.0, "0.5": 0.5}, SECONDS),
    "LLM_TIMEOUT": ({"120": 120.0, "86400": 86400.0}, SECONDS),
    "LLM_TOTAL_TIMEOUT": ({"1800": 1800.0}, SECONDS),
    "LLM_MAX_ANSWER_MB": ({"1": 1}, [*SIZES, "0", "1001"]),
    "SYSTEM_PROMPT": ({"Be brief.": "Be brief.", "简短回答": "简短回答"}, []),
    "TURN_LEASE_SECONDS": ({"60": 60.0}, SECONDS),
    "MAX_RUNNING_TURNS": ({"1": 1}, [*SIZES, "0"]),
    "RATE_LIMIT_PER_MINUTE": ({"0": 0, "60": 60}, SIZES),
}  # fmt: skip
NEEDED = {"LLM_BASE_URL": {"LLM_MODEL": "m"}}

RIGHT = [(variable, text, value) for variable, (right, _) in VARIABLES.items() for text, value in right.items()]
WRONG = [(variable, text) for variable, (_, wrong) in VARIABLES.items() for text in wrong if text]


def read(variable, text):
    return Config.from_environment({**NEEDED.get(variable, {}), variable: text})


def test_every_variable_is_tested_here():
    assert set(VARIABLES) == {field.name.upper() for field in fields(Config)}


@pytest.mark.parametrize(("variable", "text", "value"), RIGHT)
def test_right_values_are_read_and_typed(variable, text, value):
    found = getattr(read(variable, text), variable.lower())
    assert found == value
    assert type(found) is type(value) or isinstance(value, Path)


@pytest.mark.parametrize(("variable", "text"), WRONG)
def test_wrong_values_stop_the_start_and_name_the_variable(variable, text):
    with pytest.raises(ConfigError, match=variable) as raised:
        read(variable, text)
    message = str(raised.value)
    assert len(message) > len(variable) + 20, "it says what is wrong"
    assert "invalid literal" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize("variable", VARIABLES)
def test_an_empty_variable_is_one_that_is_not_set(variable):
    name = variable.lower()
    assert getattr(read(variable, "  "), name) == getattr(Config(), name)


def test_the_defaults_of_the_contract():
    config = Config.from_environment({})
    assert (config.history_limit, config.max_history_tokens) == (20, 8000)
    assert (config.sessions_default_limit, config.messages_default_limit) == (20, 50)
    assert (config.busy_timeout_ms, config.session_title_max_len) == (30_000, 100)
    assert config.database_file == ROOT / "data" / "chat.db"
    assert (config.llm_connect_timeout, config.llm_timeout) == (5.0, 120.0)
    assert config.max_query_chars == 200_000
    assert (config.host, config.port, config.sqlite_synchronous) == ("127.0.0.1", 8000, "FULL")


def test_a_model_server_needs_a_model():
    with pytest.raises(ConfigError, match="LLM_MODEL"):
        Config.from_environment({"LLM_BASE_URL": "http://127.0.0.1:11434/v1"})


def test_unknown_variables_are_nobodys_business():
    assert Config.from_environment({"PATH": "/bin", "HISTORY": "x", "history_limit": "5"}) == Config()


def test_the_database_lies_in_the_data_directory_unless_said_otherwise():
    assert Config.from_environment({"DATA_DIR": "/srv/x"}).database_file == Path("/srv/x/chat.db")
    assert Config.from_environment({"DATA_DIR": "/srv/x", "CHAT_DB_PATH": "/y/z.db"}).database_file == Path("/y/z.db")


@pytest.mark.parametrize("variables", [{"DATA_DIR": "mine"}, {"DATA_DIR": "mine", "CHAT_DB_PATH": "deep/er/x.db"}])
def test_relative_paths_are_meant_from_here(tmp_path, monkeypatch, variables):
    """Flask-SQLAlchemy would look for a relative database in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    config = Config.from_environment(variables)
    app = create_app(config)
    assert app.test_client().post("/api/chat/sessions", json={}).status_code == 201
    expected = tmp_path / variables.get("CHAT_DB_PATH", "mine/chat.db")
    assert config.database_file == expected
    assert expected.stat().st_size > 0
    assert not Path(app.instance_path, "mine").exists()


def test_every_setting_is_described_and_secrets_are_not():
    config = Config.from_environment({"LLM_API_KEY": "sk-hunter2"})
    described = {entry["variable"]: entry for entry in config.described()}
    assert set(described) == set(VARIABLES)
    assert described["LLM_API_KEY"]["value"] == "********"
    assert all(entry["about"].strip() for entry in described.values())
    assert "hunter2" not in str(described)


def start(tmp_path, **variables):
    environment = {name: text for name, text in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**environment, "DATA_DIR": str(tmp_path / "data"), "PORT": "0", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("variables", [{"HISTORY_LIMIT": "many"}, {"HOST": "0.0.0.0"}, {"LOG_LEVEL": "loud"}])
def test_the_program_itself_ends_with_one_sentence(tmp_path, variables):
    ended = start(tmp_path, **variables)
    assert ended.returncode != 0
    assert next(iter(variables)) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists(), "nothing was begun"
