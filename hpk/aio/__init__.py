"""Additions to asyncio: supervised children, back-off, signals, ports, services that must not end."""
