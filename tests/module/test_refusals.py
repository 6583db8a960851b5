"""What the module refuses, with the sentence that says what to do."""

from __future__ import annotations

import os
import re

import pytest

from support.nixos_module import STUB, NixError, evaluate_module
from support.programs import require_program

#: Evaluators to refuse with; nixpkgs' own says the same in the words that are matched.
LIBS = [STUB] + ([f"import {os.environ['GLM53_NIXPKGS_LIB']}/lib"] if os.environ.get("GLM53_NIXPKGS_LIB") else [])

#: Options that do not evaluate: the assignment, below an instance, and what is said.
BAD_OPTIONS = [
    ("settings.kv_dtype = 1;", r"option `services\.glm53-exl3\.instances\.x\.settings\.kv_dtype' does not exist"),
    ("settings.contxt = 1;", r"option `services\.glm53-exl3\.instances\.x\.settings\.contxt' does not exist"),
    ('settings.api-key-file = "/k";', r"option `.*settings\.api-key-file' does not exist"),
    (
        'settings.context = "8192";',
        r"option `.*settings\.context' is not of type `null or integer between 1 and 1048576",
    ),
    ("settings.context = 0;", r"option `.*settings\.context' is not of type `null or integer between 1 and 1048576"),
    ("settings.context = 1048577;", r"option `.*settings\.context' is not of type"),
    ("settings.floor = -1;", r"option `.*settings\.floor' is not of type"),
    (
        "settings.kv-cache-bytes = 4;",
        r"option `.*settings\.kv-cache-bytes' is not of type `null or integer of at least 1048576",
    ),
    ('settings.kv-dtype = "fp4";', r"option `.*settings\.kv-dtype' is not of type `null or one of \"auto\""),
    ('settings.host = "";', r"option `.*settings\.host' is not of type `non-empty string"),
    ("settings.port = 0;", r"option `.*settings\.port' is not of type `integer between 1 and 65535"),
    ("settings.capture-sizes = [ 0 ];", r"option `.*settings\.capture-sizes.*' is not of type"),
    ('settings.kernel = "native-fp4";', r"option `.*settings\.kernel' is not of type `null or one of \"auto\""),
    ("settings.canary = null;", r"option `.*settings\.canary' is not of type `boolean"),
    ("settings.profile = null;", r"option `.*settings\.profile' is not of type `one of \"chat\""),
    ('runtime = "demo";', r"option `.*\.runtime' is not of type `one of \"fork\", \"upstream\""),
    ('cluster.interface = "eth0 eth1";', r"option `.*\.cluster\.interface' is not of type"),
    ('pack = "K3";', r"option `.*\.pack' is not of type"),
    ('pack = { repository = "no-owner"; };', r"option `.*\.pack\.repository' is not of type"),
    ('pack = { repository = "a/b"; commit = "main"; };', r"option `.*\.pack\.commit' is not of type"),
    ("package = 1;", r"option `.*\.package' is not of type `package'"),
]

TWO = 'nodes = 2; tensor-parallel = 2; master-address = "10.0.0.1";'

#: Assertions: the instances, a sentence, and the machine.
BAD_CONFIGURATIONS = [
    (
        'a = { pack = "/a"; autoStart = false; }; b = { pack = "/b"; };',
        r"The instances a and b of services\.glm53-exl3 both listen on port 8000\. Set .*\.b\.settings\.port",
    ),
    (
        f'a = {{ pack = "/a"; settings = {{ {TWO} master-port = 8001; }}; }};'
        'b = { pack = "/b"; autoStart = false; settings.port = 8001; };',
        r"both listen on port 8001",
    ),
    (
        f'a = {{ pack = "/a"; settings = {{ {TWO} port = 29501; }}; }};',
        r"port and master-port both at 29501",
    ),
    (
        'a = { pack = "/a"; settings.host = "0.0.0.0"; };',
        r"instances\.a\.settings\.host is \"0\.0\.0\.0\" without an API key: whoever reaches port 8000 ",
    ),
    ("a = { };", r"instances\.a\.pack is not set\. Set it to the folder of a pack, a name such as \"K2\""),
    (
        'a = { pack = "/a"; }; b = { pack = "/b"; settings.port = 8001; };',
        r"The instances a, b of services\.glm53-exl3 are all started at boot, and with exclusiveGpu only one may run",
    ),
    (
        'a = { pack = "/a"; settings.node-rank = 1; };',
        r"settings\.node-rank is 1, and settings\.nodes is 1\. Machines are counted from 0 to 0",
    ),
    (
        'a = { pack = "/a"; settings = { nodes = 2; tensor-parallel = 2; }; };',
        r"nodes is 2 without settings\.master-address",
    ),
    (
        'a = { pack = "/a"; settings = { nodes = 2; tensor-parallel = 3; master-address = "10.0.0.1"; }; };',
        r"tensor-parallel is 3, which 2 nodes cannot share evenly",
    ),
    (
        'a = { pack = "/a"; settings.kernel = "reference"; };',
        r"settings\.kernel is \"reference\", which no CUDA graph can hold",
    ),
    (
        'a = { pack = "/a"; gpu = false; settings.kernel = "exllamav3"; };',
        r"settings\.kernel is \"exllamav3\", which runs on a GPU, and gpu is false",
    ),
    ('a = { pack = "/a"; cluster.interface = "eth0"; };', r"cluster\.interface is \"eth0\" with one node"),
    ('a = { pack = "/a"; apiKeyFile = "/nix/store/x-key"; };', r"apiKeyFile is in /nix/store, which everybody"),
    ('a = { pack = "/a"; apiKeyFile = ./README.md; };', r"apiKeyFile is in /nix/store, which everybody"),
    ('a = { pack = "K2"; tokenFile = "/nix/store/x-token"; };', r"tokenFile is in /nix/store, which everybody"),
    ('"A b" = { pack = "/a"; };', r"The instance \"A b\" .* Use small letters, digits and dashes"),
    ('fetch-a = { pack = "/a"; };', r"The instance \"fetch-a\" .* do not begin with \"fetch-\""),
]


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-instantiate")


