"""Tests for launch.launcher: which processes start again, and how often.

Small programs stand in the place of main.py.
"""

import itertools

from absl.testing import absltest, parameterized

from tests.support import launches


class RestartTest(parameterized.TestCase):
  @parameterized.parameters('die()', 'sys.exit(75)', 'die(signal.SIGABRT)')
  def test_a_worker_starts_again_alone(self, end):
    body = f"""
if role == 'worker:1' and restarts < 2:
  {end}
if role == 'worker:1':
  touch('back')
until('back')
print(role, restarts, flags['coordinator'])
"""
    code, lines, rows = launches.run(body, workers=3)

    self.assertEqual(code, 0)
    roles = {'worker:0': 1, 'worker:1': 3, 'worker:2': 1}
    self.assertEqual(launches.starts(rows), roles)
    number = {'die()': -9, 'sys.exit(75)': 75}.get(end, -6)
    self.assertEqual(launches.codes(rows, 'worker:1'), [number, number, 0])
    (_, _, address), (role, restarts, same) = (
      launches.lines_of(lines, f'worker {n}')[0].split() for n in (0, 1)
    )
    self.assertEqual((role, restarts, same), ('worker:1', '2', address))
    for row in rows:
      self.assertEqual([*row], ['time', 'role', 'pid', 'event', 'code'])

  @parameterized.parameters(
    (False, 1, 'worker:0'), (False, 2, 'worker:1'), (True, 2, 'server:1')
  )
  def test_all_processes_restart_after_one_with_a_shard_fails(
    self, dedicated, servers, killed
  ):
    watched = ['worker:2', 'server:0'] if dedicated else ['worker:2']
    body = f"""
print(flags['coordinator'])
touch(f'{{role}}-{{restarts}}')
if role == '{killed}':
  for other in {watched}:
    until(f'{{other}}-{{restarts}}')
  die()
rest()
"""
    code, lines, rows = launches.run(
      body, workers=3, servers=servers, dedicated=dedicated, restarts=2
    )

    self.assertEqual(code, 137)
    self.assertEqual(set(launches.starts(rows).values()), {3})
    for name in watched:
      said = launches.lines_of(lines, name.replace(':', ' '))
      self.assertLen(set(said), 3)

  def test_checkpoints_between_restarts_start_the_count_again(self):
    body = """
if role == 'worker:0' and restarts < 9:
  if restarts not in (2, 3):
    (folder / 'checkpoints' / str(restarts) / 'coordinator').mkdir(parents=True)
  die()
if role == 'worker:0':
  touch('over')
until('over')
"""
    code, _, rows = launches.run(
      body,
      workers=2,
      restarts=3,
      constants={'_QUICK': 100, '_BACKOFF_S': 0.0},
    )

    self.assertEqual(code, 0)
    self.assertEqual(launches.starts(rows)['worker:0'], 10)

  def test_restarts_without_a_new_checkpoint_end_the_run(self):
    body = """
if role == 'worker:0' and restarts < 3:
  (folder / 'checkpoints' / str(restarts) / 'coordinator').mkdir(parents=True)
die()
"""
    code, lines, rows = launches.run(
      body,
      workers=1,
      restarts=2,
      constants={'_QUICK': 100, '_BACKOFF_S': 0.0},
    )

    self.assertEqual(code, 137)
    # The count starts with each of the first three ends.
    self.assertEqual(launches.starts(rows)['worker:0'], 5)
    said = launches.lines_of(lines, 'launch')[-1]
    self.assertIn('after 2 restarts of all without a new checkpoint', said)

  def test_worker_0_starts_again_alone_beside_dedicated_servers(self):
    body = """
print(flags['coordinator'])
if role == 'worker:0':
  until('worker:1')
  if not restarts:
    die()
  touch('back')
touch(role)
until('back')
"""
    code, lines, rows = launches.run(body, workers=2, dedicated=True)

    self.assertEqual(code, 0)
    roles = {'server:0': 1, 'worker:0': 2, 'worker:1': 1}
    self.assertEqual(launches.starts(rows), roles)
    names = [role.replace(':', ' ') for role in roles]
    said = {line for name in names for line in launches.lines_of(lines, name)}
    self.assertLen(said, 1)

  def test_deaths_at_the_start_are_for_good_after_five(self):
    body = """
print(time.time())
if role == 'worker:1':
  die()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
rest()
"""
    code, lines, rows = launches.run(body, workers=2)

    self.assertEqual(code, 137)
    self.assertEqual(launches.starts(rows), {'worker:0': 1, 'worker:1': 5})
    times = [float(line) for line in launches.lines_of(lines, 'worker 1')]
    for n, (before, after) in enumerate(itertools.pairwise(times), start=1):
      self.assertGreaterEqual(after - before, 0.02 * 2**n)
    self.assertEqual(launches.codes(rows, 'worker:0'), [143])

  def test_failures_after_long_runs_do_not_count(self):
    body = """
if role == 'worker:1':
  if restarts < 7:
    time.sleep(0.1)
    die()
  touch('back')
until('back')
"""
    constants = {'_QUICK_S': 0.05}
    code, _, rows = launches.run(body, workers=2, constants=constants)

    self.assertEqual((code, launches.starts(rows)['worker:1']), (0, 8))

  def test_descendants_of_a_dead_worker_end_with_it(self):
    body = """
if role == 'worker:1' and not restarts:
  print(subprocess.Popen(['sleep', '20']).pid)
  die()
if role == 'worker:1':
  touch('back')
until('back')
"""
    with launches.launch(body, workers=2) as (process, folder):
      while '[worker 1] ' not in (line := process.stdout.readline()):
        pass

      def again():
        return launches.starts(launches.rows(folder))['worker:1'] == 2

      launches.wait_for(condition=again)
      self.assertFalse(launches.alive(line.split()[-1]))
      process.communicate(timeout=launches.LIMIT_S)
      self.assertEqual(process.returncode, 0)

  @parameterized.parameters(0, 143)
  def test_workers_are_not_needed_after_another_has_ended(self, end):
    body = f"""
if role == 'worker:1':
  until_ended('worker:0')
  die(signal.SIGABRT)
if role == 'worker:0':
  sys.exit({end})
if role == 'server:0':
  until_ended('worker:1')
"""
    code, _, rows = launches.run(body, workers=2, dedicated=True)

    self.assertEqual((code, set(launches.starts(rows).values())), (0, {1}))


if __name__ == '__main__':
  absltest.main()
