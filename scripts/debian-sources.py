#!/usr/bin/env python3
"""Print apt sources for another Debian suite, taken from this machine's own.

    scripts/debian-sources.py trixie            deb lines
    scripts/debian-sources.py sid --source      deb-src lines

Wherever this machine gets its own Debian packages from, a mirror or a proxy of the site's, is where
the other suite comes from too: no server is named here.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator

ROLLING = ("sid", "unstable", "testing")  # suites without -updates and -security


def own_codename(os_release: str) -> str:
    """Return the codename of the Debian release that runs here, from the text of os-release."""
    found = re.search(r"^VERSION_CODENAME=\"?(\w+)\"?$", os_release, re.MULTILINE)
    if not found:
        raise SystemExit("debian-sources: this machine is no Debian release: os-release has no VERSION_CODENAME")
    return found.group(1)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield each paragraph of a deb822 file as {lower-case field: value}, comments left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        for key, value in re.findall(r"^([\w-]+):\s*((?:.*(?:\n[ \t].*)*))", paragraph, re.MULTILINE):
            fields[key.lower()] = " ".join(value.split())
        if fields:
            yield fields


def entries(apt: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yield (options, uri, suite) of every enabled binary source under apt's configuration folder."""
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        for fields in stanzas(path.read_text()):
            yield from stanza_entries(fields)
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]:
        text = path.read_text() if path.is_file() else ""
        yield from re.findall(r"^deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)", text, re.MULTILINE)


def stanza_entries(fields: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (options, uri, suite) of one deb822 paragraph; nothing if it is switched off or for sources only."""
    if fields.get("enabled", "yes").lower() in ("no", "false", "0") or "deb" not in fields.get("types", "").split():
        return
    keyring = fields.get("signed-by", "")
    options = f"[signed-by={keyring}] " if keyring.startswith("/") else ""
    for uri in fields.get("uris", "").split():
        for suite in fields.get("suites", "").split():
            yield options, uri, suite


def lines(apt: pathlib.Path, *, own: str, suite: str, source: bool) -> list[str]:
    """Return source lines for `suite`, one for each of this machine's own archives that has it."""
    kind = "deb-src" if source else "deb"
    out: list[str] = []
    for options, uri, own_suite in entries(apt):
        if own_suite != own and not own_suite.startswith(f"{own}-"):
            continue
        pocket = own_suite.removeprefix(own)
        if pocket and suite in ROLLING:
            continue
        line = f"{kind} {options}{uri} {suite}{pocket} main"
        if line not in out:
            out.append(line)
    return out


def main() -> int:
    """Print the lines; 1 if this machine has no Debian source to take them from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="trixie, sid, …")
    parser.add_argument("--source", action="store_true", help="deb-src instead of deb")
    arguments = parser.parse_args()
    own = own_codename(pathlib.Path("/etc/os-release").read_text())
    found = lines(pathlib.Path("/etc/apt"), own=own, suite=arguments.suite, source=arguments.source)
    if not found:
        print(f"debian-sources: no apt source of this machine serves {own}", file=sys.stderr)
        return 1
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
