"""A pod's own /etc/hosts and /etc/resolv.conf, from its plan and the node's files; pure.

Follows pkg/kubelet/network/dns/dns.go (appendDNSConfig, formDNSConfigFitsLimits) and nodeHostsFileContent in
pkg/kubelet/kubelet_pods.go of Kubernetes 1.37.
"""

from __future__ import annotations

from hpk import jobdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records

MOST_SERVERS = 3
MOST_SEARCHES = 32
LONGEST_SEARCH = 253
LONGEST_LINE = 2048


def hosts(text: str, *, node: str) -> str:
    """Return the plan's hosts file; for a pod of the host's network, insert the node's own text."""
    return text.replace(jobdir.NODE_HOSTS, node) if jobdir.NODE_HOSTS in text else text


def resolv_conf(base: str, dns: records.Dns) -> tuple[str, list[str]]:
    """Return the base with the pod's additions, and the kubelet's messages about what exceeds the limits."""
    servers, searches, options = parse(base)
    servers = _unique([*servers, *dns["nameservers"]])
    searches = _unique([*searches, *dns["searches"]])
    options |= {name: value for name, value in dns["options"]}  # noqa: C416 - the pairs are lists in JSON
    left_out = []
    if len(servers) > MOST_SERVERS:
        servers = servers[:MOST_SERVERS]
        left_out.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
            + " ".join(servers)
        )
    fitting = _fitting(searches)
    if fitting != searches:
        left_out.append(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
            + " ".join(fitting)
        )
    lines = [f"nameserver {server}" for server in servers]
    if fitting:
        lines.append("search " + " ".join(fitting))
    if options:
        lines.append("options " + " ".join(f"{name}:{value}" if value else name for name, value in options.items()))
    return "".join(line + "\n" for line in lines), left_out


def parse(text: str) -> tuple[list[str], list[str], dict[str, str | None]]:
    """Return name servers, search paths and options of a resolv.conf; the last search line counts."""
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str | None] = {}
    for line in text.splitlines():
        word, *rest = line.split() or ("",)
        if word == "nameserver":
            servers += rest[:1]
        elif word == "search":
            searches = [path.removesuffix(".") for path in rest if path != "."]
        elif word == "options":
            for option in rest:
                name, _, value = option.partition(":")
                options[name] = value or None
    return servers, searches, options


def _fitting(searches: list[str]) -> list[str]:
    """Return the search paths within a resolver's limits: 32, none too long, 2,048 characters in all."""
    found = [path for path in searches[:MOST_SEARCHES] if len(path) <= LONGEST_SEARCH]
    while len(" ".join(found)) > LONGEST_LINE:
        found.pop()
    return found


def _unique(words: list[str]) -> list[str]:
    return list(dict.fromkeys(words))