def instance(assignments: str) -> str:
    pack = "" if "pack = " in assignments else 'pack = "/x";'
    x = f"instances.x = {{ {pack} {assignments} }};"
    return f"{{ services.glm53-exl3 = {{ enable = true; {x} }}; }}"


def instances(text: str, more: str = "") -> str:
    return f"{{ services.glm53-exl3 = {{ enable = true; instances = {{ {text} }}; {more} }}; }}"


@pytest.mark.parametrize("lib", LIBS)
@pytest.mark.parametrize(("assignment", "said"), BAD_OPTIONS)
def test_a_wrong_option_is_named(assignment: str, said: str, lib: str) -> None:
    with pytest.raises(NixError) as caught:
        evaluate_module(instance(assignment), "units", lib)
    assert re.search(said, re.sub(r"\x1b\[[0-9;]*m", "", str(caught.value))), caught.value


@pytest.mark.parametrize(("text", "said"), BAD_CONFIGURATIONS)
def test_a_wrong_configuration_is_refused_with_a_sentence(text: str, said: str) -> None:
    if "./README.md" in text:
        # A path that a flake would have copied to the store.
        text = text.replace("./README.md", "/nix/store/x-source/README.md")
    (message,) = evaluate_module(instances(text), "failed")
    assert re.search(said, message), message
    assert message.endswith((".", '"fetch-".', '{ repository = "owner/name"; }.'))


def test_the_gpu_needs_the_machine_that_its_runtimes_are_built_for() -> None:
    (message,) = evaluate_module(instances('a = { pack = "/a"; };'), "failed", system="x86_64-linux")
    assert "built for aarch64-linux, and this machine is x86_64-linux" in message
    assert evaluate_module(instances('a = { pack = "/a"; gpu = false; };'), "failed", system="x86_64-linux") == []


def test_instances_beside_each_other_have_to_fit_into_memory() -> None:
    both = 'a = { pack = "/a"; %s }; b = { pack = "/b"; settings.port = 8001; %s };'
    together = "exclusiveGpu = false;"
    (message,) = evaluate_module(
        instances(both % ("plannedMemoryGiB = 60;", "plannedMemoryGiB = 53.5;"), together), "failed"
    )
    assert "plan 113.5 GiB together, and services.glm53-exl3.memoryGiB is 113." in message
    assert (
        evaluate_module(instances(both % ("plannedMemoryGiB = 60;", "plannedMemoryGiB = 53;"), together), "failed")
        == []
    )
    (message,) = evaluate_module(instances(both % ("plannedMemoryGiB = 60;", ""), together), "failed")
    assert "instances.b.plannedMemoryGiB is not set" in message


def test_an_open_server_can_be_accepted() -> None:
    assert (
        evaluate_module(
            instances('a = { pack = "/a"; settings = { host = "0.0.0.0"; allow-open = true; }; };'), "failed"
        )
        == []
    )


@pytest.mark.parametrize(
    "settings", ['kernel = "exllamav3";', 'kernel = "auto";', 'kernel = "reference"; enforce-eager = true;']
)
def test_a_backend_that_can_run_is_accepted(settings: str) -> None:
    assert evaluate_module(instances(f'a = {{ pack = "/a"; settings = {{ {settings} }}; }};'), "failed") == []


def test_without_the_packages_of_the_flake_the_overlay_is_named() -> None:
    with pytest.raises(NixError, match=r"Import nixosModules\.default of the flake, add its overlay"):
        evaluate_module(instance(""), "units", packages=False)


def test_gpu_without_the_driver_is_refused_with_the_lines_to_add() -> None:
    machine = 'hardware.graphics.enable = false; services.glm53-exl3 = { enable = true; instances.a.pack = "/a"; };'
    failed = evaluate_module(f"{{ {machine} }}", "failed")
    assert len(failed) == 1
    assert "configured without its driver" in failed[0]
    assert "hardware.graphics.enable = true" in failed[0]
    assert 'services.xserver.videoDrivers = [ "nvidia" ]' in failed[0]
