"""Makes ``host.pyz``, the file in which this package reaches hosts: ``python3 pack.py FILE``."""

import io
import os
import sys
import zipfile


def archive() -> bytes:
    """Return the file's content; equal sources give equal bytes, uncompressed for a quick start."""
    made, here = io.BytesIO(), os.path.dirname(os.path.abspath(__file__))
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(zipfile.ZipInfo("hpk/__init__.py"), b"")
        for name in sorted(os.listdir(here)):
            if name.endswith(".py") and name != "pack.py":
                with open(os.path.join(here, name), "rb") as source:
                    place = name if name == "__main__.py" else "hpk/host/" + name
                    file.writestr(zipfile.ZipInfo(place), source.read())
    return made.getvalue()


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as target:
        target.write(archive())
