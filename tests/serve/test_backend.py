"""Which backend will run the experts, and what is refused about it before the weights are loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from glm53_exl3 import __version__
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels import settings as kernel_settings
from glm53_exl3.kernels.settings import Backend, KernelSettings
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.probes.interpreter import RuntimeFacts
from glm53_exl3.serve import backend
from glm53_exl3.serve.settings import setting_spec
from support.hosts import RecordedHost, healthy_record, merged
from support.packs import PackRecipe, write_json, write_pack
from support.serving import command_of, settings_of

AUTO, NATIVE, EXLLAMAV3, REFERENCE = (KernelSettings(name) for name in get_args(Backend))
EAGER = {"enforce_eager": True}
SPARK = RecordedHost(healthy_record())
BOTH = frozenset({"native", "exllamav3"})


def missing(module: str) -> dict[str, Any]:
    return {"value": None, "error": f"ModuleNotFoundError: No module named '{module}'"}


NO_EXLLAMAV3 = {"extension": missing("glm53_exl3_exllamav3_ext")}
NO_NATIVE = {"native": missing("glm53_exl3_kernels")}


def without_gpu() -> RecordedHost:
    record = healthy_record()
    record["programs"] = [path for path in record["programs"] if not path.endswith("/nvidia-smi")]
    return RecordedHost(record)


def lacking(runtime: dict[str, Any], backends: frozenset[str] = BOTH) -> tuple[dict[str, Any], RuntimeFacts]:
    """What a recorded Spark with these facts lacks, and the facts."""
    facts = backend.extension_facts(RecordedHost(merged(healthy_record(), {"runtime": runtime})))
    return backend.lacking(backend.extension_results(facts), backends), facts


def test_choices_are_those_of_the_plugin() -> None:
    assert setting_spec("kernel").choices == get_args(Backend)


def test_setting_goes_before_the_variable_and_reaches_vllm_by_it() -> None:
    inherited = {"GLM53_EXL3_KERNEL": "reference", "GLM53_EXL3_DECODE": "call"}
    unset, chosen = settings_of(), settings_of(kernel="exllamav3")
    assert backend.chosen_kernels(unset, {}) == AUTO
    assert backend.chosen_kernels(unset, inherited) == KernelSettings("reference", "call")
    assert backend.chosen_kernels(chosen, inherited) == KernelSettings("exllamav3", "call")
    for settings, passed in ((unset, "reference"), (chosen, "exllamav3")):
        whole = command_of(settings, inherited=inherited).whole_environment(inherited)
        assert whole["GLM53_EXL3_KERNEL"] == passed
        # What is checked here is what the plugin will read there.
        assert kernel_settings.kernel_settings(whole) == backend.chosen_kernels(settings, inherited)
    assert "GLM53_EXL3_KERNEL" not in command_of(unset).environment


def test_variable_with_another_value_is_refused_before_the_start() -> None:
    with pytest.raises(KernelError, match="GLM53_EXL3_KERNEL=exllama") as caught:
        backend.chosen_kernels(settings_of(), {"GLM53_EXL3_KERNEL": "exllama"})
    assert caught.value.id == "setting-value"


@pytest.mark.parametrize(
    ("kernels", "backends"), [(AUTO, BOTH), (NATIVE, frozenset({"native"})), (EXLLAMAV3, frozenset({"exllamav3"}))]
)
@pytest.mark.parametrize("flags", [{}, EAGER])
def test_gpu_runs_kernels_with_graphs_and_without(
    kernels: KernelSettings, backends: frozenset[str], flags: dict[str, bool]
) -> None:
    assert backend.require_runnable(settings_of(**flags), kernels, SPARK) == backends


@pytest.mark.parametrize(
    ("flags", "found", "hint"),
    [
        ({"kernel": "reference"}, "--kernel reference", "leave --kernel out"),
        ({}, "GLM53_EXL3_KERNEL=reference", "unset GLM53_EXL3_KERNEL"),
    ],
)
def test_graphs_of_the_reference_are_refused_with_what_chose_it(flags: dict[str, Any], found: str, hint: str) -> None:
    with pytest.raises(KernelError, match="no CUDA graph can hold it") as caught:
        backend.require_runnable(settings_of(**flags), REFERENCE, SPARK)
    assert (caught.value.id, caught.value.found) == ("reference-graphs", found)
    assert caught.value.hint.startswith(hint)
    assert "--enforce-eager with GLM53_EXL3_DECODE=call" in caught.value.hint
    assert not backend.require_runnable(settings_of(**flags, **EAGER), REFERENCE, SPARK)


@pytest.mark.parametrize("kernels", [NATIVE, EXLLAMAV3])
def test_machine_without_a_gpu_runs_the_reference_unless_kernels_are_named(kernels: KernelSettings) -> None:
    for other in (AUTO, REFERENCE):
        assert not backend.require_runnable(settings_of(), other, without_gpu())
    with pytest.raises(KernelError, match=f"the {kernels.backend} backend is asked for") as caught:
        backend.require_runnable(settings_of(kernel=kernels.backend), kernels, without_gpu())
    assert (caught.value.id, caught.value.found) == ("backend-device", "nvidia-smi not found")
    assert caught.value.hint == "leave --kernel out"


def test_only_graphs_and_a_name_leave_no_other_backend() -> None:
    assert backend.must_run_compiled(settings_of(), AUTO)
    assert not backend.must_run_compiled(settings_of(**EAGER), AUTO)
    assert backend.must_run_compiled(settings_of(**EAGER), EXLLAMAV3)
    assert backend.must_run_compiled(settings_of(**EAGER), NATIVE)
    assert not backend.must_run_compiled(settings_of(**EAGER), REFERENCE)


def test_right_extensions_lack_nothing() -> None:
    assert lacking({})[0] == {}
    assert backend.without(AUTO, ()) == AUTO


@pytest.mark.parametrize(
    ("runtime", "backends", "forbidden"),
    [
        (NO_EXLLAMAV3, {"exllamav3"}, {"exllamav3": True, "native": False, "auto": False}),
        (NO_NATIVE, {"native"}, {"exllamav3": False, "native": True, "auto": False}),
        (NO_NATIVE | NO_EXLLAMAV3, BOTH, {"exllamav3": True, "native": True, "auto": True}),
    ],
)
def test_one_extension_is_enough_for_auto_and_each_is_needed_by_its_name(
    runtime: dict[str, Any], backends: set[str], forbidden: dict[Backend, bool]
) -> None:
    assert set(lacking(runtime)[0]) == backends
    for name, refused in forbidden.items():
        kernels = KernelSettings(name)
        lacks = lacking(runtime, backend.compiled_choice(kernels))[0]
        assert bool(backend.forbidding(lacks, settings_of(), kernels)) == refused
        assert bool(backend.forbidding(lacks, settings_of(**EAGER), kernels)) == (refused and name != "auto")
    left = BOTH - backends
    assert backend.without(AUTO, backends).backend == (next(iter(left)) if left else "reference")


def test_extension_that_kills_whoever_imports_it_forbids_auto_beside_the_other_too() -> None:
    dying = {"extension": {"value": None, "error": "ended the interpreter (signal 11)", "hung": True}}
    lacks = lacking(dying)[0]
    assert backend.forbidding(lacks, settings_of(), AUTO) == {"exllamav3"}
    assert lacking(dying, frozenset({"native"}))[0] == {}


@pytest.mark.parametrize(
    ("name", "runtime", "id", "what"),
    [
        ("exllamav3", NO_EXLLAMAV3, "extension-missing", "glm53_exl3_exllamav3_ext is not installed"),
        ("exllamav3", {"extension": {"value": {"missing": ["run_layer"]}}}, "extension-other", "lacks run_layer"),
        ("exllamav3", {"extension": {"value": {"arity": 35}}}, "extension-other", "exl3_moe takes 35 arguments"),
        ("exllamav3", {"extension": {"value": {"arch_list": "9.0a"}}}, "extension-other", "none for this GPU of 12.1"),
        ("native", NO_NATIVE, "extension-missing", "glm53_exl3_kernels is not installed"),
        ("native", {"native": {"value": {"version": "0.0.9"}}}, "extension-other", "is of version 0.0.9"),
        ("native", {"native": {"value": {"arch_list": "9.0a"}}}, "extension-other", "none for this GPU of 12.1"),
    ],
)
def test_extension_that_cannot_run_is_named_as_the_plugin_would(
    name: str, runtime: dict[str, Any], id: str, what: str
) -> None:
    lacks, facts = lacking(runtime)
    fault = backend.extension_fault(name, lacks[name], facts)
    assert fault.id == id
    assert what in fault.what
    assert ("exllamav3 1.4.4" if name == "exllamav3" else f"glm53-exl3 {__version__}") in fault.expected
    assert "build it" in fault.hint
    assert "--kernel reference --enforce-eager" in fault.hint


def inventory_of(folder: Path, codebook: str, **config: int) -> Inventory:
    stated = {"quant_method": "exl3", "bits": 2, "codebook": codebook, "layer_bits": {"2": 3}}
    pack = write_pack(folder, PackRecipe(codebook=codebook, stated=stated))
    write_json(pack / "config.json", json.loads((pack / "config.json").read_text()) | config)
    inventory = read_inventory(pack)
    inventory.require_sound()
    return inventory


@pytest.mark.parametrize("codebook", ["mcg", "mul1"])
@pytest.mark.parametrize("runs", [AUTO, NATIVE, EXLLAMAV3])
def test_pack_with_kernels_is_accepted(tmp_path: Path, codebook: str, runs: KernelSettings) -> None:
    backend.require_layers(settings_of(), AUTO, runs, inventory_of(tmp_path, codebook))


def test_3inst_is_accepted_by_its_headers_where_native_kernels_are(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "3inst")
    for kernels, runs in ((AUTO, AUTO), (AUTO, NATIVE), (NATIVE, NATIVE)):
        backend.require_layers(settings_of(), kernels, runs, inventory)


def test_3inst_is_refused_where_graphs_or_a_name_leave_only_exllamav3(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "3inst")
    named = settings_of(kernel="exllamav3", **EAGER)
    cases = ((settings_of(), AUTO, "install this project's own kernels"), (named, EXLLAMAV3, "leave --kernel out"))
    for settings, kernels, hint in cases:
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings, kernels, EXLLAMAV3, inventory)
        assert caught.value.id == "exllamav3-codebook"
        assert caught.value.what == "model.layers.1.mlp.experts has the codebook 3inst, and 1 more layer"
        assert caught.value.hint.startswith(hint)
        assert "--kernel reference --enforce-eager" in caught.value.hint
    backend.require_layers(settings_of(**EAGER), AUTO, EXLLAMAV3, inventory)


def test_experts_of_different_bits_are_refused_where_graphs_or_a_name_leave_only_exllamav3(tmp_path: Path) -> None:
    recipe = PackRecipe(bits={1: [2, 3, 2, 2]}, stated={"quant_method": "exl3"})
    inventory = read_inventory(write_pack(tmp_path, recipe))
    inventory.require_sound()
    for settings, kernels in ((settings_of(), AUTO), (settings_of(kernel="exllamav3", **EAGER), EXLLAMAV3)):
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings, kernels, EXLLAMAV3, inventory)
        assert caught.value.id == "exllamav3-bits"
        assert caught.value.what == "model.layers.1.mlp.experts has experts of different bits"
    for runs in (AUTO, KernelSettings("native")):
        backend.require_layers(settings_of(), AUTO, runs, inventory)
    backend.require_layers(settings_of(**EAGER), AUTO, EXLLAMAV3, inventory)


def test_several_codebooks_in_a_layer_are_refused_where_graphs_leave_no_other(tmp_path: Path) -> None:
    whole = inventory_of(tmp_path, "mcg")
    layer = whole.layers["model.layers.1.mlp.experts"]
    up = replace(layer.projections["up_proj"], codebook="mul1")
    mixed = replace(layer, projections={**layer.projections, "up_proj": up})
    inventory = replace(whole, layers={**whole.layers, layer.block: mixed})
    for runs, id in ((AUTO, "native-codebook"), (EXLLAMAV3, "exllamav3-codebook")):
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings_of(), AUTO, runs, inventory)
        assert (caught.value.id, caught.value.what) == (id, f"{layer.block} has the codebook mcg and mul1")
    backend.require_layers(settings_of(**EAGER), AUTO, AUTO, inventory)


def test_only_layers_that_will_be_loaded_count(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "3inst", num_hidden_layers=2, num_nextn_predict_layers=1)
    for speculation, more in (("none", ""), ("mtp", ", and 1 more layer")):
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings_of(speculation=speculation), AUTO, EXLLAMAV3, inventory)
        assert caught.value.what == f"model.layers.1.mlp.experts has the codebook 3inst{more}"


def test_more_experts_a_token_than_exllamav3_takes_are_refused_where_native_kernels_are_not(tmp_path: Path) -> None:
    many = inventory_of(tmp_path / "33", "mcg", num_experts_per_tok=33)
    backend.require_layers(settings_of(), AUTO, EXLLAMAV3, inventory_of(tmp_path / "32", "mcg", num_experts_per_tok=32))
    backend.require_layers(settings_of(), AUTO, AUTO, many)
    backend.require_layers(settings_of(), NATIVE, NATIVE, many)
    for kernels, hint in ((AUTO, "install this project's own kernels"), (EXLLAMAV3, "unset GLM53_EXL3_KERNEL")):
        with pytest.raises(KernelError, match="33 experts a token") as caught:
            backend.require_layers(settings_of(**EAGER), kernels, EXLLAMAV3, many)
        assert caught.value.id == "exllamav3-top-k"
        assert caught.value.hint.startswith(hint)
