"""The gateware of the datagram-iWARP NIC. ``nic.Nic`` is the whole of it."""
