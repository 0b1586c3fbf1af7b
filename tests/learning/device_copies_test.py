"""Tests of learning.device_copies on the CPU, which has pinned memory, too."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from learning import device_copies
from tests.support import accelerators


def _arrays():
  return [jnp.arange(size, dtype=jnp.float32) for size in (1, 64, 4096)]


class DeviceCopiesTest(absltest.TestCase):
  def test_nothing_is_copied_from_the_cpu(self):
    accelerators.skip_if_fake('this process is to have the CPU.')
    copies, arrays = device_copies.find_copies(), _arrays()
    for copy, array in zip(copies.start_to_host(arrays), arrays, strict=True):
      on_host = copies.wait_for_host(copy)
      self.assertTrue(np.shares_memory(on_host, np.asarray(array)))

  @mock.patch.object(jax, 'default_backend', lambda: 'fake')
  def test_copies_of_accelerators_land_in_pinned_memory_and_return(self):
    copies, arrays = device_copies.find_copies(), _arrays()
    started = copies.start_to_host(arrays)
    self.assertEqual({a.sharding.memory_kind for a in started}, {'pinned_host'})
    on_host = [copies.wait_for_host(copy) for copy in started]
    returned = copies.start_to_device(on_host)
    copies.wait_for_device(returned)
    for array, host, back in zip(arrays, on_host, returned, strict=True):
      np.testing.assert_array_equal(host, np.asarray(array))
      np.testing.assert_array_equal(back, array)
      self.assertEqual(back.sharding, array.sharding)

  @mock.patch.object(jax, 'default_backend', lambda: 'fake')
  def test_an_accelerator_without_pinned_memory_copies_to_any(self):
    device = mock.Mock(addressable_memories=lambda: [mock.Mock(kind='device')])
    with mock.patch.object(jax, 'local_devices', lambda: [device]):
      copies = device_copies.find_copies()
    self.assertNotIsInstance(copies, device_copies.PinnedCopies)
    for copy, array in zip(
      copies.start_to_host(_arrays()), _arrays(), strict=True
    ):
      np.testing.assert_array_equal(copies.wait_for_host(copy), array)


if __name__ == '__main__':
  absltest.main()
