"""uwarp: datagram-iWARP, remote DMA over plain UDP."""

__version__ = "0.1.0"
