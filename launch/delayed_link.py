"""A link that delays frames: python -m launch.delayed_link UP DOWN S.

UP and DOWN are two TAP devices of the network namespace that the command runs
in.  Frames that leave through one of them enter through the other one S seconds
later, in order.  The kernel's own delay, netem, is missing in some kernels.

Frames have up to 64 KiB, as senders leave their division to the device, and
pass with their virtio header, which says what is left to divide and to sum.
"""

import collections
import fcntl
import os
import select
import struct
import sys
import time

_DEVICE = '/dev/net/tun'
# Constants of linux/if_tun.h.
_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFO, _VIRTIO_HEADER = 0x2, 0x1000, 0x4000
_CHECKSUMS, _SEGMENTS_IPV4, _SEGMENTS_IPV6, _SEGMENTS_ECN = 1, 2, 4, 8
_FRAME_BYTES = 1 << 17  # More than the largest frame.
_MOST_AT_ONCE = 64  # Frames of a device before those that are due go on.

READY = 'ready'  # Printed once frames pass.


def main(argv: list[str]) -> None:
  """Forwards frames until the process is ended."""
  _, up, down, delay_s = argv
  devices = [_open(name) for name in (up, down)]
  print(READY, flush=True)
  _forward(devices, float(delay_s))


def _open(name: str) -> int:
  """Returns the file descriptor of an existing TAP device."""
  device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
  kind = _TAP | _NO_PACKET_INFO | _VIRTIO_HEADER
  fcntl.ioctl(
    device, _SET_INTERFACE, struct.pack('16sH22x', name.encode(), kind)
  )
  offload = _CHECKSUMS | _SEGMENTS_IPV4 | _SEGMENTS_IPV6 | _SEGMENTS_ECN
  fcntl.ioctl(device, _SET_OFFLOAD, offload)
  return device


def _forward(devices: list[int], delay_s: float) -> None:
  """Forwards frames both ways, each at its time.

  A single thread and buffer keep up with the acknowledgements of 200 Mbit/s
  each way: queues between threads did not, and slowed links down.
  """
  buffer = memoryview(bytearray(_FRAME_BYTES))
  sink_of = dict(zip(devices, reversed(devices), strict=True))
  waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
  while True:
    limit_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
    sources, _, _ = select.select(devices, (), (), limit_s)
    for source in sources:
      at_s = time.monotonic() + delay_s
      for _ in range(_MOST_AT_ONCE):
        try:
          size = os.readv(source, [buffer])
        except BlockingIOError:
          break
        waiting.append((at_s, sink_of[source], bytes(buffer[:size])))
    while waiting and waiting[0][0] <= time.monotonic():
      _, sink, frame = waiting.popleft()
      try:
        os.write(sink, frame)
      except OSError as error:  # The device is down.
        print(f'A frame is dropped: {error}', file=sys.stderr, flush=True)


if __name__ == '__main__':
  main(sys.argv)
