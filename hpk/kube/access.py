"""Where the API server is and who we are, from a kubeconfig that the control plane has written.

These files are our own, with one kind of user: a certificate.  The library that reads everybody's (exec plugins, cloud
providers, tokens) brings 400 modules, 19 MiB of the kubelet's memory and half a second of each command.
"""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpk import errors


@dataclass(frozen=True, kw_only=True)
class Access:
    """The API server's URL, and the TLS that shows our certificate and trusts the cluster's authority alone."""

    server: str
    context: ssl.SSLContext


def read(path: Path | str) -> Access:
    """Return what the current context of a kubeconfig says.

    Raises:
        errors.Fatal: The file is missing, is no kubeconfig, or is of another kind than we write.
    """
    try:
        document = yaml.safe_load(Path(path).read_bytes())
        context = _named(document["contexts"], document["current-context"])["context"]
        cluster = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document["users"], context["user"])["user"]
        return Access(server=str(cluster["server"]), context=_tls(cluster, user))
    except OSError as error:
        raise errors.Fatal(f"Cannot use the kubeconfig {path}: {error}") from error
    except KeyError as error:
        raise errors.Fatal(f"Cannot use the kubeconfig {path}: it has no {error}") from error
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise errors.Fatal(f"Cannot use the kubeconfig {path}: it is no kubeconfig: {error}") from error


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    authority = base64.b64decode(cluster["certificate-authority-data"])
    certificate = base64.b64decode(user["client-certificate-data"])
    key = base64.b64decode(user["client-key-data"])
    context = ssl.create_default_context(cadata=authority.decode())
    # Python reads certificates of its own from files only: one that is in memory keeps the key off the disk.
    with os.fdopen(os.memfd_create("client", os.MFD_CLOEXEC), "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
