"""`make bench`: seeds databases, measures, prints medians, p95 and ratios of one run on this machine."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import streams
from bench.requests import Client, Timing, deep_cursor, timing, turn
from bench.seed import COMMON, RARE, fill
from models.base import sqlite_module
from tests.server import ROOT, Server

SIZES = {1_000: 20, 10_000: 20, 100_000: 4}
STREAMS = [(50, 40, 20.0), (200, 40, 20.0), (500, 40, 20.0), (1000, 50, 5.0), (1000, 100, 20.0)]
RAW_LIST = (
    "SELECT c.*, s.message_count, s.preview FROM chat_sessions c LEFT JOIN chat_summaries s ON s.chat_id = c.id"
    " WHERE c.deleted_at IS NULL ORDER BY c.updated_at DESC, c.id DESC LIMIT 21"
)
RAW_OPEN = "SELECT * FROM chat_messages WHERE session_id = ? ORDER BY created_at DESC, id DESC LIMIT 51"
RAW_SEARCH = "SELECT session_id FROM chat_messages WHERE content LIKE ? LIMIT 20"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of chats, with commas")
    parser.add_argument("--only", choices=["requests", "streams", "start"], help="one part")
    chosen = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite_module.sqlite_version}, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder, model_server() as model:
        if chosen.only in (None, "start"):
            measure_start(Path(folder))
        if chosen.only in (None, "requests"):
            for chats in map(int, chosen.sizes.split(",")):
                measure_requests(Path(folder) / str(chats), chats, model)
        if chosen.only in (None, "streams"):
            measure_streams(Path(folder), model)


def measure_start(folder: Path) -> None:
    print("\ncold start to first page, memory idle")
    for kind, command in (("bare", [sys.executable, "-m", "bench.bare"]), ("holdfast", [sys.executable, "app.py"])):
        seconds = []
        for number in range(5):
            began = time.perf_counter()
            with Server(folder / f"start-{kind}-{number}", command) as server:
                server.get("/")
                seconds.append(time.perf_counter() - began)
                memory = streams.memory(server)
        print(f"  {kind:9} {min(seconds):.2f}–{max(seconds):.2f} s, {memory:.0f} MB")


def measure_requests(data_dir: Path, chats: int, model: str) -> None:
    began = time.perf_counter()
    long_chat = fill(data_dir, chats, SIZES.get(chats, 20))
    seconds = time.perf_counter() - began
    print(f"\n{chats:,} chats × {SIZES.get(chats, 20)} messages and one of 2,000 (filled in {seconds:.0f} s)")
    print(f"  {'':34} {'median':>8} {'p95 ms':>8} {'× bare':>7} {'× raw':>7}")
    raw = sqlite_module.connect(str(data_dir / "chat.db"))
    with (
        Server(data_dir / "bare", [sys.executable, "-m", "bench.bare"]) as bare,
        Server(data_dir, LLM_BASE_URL=model, LLM_MODEL="scripted") as server,
    ):
        route = Client(bare.url)
        floor = timing(lambda: route.ask("GET", "/"))
        show("bare Flask route", floor, floor)
        client = Client(server.url)
        reads(client, floor, raw, long_chat)
        writes(client, floor)
        turns(client, floor, long_chat, asked_directly(model))
    raw.close()


def reads(client: Client, floor: Timing, raw: Any, long_chat: str) -> None:
    listing = "/api/chat/sessions?limit=20"
    raw_list = timing(lambda: raw.execute(RAW_LIST).fetchall())
    show("list, first page", timing(lambda: client.json("GET", listing)), floor, raw_list)
    for depth in (50, 500):
        cursor = deep_cursor(client, depth)
        show(
            f"list, page {depth}", timing(lambda c=cursor: client.json("GET", f"{listing}&cursor={c}")), floor, raw_list
        )
    short_chat = client.json("GET", listing)["sessions"][0]["id"]
    for name, chat in (("open a short chat", short_chat), ("open the chat of 2,000 messages", long_chat)):
        raw_open = timing(lambda c=chat: raw.execute(RAW_OPEN, (c,)).fetchall())
        show(name, timing(lambda c=chat: client.json("GET", f"/api/chat/sessions/{c}/messages")), floor, raw_open)
    for name, q in (
        ("rare", RARE),
        ("common", COMMON),
        ("Chinese", "备份"),
        ("one character", "网"),
        ("miss", "qqzzyy"),
    ):
        raw_search = timing(lambda q=q: raw.execute(RAW_SEARCH, (f"%{q}%",)).fetchall(), 5)
        found = timing(lambda q=q: client.json("GET", f"/api/chat/search?q={quote(q)}"), 50)
        show(f"search, {name}", found, floor, raw_search)


def writes(client: Client, floor: Timing) -> None:
    ids = [row["id"] for row in client.json("GET", "/api/chat/sessions?limit=100")["sessions"]]
    rename, remove = iter(ids), iter(ids)
    show(
        "rename", timing(lambda: client.json("PATCH", f"/api/chat/sessions/{next(rename)}", {"title": "x"}), 90), floor
    )
    show("delete", timing(lambda: client.json("DELETE", f"/api/chat/sessions/{next(remove)}"), 90), floor)


def turns(client: Client, floor: Timing, long_chat: str, direct: Timing) -> None:
    """The overhead: a turn's time less that of the same question put to the model server directly."""
    show("the model server, asked directly", direct, floor)
    chat = client.json("POST", "/api/chat/sessions", {})["id"]
    for name, target in (("", chat), (", in the long chat", long_chat)):
        plain = timing(lambda c=target: client.json("POST", *turn(c)), 100)
        show(f"turn overhead{name}", Timing(plain.median - direct.median, plain.p95 - direct.median), floor)
        word = timing(lambda c=target: client.first_delta(turn(c)[0] + ":stream", turn(c)[1]), 100)
        show(f"first streamed word{name}", Timing(word.median - direct.median, word.p95 - direct.median), floor)


def asked_directly(model: str) -> Timing:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "!words 1"}], "stream": True}
    client = Client(model)
    return timing(lambda: client.ask("POST", "/v1/chat/completions", body), 100)


@contextmanager
def model_server() -> Iterator[str]:
    """The scripted one, in a process of its own."""
    command = [sys.executable, "-m", "tests.model_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def measure_streams(folder: Path, model: str) -> None:
    print("\nstreams at once, client and model server on the same cores")
    with Server(folder / "streams", LLM_BASE_URL=model, LLM_MODEL="scripted") as server:
        for count, words, per_second in STREAMS:
            print("  " + streams.describe(streams.measure(server, count, words, per_second), per_second), flush=True)


def show(name: str, measured: Timing, floor: Timing, raw: Timing | None = None) -> None:
    ratio = f"{measured.median / raw.median:7.1f}" if raw else ""
    print(f"  {name:34} {measured} {measured.median / floor.median:7.1f} {ratio}", flush=True)


main()
