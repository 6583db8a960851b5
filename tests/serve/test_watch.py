"""Memory floor and watchdog with given facts."""

from __future__ import annotations

from glm53_exl3.probes.memory import HostMemory
from glm53_exl3.serve.watch import EngineState, LostMachine, Watchdog, below_floor, parse_metrics

GIB = 1 << 30
METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 20.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1520.0
process_resident_memory_bytes 5.0
"""


def test_metrics_are_summed_over_engines() -> None:
    assert parse_metrics(METRICS) == EngineState(running=4, tokens=3040)


def test_metrics_without_what_is_needed_are_no_answer() -> None:
    assert parse_metrics("") is None
    assert parse_metrics("vllm:num_requests_running 1.0\n") is None
    assert parse_metrics("<html>") is None


def test_prefill_counts_as_progress() -> None:
    watchdog = Watchdog(10, now=0)
    assert watchdog.check(EngineState(1, 100), 9) is None
    assert watchdog.check(EngineState(1, 2148), 18) is None
    assert watchdog.check(EngineState(1, 2148), 28) is None
    assert watchdog.check(EngineState(1, 2148), 29) == "1 requests are running and no token was made for 11 s"


def test_idle_engines_may_be_silent_for_ever_and_get_the_whole_time_when_a_request_comes() -> None:
    watchdog = Watchdog(10, now=0)
    for now in range(0, 1000, 5):
        assert watchdog.check(EngineState(0, 7), now) is None
    assert watchdog.check(EngineState(1, 7), 1004) is None
    assert watchdog.check(EngineState(1, 7), 1006) is not None


def test_a_server_that_does_not_answer_is_given_the_same_time() -> None:
    watchdog = Watchdog(10, now=0)
    assert watchdog.check(None, 10) is None
    assert watchdog.check(None, 11) == "the server has not answered for 11 s"


def test_the_floor_looks_at_available_memory_and_not_at_the_page_cache() -> None:
    cached = HostMemory(128 * GIB, 1 * GIB, 20 * GIB, 19 * GIB, 0, 0)
    assert below_floor(cached, 2 * GIB) is None
    low = HostMemory(128 * GIB, 1 * GIB, 1 * GIB, 0, 0, 0)
    assert below_floor(low, 2 * GIB) == "the host has 1.00 GiB left, less than the floor of 2.00 GiB"
    assert below_floor(low, 1 * GIB) is None


def test_a_machine_that_never_came_is_waited_for() -> None:
    lost = LostMachine(15)
    assert [lost.check(False, now) for now in (0, 100, 10_000)] == [None, None, None]


def test_a_machine_that_went_is_lost_after_the_limit_and_not_when_it_comes_back() -> None:
    lost = LostMachine(15)
    assert lost.check(True, 100) is None
    assert lost.check(False, 115) is None
    assert lost.check(True, 120) is None
    assert lost.check(False, 135) is None
    reason = lost.check(False, 136)
    assert reason is not None
    assert "gone for 16 s" in reason
