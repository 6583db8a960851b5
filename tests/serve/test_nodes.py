"""Which address the other machines reach this one by."""

from __future__ import annotations

import pytest

from glm53_exl3.serve.nodes import own_address


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.4.5"])
def test_on_the_way_to_an_address_of_this_machine_it_is_that_address(address: str) -> None:
    # The kernel answers for the whole of 127.0.0.0/8 with an address of it.
    assert str(own_address(address)).startswith("127.")


def test_a_name_is_resolved() -> None:
    assert own_address("localhost") in {"127.0.0.1", "::1"}


@pytest.mark.parametrize("address", ["no.such.host.invalid", "not an address"])
def test_without_a_way_there_is_no_address(address: str) -> None:
    assert own_address(address) is None
