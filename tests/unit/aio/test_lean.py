"""What libraries bring along and nobody uses is not loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest


def said(program: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_the_api_client_brings_no_synchronous_one_along() -> None:
    """And it can still be used by whoever wants it."""
    program = """
import sys
import hpk.kube.client
print({"requests", "oauthlib", "urllib3", "websocket"} & set(sys.modules))
from kubernetes import client
print(client.ApiClient.__name__, "urllib3" in sys.modules)
"""
    assert said(program).splitlines() == ["set()", "ApiClient True"]


def test_the_kubelet_logs_without_a_console() -> None:
    """Rich is for people in front of a terminal, who still have it."""
    program = """
import sys
import hpk.cli.serve
print("rich" in sys.modules)
import rich
"""
    assert said(program) == "False"


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_package_that_is_there_already_stays(is_loaded: bool) -> None:  # noqa: FBT001
    """Who has it, has it; the others find it missing, and afterwards as ever."""
    program = f"""
import sys
from hpk import missing
if {is_loaded}: import colorsys
with missing.Without("colorsys"):
    try:
        import colorsys
        print("there")
    except ModuleNotFoundError:
        print("missing")
import colorsys
print(colorsys.__name__)
"""
    assert said(program).splitlines() == ["there" if is_loaded else "missing", "colorsys"]
