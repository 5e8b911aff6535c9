"""A database that is locked, full, read-only or broken: said plainly, nothing half written, over when it is over."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from tests.faults.client import Client, in_background, new_request
from tests.faults.ledger import Ledger
from tests.faults.start import like_anybody, refused_start
from tests.model_server import numbered

LOCKER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""


class Lock:
    """Another program that holds the database for so many seconds."""

    def __init__(self, data_dir: Path, seconds: float) -> None:
        command = [sys.executable, "-c", LOCKER, str(data_dir / "chat.db"), str(seconds)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "locked\n"

    @property
    def is_held(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        assert self.process.wait(60) == 0


def words(count: int) -> str:
    return "".join(numbered(count))


def check_storage_error(response) -> None:
    assert response.status_code == 500
    detail = response.json()["detail"]
    assert detail["code"] == "STORAGE_ERROR"
    assert "Nothing was saved" in detail["message"]


# Locked by another program


def test_locked_for_five_seconds_it_waits(serve, data_dir, ledger):
    client = serve()
    chats = [client.new_chat() for _ in range(3)]
    with Lock(data_dir, 5) as lock:
        plain = in_background(client.ask, chats[0], "!say one")
        streamed = client.ask_streamed(chats[1], "!say two")
        renamed = in_background(client.server.post, "/api/chat/sessions", {"title": "Three"})
        time.sleep(4)
        assert lock.is_held
        assert not any([plain.done(), streamed.events, renamed.done()])
        lock.wait()
        assert plain.result(10)["assistant_message"]["content"] == "one"
        assert streamed.wait().text == "two" == streamed.final["assistant_message"]["content"]
        assert renamed.result(10).status_code == 201
    ledger.check()


def test_locked_for_too_long_it_says_so_and_nothing_is_half_written(serve, data_dir, ledger, model):
    client = serve(BUSY_TIMEOUT_MS=1500)
    chat, other = client.new_chat(), client.new_chat()
    request = new_request()
    with Lock(data_dir, 12) as lock:
        began = time.monotonic()
        tries = [
            in_background(client.post_turn, chat, "!say one", request),
            in_background(
                client.server.post,
                f"/api/chat/sessions/{other}/turn:stream",
                {"request_id": new_request(), "query": "two"},
            ),
            in_background(client.server.post, "/api/chat/sessions", {"title": "Three"}),
        ]
        for attempt in tries:
            check_storage_error(attempt.result(20))
        assert lock.is_held
        assert 1.4 < time.monotonic() - began < 5
        assert client.server.get("/ready").status_code == 503
        assert client.server.get(f"/api/chat/turns/{request}").status_code == 404
        assert client.messages(chat) == client.messages(other) == []
        lock.wait()
    ledger.check()
    assert model.requests == []
    assert client.ask(chat, "!say one", request)["assistant_message"]["content"] == "one"
    assert client.server.get("/ready").status_code == 200
    assert len(client.server.get("/api/chat/sessions").json()["sessions"]) == 2


def test_reads_and_streams_go_on_while_another_holds_the_lock(serve, data_dir):
    client = serve()
    chat, request = client.new_chat(), new_request()
    client.ask(chat, "!say findable", request)
    heard = client.ask_streamed(client.new_chat(), "!words 20 10").wait_for_text("w2")
    with Lock(data_dir, 6) as lock:
        writers = [in_background(client.server.post, "/api/chat/sessions", {"title": str(n)}) for n in range(15)]
        time.sleep(0.3)
        began = time.monotonic()
        assert client.server.get("/health").ok
        assert client.server.get("/api/chat/sessions").json()["sessions"]
        assert [message["content"] for message in client.messages(chat)] == ["!say findable", "findable"]
        assert client.server.get("/api/chat/search", params={"q": "findable"}).json()["sessions"]
        assert client.turn(request)["status"] == "completed"
        assert time.monotonic() - began < 2
        heard.wait_for_text("w19", 5)
        assert lock.is_held
        assert not any(writer.done() for writer in writers)
        lock.wait()
        assert all(writer.result(20).status_code == 201 for writer in writers)
    assert heard.wait().final["assistant_message"]["content"] == words(20)


def test_an_answer_that_meets_a_lock_is_stored_when_the_lock_goes(serve, data_dir, ledger):
    client = serve(BUSY_TIMEOUT_MS=1500)
    chats, requests = [client.new_chat() for _ in range(3)], [new_request() for _ in range(3)]
    plain = in_background(client.post_turn, chats[0], "!words 10 10", requests[0])
    streamed = client.ask_streamed(chats[1], "!words 10 10", requests[1])
    failing = in_background(client.post_turn, chats[2], "!sleep-headers 1 !500 no memory", requests[2])
    streamed.wait_for_text("w3")
    with Lock(data_dir, 8) as lock:
        streamed.wait_for_text("w10")
        lock.wait()
    for request in requests:
        client.ended(request, 10)
    assert plain.result(10).json()["assistant_message"]["content"] == words(10)
    assert streamed.wait().final["assistant_message"]["content"] == words(10)
    assert failing.result(10).json()["error"]["message"] == "no memory"
    for chat, request in zip(chats[:2], requests[:2], strict=True):
        assert client.turn(request)["assistant_message"]["content"] == words(10)
        assert client.ask(chat, "!say on")["status"] == "completed"
    ledger.check()


def test_a_stop_that_meets_a_lock(serve, data_dir, ledger):
    """Stopping needs no write of its own in the process that answers: the model is hung up on at once."""
    client = serve()
    chat, request = client.new_chat(), new_request()
    heard = client.ask_streamed(chat, "!words 300 10", request).wait_for_text("w3")
    with Lock(data_dir, 3) as lock:
        stopping = in_background(client.stop, request)
        lock.wait()
    stopped = stopping.result(10)
    assert stopped["assistant_message"]["metadata"]["stopped"] is True
    assert heard.wait().text == stopped["assistant_message"]["content"]
    assert len(heard.deltas) < 20
    ledger.check()


def test_started_while_the_database_is_locked_it_waits_or_serves(serve, data_dir, ledger):
    client = serve()
    chat, request = client.new_chat(), new_request()
    client.ask_streamed(chat, "!words 100 10", request).wait_for_text("w3")
    client.server.kill()
    with Lock(data_dir, 4):
        client = serve(BUSY_TIMEOUT_MS=1500)
        assert client.ended(request, 10)["error"]["code"] == "INTERRUPTED"
    assert client.ask(chat, "!say on")["status"] == "completed"
    ledger.check()


@pytest.mark.serial
def test_locked_for_forty_seconds(serve, data_dir, ledger):
    """With the default settings: what is asked meanwhile is refused, what was being answered is stored."""
    client = serve(BUSY_TIMEOUT_MS=30_000)
    chats, request = [client.new_chat() for _ in range(2)], new_request()
    answering = client.ask_streamed(chats[0], "!words 20 10", request).wait_for_text("w3")
    with Lock(data_dir, 40) as lock:
        began = time.monotonic()
        refused = in_background(client.post_turn, chats[1], "!say no")
        while lock.is_held:
            looked = time.monotonic()
            assert client.server.get("/api/chat/sessions").ok
            assert time.monotonic() - looked < 2
            time.sleep(2)
    check_storage_error(refused.result(10))
    assert time.monotonic() - began < 55
    assert answering.wait(30).final["assistant_message"]["content"] == words(20)
    assert client.turn(request) == answering.final
    assert client.ask(chats[1], "!say yes")["status"] == "completed"
    ledger.check()


# Full


def fill(client: Client, chat: str, most: int = 60) -> list[dict | None]:
    """Asks long questions, which are answered shortly, until the disk is full; last comes what was refused.

    None: the question still found room and its answer did not, for which the server goes on trying for a while.
    """
    acknowledged: list[dict | None] = []
    for number in range(most):
        try:
            response = client.post_turn(chat, f"!stamped 1 1000 {number} " + "long " * 30_000, timeout=6)
        except requests.Timeout:
            return [*acknowledged, None]
        if response.status_code != 200 or response.json()["status"] != "completed":
            return [*acknowledged, response.json()]
        acknowledged.append(response.json())
    raise AssertionError("It never became full.")


def check_full(client: Client, chat: str, refused: dict | None) -> None:
    """What it says when the disk is full, that it lives, and that everything can still be read."""
    if refused is not None:
        assert refused["detail"]["code"] == "STORAGE_ERROR"
    check_storage_error(client.server.post("/api/chat/sessions", {"metadata": {"a": "b" * 300_000}}))
    assert client.server.get("/health").ok
    assert client.server.get("/api/chat/sessions").ok
    assert client.messages(chat)


def test_a_full_disk_by_limit(serve, ledger):
    """No file may grow beyond a size: first the log of the database cannot, then the database itself."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))

    client = serve()
    chat = client.new_chat()
    client.ask(chat, "!say before")
    client.server.kill()

    client = serve(preexec=small_files)
    *acknowledged, refused = fill(client, chat)
    assert acknowledged, "the limit leaves room for a start"
    check_full(client, chat, refused)
    client.server.kill()
    ledger.check_file()
    check_after_full(serve(), ledger, chat, acknowledged)


