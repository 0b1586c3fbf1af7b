"""A link that delays frames: python -m launch.delayed_link UP DOWN S.

UP and DOWN are two TAP devices of the network namespace that the command runs
in.  Frames that leave through one of them enter through the other one S seconds
later, in order.  The kernel's own delay, netem, is missing in some kernels.

Frames have up to 64 KiB, as senders leave their division to the device, and
pass with their virtio header, which says what is left to divide and to sum.
"""

import fcntl
import os
import queue
import struct
import sys
import threading
import time

_DEVICE = '/dev/net/tun'
# Constants of linux/if_tun.h.
_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFO, _VIRTIO_HEADER = 0x2, 0x1000, 0x4000
_CHECKSUMS, _SEGMENTS_IPV4, _SEGMENTS_IPV6, _SEGMENTS_ECN = 1, 2, 4, 8
_FRAME_BYTES = 1 << 17  # More than the largest frame.

READY = 'ready'  # Printed once frames pass.


def main(argv: list[str]) -> None:
  """Forwards frames until the process is ended."""
  _, up, down, delay_s = argv
  devices = [_open(name) for name in (up, down)]
  for source, sink in (devices, devices[::-1]):
    frames: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    for function in (
      lambda s=source, f=frames: _receive(s, f, float(delay_s)),
      lambda s=sink, f=frames: _deliver(s, f),
    ):
      threading.Thread(target=function, daemon=True).start()
  print(READY, flush=True)
  threading.Event().wait()


def _open(name: str) -> int:
  """Returns the file descriptor of an existing TAP device."""
  device = os.open(_DEVICE, os.O_RDWR)
  kind = _TAP | _NO_PACKET_INFO | _VIRTIO_HEADER
  fcntl.ioctl(
    device, _SET_INTERFACE, struct.pack('16sH22x', name.encode(), kind)
  )
  offload = _CHECKSUMS | _SEGMENTS_IPV4 | _SEGMENTS_IPV6 | _SEGMENTS_ECN
  fcntl.ioctl(device, _SET_OFFLOAD, offload)
  return device


def _receive(
  source: int, frames: queue.SimpleQueue[tuple[float, bytes]], delay_s: float
) -> None:
  """Puts frames in a queue, with the times at which they are to go on."""
  while True:
    frame = os.read(source, _FRAME_BYTES)
    frames.put((time.monotonic() + delay_s, frame))


def _deliver(sink: int, frames: queue.SimpleQueue[tuple[float, bytes]]) -> None:
  """Delivers frames at their times; a device that is down drops them."""
  while True:
    at_s, frame = frames.get()
    time.sleep(max(at_s - time.monotonic(), 0.0))
    try:
      os.write(sink, frame)
    except OSError as error:
      print(f'A frame is dropped: {error}', file=sys.stderr, flush=True)


if __name__ == '__main__':
  main(sys.argv)
