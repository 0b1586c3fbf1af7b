"""Tests for what is on the disk if a run in one process dies as it saves."""

import itertools
import pathlib
import shutil
import tempfile
from unittest import mock

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from outputs import stores
from outputs.checkpoints import Checkpoints
from tests.support import crashes

_KEEP = 2


class DeathTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'

  def test_it_may_die_at_any_step_of_a_save(self):
    for step in itertools.count():
      error = self._crashed(step)
      if error is None:
        break
      self.assertIsInstance(error, crashes.Killed)
      self._check_goes_on()
      shutil.rmtree(self.directory)
    self.assertGreater(step, 9)

  def test_a_full_disk_ends_a_run_with_one_message_and_takes_nothing(self):
    error = self._crashed(5, crashes.full(self.directory))
    expected = r'Checkpoint 2 in .* could not be written; .*No space left'
    self.assertRegex(str(error), expected)
    self.assertEqual(self._names(), ['0', '1'])
    self._check_goes_on()

  def test_a_folder_that_has_vanished_is_made_again(self):
    saving = self._saving()
    self._save(saving, 1)
    saving._wait()
    shutil.rmtree(self.directory)
    self._save(saving, 2, 3)
    saving.close()
    self.assertEqual(self._names(), ['0', '1'])

  def test_what_cannot_be_removed_is_told_and_does_no_harm(self):
    saving = self._saving()
    fails = mock.patch.object(shutil, 'rmtree', side_effect=PermissionError)
    self._save(saving, 1, 2, 3)
    with fails, self.assertLogs('absl', 'WARNING') as logs:
      saving.close()
    self.assertIn('checkpoints/0 could not be removed', str(logs.output))
    self.assertEqual(stores.steps(self.directory), [1, 2])

  def _crashed(self, step, error=None):
    """Returns what a third save raises that is hit at a step."""
    saving = self._saving()
    self._save(saving, 1, 2)
    saving._wait()
    crash = crashes.Crash(
      self.directory, at=step, dies=lambda thread: True, error=error
    )
    with crashes.crashing(crash):
      try:
        self._save(saving, 3)
        saving.close()
      except (crashes.Killed, OSError) as raised:
        self.assertTrue(crash.happened)
        return raised
    return None

  def _check_goes_on(self):
    """Checks that the newest one is there, and all that follow succeed."""
    left = max(map(stores.number, stores.folders(self.directory)))
    saving = self._saving()
    state = saving.restore()
    self.assertIn(state['version'], (2, 3))
    np.testing.assert_array_equal(state['array'], np.full(5, state['version']))
    self._save(saving, 4, 5, 6)
    saving.close()
    self.assertEqual(self._names(), [str(left + 2), str(left + 3)])
    self.assertEqual(self._saving().restore()['version'], 6)

  def _saving(self):
    return Checkpoints(
      self.directory, every_s=float('inf'), every_examples=1, keep=_KEEP
    )

  def _save(self, saving, *versions):
    for version in versions:
      state = {'version': version, 'array': jnp.full(5, version)}
      saving.save(state, examples=version)

  def _names(self):
    return sorted(path.name for path in self.directory.iterdir())


if __name__ == '__main__':
  absltest.main()
