"""The base of all typed views of API objects."""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An API object or a part of one; its fields are the API's, in snake case."""
