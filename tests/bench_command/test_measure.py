"""What is known before anything is measured."""

from __future__ import annotations

import pytest

from glm53_exl3.bench.endpoint import parse_endpoint
from glm53_exl3.bench.measure import Bench, Load
from glm53_exl3.bench.prompts import Questions
from glm53_exl3.probes.host import LiveHost
from support.openai_server import Behaviour, openai_server

LOAD = Load(
    concurrency=(1,),
    prompt_tokens=1,
    max_tokens=4,
    questions=Questions(("a",)),
    runs=1,
    warm_up_runs=0,
    requests=None,
    seed=0,
    leave_share=0.0,
    timeout_seconds=20,
)


class Busy(LiveHost):
    """A machine of two cores."""

    def __init__(self, load: str) -> None:
        self.files = {"/proc/loadavg": f"{load} 1.00 1.00 1/1 1\n", "/proc/cpuinfo": "processor : 0\nprocessor : 1\n"}

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)


@pytest.mark.parametrize(("load", "busy"), [("2.00", False), ("2.01", True)])
def test_a_busy_machine_is_said_to_be_busy(load: str, busy: bool) -> None:
    with openai_server(Behaviour()) as url:
        bench = Bench(parse_endpoint(url), LOAD, host=Busy(load))
        assert bench.doubts[0].startswith("flags and environment of the server are not known: ")
        assert ("this machine is busy (load 2.01 on 2 cores), so the figures will spread" in bench.doubts) is busy
        receipt = bench.run(lambda plan, run: None, lambda level: None)
    assert receipt.facts["load_average"] == float(load)
    assert receipt.facts["url"] == url


def test_a_server_elsewhere_is_not_looked_for_here() -> None:
    # 0.0.0.0 leads to this machine but is not its loopback, as an address of the network is not.
    with openai_server(Behaviour()) as url:
        bench = Bench(parse_endpoint(url.replace("127.0.0.1", "0.0.0.0")), LOAD)
    assert bench.server.process == "0.0.0.0 is not this machine"
    assert bench.conditions["machine"]["runs"] == "client"
