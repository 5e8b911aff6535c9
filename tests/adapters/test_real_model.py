"""The wire against a model server that nobody here wrote: llama.cpp with a small real model."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from adapters.errors import Aborted
from adapters.providers.openai import OpenAI
from adapters.values import Cancel, Options
from tests.server import ROOT


@pytest.fixture(scope="module")
def provider():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.real_model", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    address = next(line.split()[-1] for line in process.stdout if line.startswith("listening on"))
    threading.Thread(target=process.stdout.read, daemon=True).start()
    yield OpenAI(address, "", "smollm2", read_timeout=60)
    process.kill()
    process.wait()


def ask(provider: OpenAI, question: str, **options):
    return provider.stream([{"role": "user", "content": question}], Options(**options))


def test_an_answer_comes_in_pieces_with_the_servers_own_count(provider: OpenAI):
    deltas = list(ask(provider, "Count from one to ten in words.", max_tokens=24, temperature=0))
    assert sum(bool(delta.text) for delta in deltas) > 5
    usage = deltas[-1].usage
    assert usage is not None
    assert 0 < usage.completion_tokens <= 24
    assert usage.prompt_tokens > 5


def test_what_is_not_latin_arrives_whole(provider: OpenAI):
    text = "".join(delta.text for delta in ask(provider, "请用中文说你好。😀", max_tokens=40, temperature=0))
    assert text
    assert "\ufffd" not in text


def test_an_abort_ends_a_running_answer_at_once(provider: OpenAI):
    cancel = Cancel()
    answer = ask(provider, "Tell a very long story.", max_tokens=1500, cancel=cancel)
    assert next(answer) is not None
    threading.Timer(0.2, cancel.abort).start()
    with pytest.raises(Aborted):
        list(answer)


def test_it_lists_its_models(provider: OpenAI):
    assert len(provider.models()) == 1
