"""The ground floor: values in, values out. No clock, no asyncio, no I/O."""
