"""The estimate beside what cl100k counts; its counts were made once, with a tokenizer that bundles its tables."""

from __future__ import annotations

import pytest

from adapters.values import Usage
from models.tokens import estimate, usage

COUNTED = {
    "The printer on the second floor stopped again this morning. Restarting the spooler helped for an hour, then the "
    "queue filled up with two hundred jobs that nobody could delete without administrator rights.": 39,
    "会议改到下周三下午三点，地点还是三楼的小会议室。请大家提前把预算表填好，没有填完的部分"
    "可以先空着，我们开会的时候再一起讨论。": 65,
    "Please summarise the attached report（季度报告）in three bullet points, then translate 每一条 into Chinese. "
    "重跑gen-itgc后，检查 exit code 是否为 0。": 46,
    "我们昨天把 Kubernetes 集群从 1.27 升级到 1.30，升级之后有两个 Pod 一直处于 "
    "CrashLoopBackOff 状态，日志显示 "
    '"permission denied"。请帮我分析原因。': 64,
    'def total(rows):\n    return sum(row["price"] * row.get("count", 1) for row in rows)\n': 25,
}


@pytest.mark.parametrize(("text", "counted"), COUNTED.items())
def test_the_estimate_is_near_the_count(text: str, counted: int):
    assert estimate(text) == pytest.approx(counted, rel=0.3)


def test_over_mixed_text_it_is_within_fifteen_per_cent():
    assert sum(map(estimate, COUNTED)) == pytest.approx(sum(COUNTED.values()), rel=0.15)


def test_nothing_is_no_token_and_something_at_least_one():
    assert estimate("") == 0
    assert estimate(".") == 1


def test_the_servers_own_count_goes_before_ours():
    assert usage(Usage(7, 3), "one two three four five")["completion_tokens"] == 3
    assert usage(None, "one two three four five") == {
        "prompt_tokens": None,
        "completion_tokens": 5,
        "total_tokens": None,
        "estimated": True,
    }
