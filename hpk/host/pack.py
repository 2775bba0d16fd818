"""Make ``host.pyz``, the one file as which this package goes to hosts: ``python3 pack.py FILE``."""

import io
import os
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def archive() -> bytes:
    """Return the file's content; the same sources give the same bytes.

    Nothing in it is compressed, and the directory is short: both cost time at each start.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(zipfile.ZipInfo("hpk/__init__.py"), b"")
        for name in sorted(os.listdir(HERE)):
            if name.endswith(".py") and name != os.path.basename(__file__):
                with open(os.path.join(HERE, name), "rb") as source:
                    place = name if name == "__main__.py" else "hpk/host/" + name
                    file.writestr(zipfile.ZipInfo(place), source.read())
    return made.getvalue()


def main(words: "list[str]") -> int:
    """Write the file."""
    (target,) = words
    with open(target, "wb") as file:
        file.write(archive())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
