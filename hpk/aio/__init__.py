"""What asyncio does not bring: supervised children, back-off, signals, ports, services that must not end."""
