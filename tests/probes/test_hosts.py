"""Every check on a recorded healthy Spark, and on one machine broken in each known way."""

from __future__ import annotations

from typing import Any

import pytest

from glm53_exl3.probes import catalogue, environment, gpu, system, toolchain
from glm53_exl3.probes.preflight import PreflightOptions, run_preflight
from glm53_exl3.probes.result import Check, CheckResult
from support.hosts import RecordedHost, broken_records, healthy_record, merged

PYTHON = "/home/nvidia/venv/bin/python"
BROKEN = broken_records()
#: Failed probes are named beside the checks.
PROBES = {"probe-timeout", "probe-crash"}


def results(record: Any, **options: Any) -> dict[str, CheckResult]:
    """Results of a full run on a recorded host by id, without a pack."""
    report = run_preflight(PreflightOptions(python=PYTHON, **options), RecordedHost(record))
    return {result.id: result for result in report.results if result.scope != "pack"}


def host_checks() -> dict[str, Check]:
    modules = (environment, gpu, system, toolchain)
    fast = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    return {check.id: check for check in (*fast, *catalogue.SLOW)}


def test_everything_is_ok_on_a_healthy_spark() -> None:
    found = results(healthy_record())
    assert {id: result.status for id, result in found.items()} == dict.fromkeys(host_checks(), "ok")
    assert all(result.measured and not result.hint for result in found.values())


def test_healthy_spark_is_measured() -> None:
    found = {id: result.measured for id, result in results(healthy_record()).items()}
    assert found["os"] == "Ubuntu 24.04.3 LTS, Linux 6.14.0-1013-nvidia"
    assert found["gpu"] == "NVIDIA GB10 (12.1)"
    assert found["gpu-driver"] == "580.95.05"
    assert found["gpu-processes"] == "2, all below 1.0 GiB"
    assert found["memory"] == "121.7 GiB, 115.8 GiB available"
    assert found["page-cache"] == "3.5 GiB cached, 112.7 GiB free for CUDA"
    assert found["nvcc"] == "13.0 (/usr/local/cuda-13.0/bin/nvcc)"
    assert found["host-compiler"] == "13.3.0 (/usr/bin/g++)"
    assert found["vllm"] == "0.28.1.dev359+g878631b60, revision 878631b60"
    assert found["clock"] == "0 s ahead of the Hub"
    assert found["moe-extension"].endswith("glm53_exl3_exllamav3_ext.so, exl3_moe takes 30 arguments")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_host_is_named_and_nothing_else(name: str) -> None:
    case = BROKEN[name]
    found = results(merged(healthy_record(), case["delta"]), **case.get("options", {}))
    expected = case["expect"]
    absent = {id for id, (status, _, _) in expected.items() if status == "absent"}
    assert absent.isdisjoint(found)
    other = {id for id, result in found.items() if result.status != "ok"}
    assert other == set(expected) - absent
    for id in other:
        status, measured, hint = expected[id]
        assert found[id].status == status
        assert measured in found[id].measured
        assert hint in found[id].hint
        assert bool(found[id].hint) == (status in {"fail", "warn"})


def test_every_check_is_broken_by_some_record() -> None:
    caught = {
        id for case in BROKEN.values() for id, (status, _, _) in case["expect"].items() if status in {"fail", "warn"}
    }
    # `env-offline` judges the pack too and is tested with it.
    assert caught - PROBES == set(host_checks()) - {environment.OFFLINE.id}


def test_delta_of_a_merge_patch() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": None, "e": 4}}) == {"a": {"c": 2, "e": 4}, "d": 3}


def test_token_is_never_shown() -> None:
    record = merged(healthy_record(), {"variables": {"HF_TOKEN": "hf_secret"}, "hub_identity": {"source": "HF_TOKEN"}})
    report = run_preflight(PreflightOptions(python=PYTHON), RecordedHost(record))
    assert "hf_secret" not in report.render()
    assert "hf_secret" not in str(report.to_json())


def test_fast_asks_neither_runtime_nor_hub() -> None:
    record = healthy_record()
    del record["runtime"], record["hub_identity"], record["head"]
    found = results(record, fast=True)
    assert {id for id, result in found.items() if result.status == "ok"} == {
        *("arch", "os", "python", "gpu", "gpu-driver", "gpu-processes", "memory", "page-cache", "swap", "disk", "port"),
        *("open-files", "address-space", "nvcc", "cuda-home", "host-compiler", "ninja", "triton-libcuda"),
        *("flashinfer-jit-cache", "extension-locks", "env-attention-backend", "env-flashinfer-check"),
        *("env-other-plugin", "env-vllm-plugins", "env-allocator", "env-multi-node", "env-cuda-arch"),
        *("env-visible-gpus", "env-offline"),
    }
    assert {result.measured for result in found.values() if result.status == "skip"} == {"left out by --fast"}
    assert set(found) == set(host_checks())
