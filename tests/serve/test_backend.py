"""Which backend will run the experts, and what is refused about it before the weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels import settings as kernel_settings
from glm53_exl3.kernels.settings import Backend, KernelSettings
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.serve import backend
from glm53_exl3.serve.settings import setting_spec
from support.hosts import RecordedHost, healthy_record, merged
from support.packs import PackRecipe, write_json, write_pack
from support.serving import command_of, settings_of

AUTO, EXLLAMAV3, REFERENCE = (KernelSettings(name) for name in get_args(Backend))
EAGER = {"enforce_eager": True}
SPARK = RecordedHost(healthy_record())
MISSING = {"value": None, "error": "ModuleNotFoundError: No module named 'glm53_exl3_exllamav3_ext'"}


def without_gpu() -> RecordedHost:
    record = healthy_record()
    record["programs"] = [path for path in record["programs"] if not path.endswith("/nvidia-smi")]
    return RecordedHost(record)


def with_extension(**fact: Any) -> RecordedHost:
    return RecordedHost(merged(healthy_record(), {"runtime": {"extension": fact}}))


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


@pytest.mark.parametrize("kernels", [AUTO, EXLLAMAV3])
@pytest.mark.parametrize("flags", [{}, EAGER])
def test_gpu_runs_exllamav3_with_graphs_and_without(kernels: KernelSettings, flags: dict[str, bool]) -> None:
    assert backend.require_runnable(settings_of(**flags), kernels, SPARK)


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


def test_machine_without_a_gpu_runs_the_reference_unless_exllamav3_is_named() -> None:
    for kernels in (AUTO, REFERENCE):
        assert not backend.require_runnable(settings_of(), kernels, without_gpu())
    with pytest.raises(KernelError) as caught:
        backend.require_runnable(settings_of(kernel="exllamav3"), EXLLAMAV3, without_gpu())
    assert (caught.value.id, caught.value.found) == ("backend-device", "nvidia-smi not found")
    assert caught.value.hint == "leave --kernel out"


def test_only_graphs_and_a_name_leave_no_other_backend() -> None:
    assert backend.must_run_exllamav3(settings_of(), AUTO)
    assert not backend.must_run_exllamav3(settings_of(**EAGER), AUTO)
    assert backend.must_run_exllamav3(settings_of(**EAGER), EXLLAMAV3)
    assert not backend.must_run_exllamav3(settings_of(**EAGER), REFERENCE)


def test_right_extension_has_no_fault() -> None:
    assert backend.extension_fault(SPARK) is None


@pytest.mark.parametrize(
    ("fact", "name", "what"),
    [
        (MISSING, "extension-missing", "glm53_exl3_exllamav3_ext is not installed"),
        ({"value": {"missing": ["run_layer"]}}, "extension-other", "lacks run_layer"),
        ({"value": {"arity": 35}}, "extension-other", "exl3_moe takes 35 arguments"),
        ({"value": {"arch_list": "9.0a"}}, "extension-other", "none for this GPU of 12.1"),
    ],
)
def test_extension_that_cannot_run_is_named_as_the_plugin_would(fact: dict[str, Any], name: str, what: str) -> None:
    fault = backend.extension_fault(with_extension(**fact))
    assert fault is not None
    assert fault.id == name
    assert what in fault.what
    assert "exllamav3 1.4.4" in fault.expected
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
def test_pack_with_kernels_is_accepted(tmp_path: Path, codebook: str) -> None:
    backend.require_layers(settings_of(), AUTO, inventory_of(tmp_path, codebook))


def test_pack_without_kernels_is_refused_by_its_headers_where_graphs_or_a_name_leave_no_other(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "3inst")
    for settings, kernels in ((settings_of(), AUTO), (settings_of(**EAGER), EXLLAMAV3)):
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings, kernels, inventory)
        assert caught.value.id == "exllamav3-codebook"
        assert caught.value.what == "model.layers.1.mlp.experts has the codebook 3inst, and 1 more layer"
        assert "--kernel reference --enforce-eager" in caught.value.hint
    backend.require_layers(settings_of(**EAGER), AUTO, inventory)


def test_only_layers_that_will_be_loaded_count(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "3inst", num_hidden_layers=2, num_nextn_predict_layers=1)
    for speculation, more in (("none", ""), ("mtp", ", and 1 more layer")):
        with pytest.raises(KernelError) as caught:
            backend.require_layers(settings_of(speculation=speculation), AUTO, inventory)
        assert caught.value.what == f"model.layers.1.mlp.experts has the codebook 3inst{more}"


def test_more_experts_a_token_than_the_kernels_take_are_refused_by_the_config(tmp_path: Path) -> None:
    backend.require_layers(settings_of(), AUTO, inventory_of(tmp_path / "32", "mcg", num_experts_per_tok=32))
    with pytest.raises(KernelError, match="33 experts a token") as caught:
        backend.require_layers(settings_of(**EAGER), AUTO, inventory_of(tmp_path / "33", "mcg", num_experts_per_tok=33))
    assert caught.value.id == "exllamav3-top-k"