def check_after_full(client: Client, ledger: Ledger, chat: str, acknowledged: list[dict]) -> None:
    client.server.wait_for(lambda: ledger.value("SELECT count(*) FROM chat_turns WHERE status = 'pending'") == 0)
    for turn in acknowledged:
        assert client.turn(turn["turn_id"]) == turn
    assert client.ask(chat, "!say after")["assistant_message"]["content"] == "after"
    ledger.check()


@contextmanager
def small_disk(folder: Path, size: str):
    """A file system of its own, which is really full when it is full."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_and_room_again(serve, data_dir, ledger):
    """Without a restart: when there is room again, everything works again."""
    with small_disk(data_dir, "4m"):
        client = serve()
        chat = client.new_chat()
        ballast = data_dir / "ballast"
        ballast.write_bytes(b"x" * 1_500_000)
        *acknowledged, refused = fill(client, chat)
        check_full(client, chat, refused)
        ballast.unlink()
        check_after_full(client, ledger, chat, acknowledged)
        client.server.kill()
        check_after_full(serve(), ledger, chat, acknowledged)


def test_an_answer_that_meets_a_full_disk_is_stored_when_there_is_room_again(serve, data_dir, ledger):
    with small_disk(data_dir, "4m"):
        client = serve()
        chat, request = client.new_chat(), new_request()
        heard = client.ask_streamed(chat, "!words 30 10", request).wait_for_text("w5")
        ballast = data_dir / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert shutil.disk_usage(data_dir).free == 0
        heard.wait_for_text("w30")
        time.sleep(1)
        assert not heard.of_type("final"), "it was stored on a full disk?"
        ballast.unlink()
        assert heard.wait().final["assistant_message"]["content"] == words(30)
        assert client.turn(request) == heard.final
        assert client.ask(chat, "!say on")["status"] == "completed"
        ledger.check()


# Read-only and broken


def test_a_directory_that_may_not_be_written(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o555)
    code, said = refused_start(folder, preexec=like_anybody)
    assert code != 0
    assert str(folder) in said
    assert "Traceback" not in said
    assert list(folder.iterdir()) == []


def test_a_database_that_may_not_be_written(serve, data_dir, ledger):
    client = serve()
    turn = client.ask(client.new_chat(), "!say kept")
    client.server.kill(signal.SIGTERM)
    before = ledger.rows("SELECT * FROM chat_messages")
    for file in data_dir.glob("chat.db*"):
        file.chmod(0o444)
    code, said = refused_start(data_dir, preexec=like_anybody)
    assert code != 0
    assert str(data_dir / "chat.db") in said
    assert "Traceback" not in said
    for file in data_dir.glob("chat.db*"):
        file.chmod(0o644)
    assert ledger.rows("SELECT * FROM chat_messages") == before
    assert serve().turn(turn["turn_id"]) == turn


@contextmanager
def immutable(*files: Path):
    """Read-only even for root and for those who have it open already, as a file system that went read-only is."""
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", *files], capture_output=True).returncode != 0:
        pytest.skip("chattr +i needs root and a file system that knows it")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", *files], check=True)


def test_a_database_that_becomes_read_only(serve, data_dir, ledger):
    client = serve(BUSY_TIMEOUT_MS=2000)
    chat, request = client.new_chat(), new_request()
    client.ask(chat, "!say before")
    with immutable(data_dir / "chat.db", data_dir / "chat.db-wal"):  # not -shm: a mapped file would be a SIGBUS
        response = client.post_turn(chat, "!say no", request)
        check_storage_error(response)
        assert client.server.get("/ready").status_code == 503
        assert [message["content"] for message in client.messages(chat)] == ["!say before", "before"]
    assert client.ask(chat, "!say no", request)["assistant_message"]["content"] == "no"
    ledger.check()


def test_a_file_that_is_no_database(data_dir):
    file = data_dir / "chat.db"
    file.write_bytes(b"This is a letter to my aunt. " * 1000)
    code, said = refused_start(data_dir)
    assert code != 0
    assert str(file) in said
    assert "Traceback" not in said
    assert file.read_bytes() == b"This is a letter to my aunt. " * 1000


def test_a_database_with_damaged_pages(serve, data_dir):
    """Whatever can be read is read, the rest is an error in the shape, and the server stays up."""
    client = serve()
    chats = [client.new_chat() for _ in range(30)]
    for chat in chats:
        client.ask(chat, "!say " + "some words " * 200)
    client.server.kill(signal.SIGTERM)
    file = data_dir / "chat.db"
    with file.open("r+b") as damaged:
        for page in range(30, file.stat().st_size // 4096, 7):
            damaged.seek(page * 4096)
            damaged.write(b"\xa5" * 4096)
    client = serve()
    answers = [client.server.get(f"/api/chat/sessions/{chat}/messages") for chat in chats]
    answers += [client.post_turn(chat, "!say more") for chat in chats[:5]]
    broken = [answer for answer in answers if answer.status_code != 200]
    assert broken, "nothing was damaged"
    for answer in broken:
        assert answer.status_code in {404, 500}
        assert answer.json()["detail"]["code"] in {"STORAGE_ERROR", "SESSION_NOT_FOUND"}
    assert client.server.get("/health").ok
