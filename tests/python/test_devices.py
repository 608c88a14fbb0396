"""The list of this machine's RDMA devices: there is an answer in any case."""

from __future__ import annotations

import pytest

from rdmacoll import ConfigError
from rdmacoll._abi.library import load


def test_a_machine_tells_its_devices_or_why_there_are_none():
    listing = load().devices("RDMACOLL_DEVICE=mlx9_9")
    assert set(listing) == {"error", "warning", "devices", "rails", "choice_error"}
    assert listing["rails"] == []
    # The named device does not exist. Either no devices can be listed, or it is missing in the list.
    sentence = listing["error"] or listing["choice_error"]
    assert sentence.endswith(".")
    assert (listing["error"] is None) != (listing["choice_error"] is None)
    if listing["choice_error"]:
        assert "RDMACOLL_DEVICE=mlx9_9" in sentence


def test_wrong_settings_are_an_error_before_any_device_is_looked_at():
    with pytest.raises(ConfigError, match="RDMACOLL_BUF_SIZE"):
        load().devices("RDMACOLL_BUF_SIZE=tiny")
