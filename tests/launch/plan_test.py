"""Tests for plans: the flags, variables and devices of each process."""

import pathlib

from absl.testing import absltest, parameterized

from launch.plan import Plan
from outputs import files, manifests
from tests.support import gpus, launches, small


class PlanTest(parameterized.TestCase):
  def test_flags_and_variables_tell_each_process_its_place(self):
    body = """
print(*sys.argv[1:])
print(*map(os.environ.get, ('JAX_PLATFORMS', 'CUDA_VISIBLE_DEVICES')))
"""
    words = ['--workers=2', '--servers=2', '--dedicated', '--', '--a=b']
    folder = launches.new_folder()
    environ = gpus.Host(gpus.list_output(2)).environ
    fields = {'words': words, 'cwd': folder, 'environ': environ}
    with launches.launch(body, **fields) as (process, _):
      out, errors = process.communicate(timeout=30)

    self.assertEqual((process.returncode, errors), (0, ''))
    lines = out.splitlines()
    (run,) = (folder / 'runs').iterdir()
    self.assertRegex(run.name, r'^\d{8}-\d{6}-\d{6}-\d+$')
    shared = (
      '--a=b --config.cluster.runtime=distributed --config.cluster.workers=2 '
      f'--config.route.server.servers=2 --workdir=runs/{run.name} '
      '--config.route.server.dedicated=True'
    )
    address = r'127\.0\.0\.1:\d{5}'
    devices = {'server 0': 'cpu ', 'server 1': 'cpu '}
    devices |= {'worker 0': ' 0', 'worker 1': ' 1'}
    found = set()
    for name, expected in devices.items():
      given, variables = launches.lines_of(lines, name)
      role = f'--role={name.replace(" ", ":")}'
      self.assertStartsWith(given, f'{shared} {role} ')
      rest = given.removeprefix(f'{shared} {role} ')
      self.assertRegex(rest, f'^--coordinator={address}$')
      found.add(rest)
      self.assertEqual(variables, expected)
    self.assertLen(found, 1)

  def test_gpus_are_split_in_groups(self):
    plan = Plan(
      workers=2,
      servers=1,
      dedicated=True,
      workdir=pathlib.Path(),
      devices_per_worker=2,
    )
    with gpus.Host(gpus.list_output(8)).here():
      given = plan.devices({'CUDA_VISIBLE_DEVICES': '4,5,6,7,0'})
      for worker, mine in enumerate(('4,5', '6,7')):
        own = {'CUDA_VISIBLE_DEVICES': mine, 'SYNCOPATE_LOCAL_RANK': '0'}
        self.assertEqual(given[f'worker {worker}'], own)
      server = {'CUDA_VISIBLE_DEVICES': '', 'JAX_PLATFORMS': 'cpu'}
      self.assertEqual(given['server 0'], server)
      for none in ({'CUDA_VISIBLE_DEVICES': ''}, {'JAX_PLATFORMS': 'cpu'}):
        given = plan.devices(none)
        self.assertEqual(given['worker 1'], {'JAX_NUM_CPU_DEVICES': '2'})

  def test_processes_of_islands_have_gpus_of_their_own(self):
    plan = Plan(
      workers=2,
      servers=0,
      dedicated=False,
      workdir=pathlib.Path(),
      hosts_per_worker=2,
    )
    names = ['worker 0', 'worker 0.1', 'worker 1', 'worker 1.1']
    self.assertEqual(plan.names, names)
    self.assertEqual(plan.island('worker 1.1'), names[2:])
    self.assertEqual(plan.shard_processes, ['worker 0', 'worker 1'])
    self.assertIn('--config.cluster.hosts_per_worker=2', plan.flags())
    with gpus.Host(gpus.list_output(4)).here():
      given = plan.devices({})
    masks = [given[name]['CUDA_VISIBLE_DEVICES'] for name in names]
    self.assertEqual(masks, ['0', '1', '2', '3'])
    with (
      gpus.Host(gpus.list_output(2)).here(),
      self.assertRaisesRegex(ValueError, 'workers: expected at most 1, .* 2'),
    ):
      plan.devices({})

  @parameterized.parameters(
    (1, 4, 1, 'workers: expected at most 1, as 1 GPU can .*per_gpu=4 .*got 4'),
    (8, 9, 1, 'workers: expected at most 8, as 8 GPUs .*per_gpu=2 .*, got 9'),
    (3, 2, 2, 'workers: expected at most 1, .*per_worker is 2 .*, got 2'),
    (2, 1, 4, 'devices_per_worker: expected at most 2, as 2 GPUs .*, got 4'),
  )
  def test_too_few_gpus_are_rejected_with_a_remedy(
    self, seen, workers, count, message
  ):
    plan = Plan(
      workers=workers,
      servers=1,
      dedicated=False,
      workdir=pathlib.Path(),
      devices_per_worker=count,
    )
    with gpus.Host(gpus.list_output(seen)).here():
      with self.assertRaisesRegex(ValueError, f'^{message}') as caught:
        plan.devices({})
      self.assertIn('JAX_PLATFORMS=cpu', str(caught.exception))
      self.assertLen(plan.devices({'JAX_PLATFORMS': 'cpu'}), workers)

  @parameterized.parameters(
    (gpus.list_output(1), 4, 4, ['0'] * 4),
    (gpus.list_output(2), 5, 3, ['0', '1', '0', '1', '0']),
    (gpus.list_output(1, 2), 3, 2, [gpus.mig(0, n) for n in (0, 1, 0)]),
  )
  def test_workers_share_gpus_with_the_flag(
    self, output, workers, share, masks
  ):
    plan = Plan(
      workers=workers,
      servers=0,
      dedicated=False,
      workdir=pathlib.Path(),
      workers_per_gpu=share,
    )
    flag = f'--config.cluster.workers_per_gpu={share}'
    self.assertIn(flag, plan.flags())
    with gpus.Host(output).here():
      given = plan.devices({})
    found = [
      given[f'worker {n}']['CUDA_VISIBLE_DEVICES'] for n in range(workers)
    ]
    self.assertEqual(found, masks)
    with (
      gpus.Host().here(),
      self.assertRaisesRegex(ValueError, 'workers_per_gpu: .* no GPU'),
    ):
      plan.devices({})

  def test_gpus_that_do_not_answer_are_an_error(self):
    plan = Plan(workers=1, servers=1, dedicated=False, workdir=pathlib.Path())
    with gpus.Host().here():
      self.assertEqual(plan.devices({}), {'worker 0': {}})
    with gpus.Host('no driver', code=9).here():
      message = "nvidia-smi -L: expected a list of GPUs .* got 'no driver'"
      with self.assertRaisesRegex(ValueError, message):
        plan.devices({})
      self.assertEqual(plan.devices({'JAX_PLATFORMS': 'cpu'})['worker 0'], {})

  @parameterized.parameters(
    ({'workers': 0}, 'workers: expected at least 1, got 0'),
    ({'workers_per_gpu': 0}, 'workers_per_gpu: expected at least 1, got 0'),
    ({'servers': 5}, 'servers: expected at most the 4 workers, .* got 5'),
    ({'restarts': -1}, 'restarts: expected at least 0'),
    ({'grace_s': float('nan')}, 'grace_s: expected seconds'),
    ({'arguments': ('--role=worker:1',)}, 'flags: expected none of .* got'),
    ({'arguments': ('-workdir', 'x')}, 'flags: .* got .-workdir'),
    ({'arguments': ('--noconfig.route.server.dedicated',)}, 'flags: expected'),
  )
  def test_refuses(self, fields, message):
    plan = {'workers': 4, 'servers': 1, 'dedicated': False} | fields
    with self.assertRaisesRegex(ValueError, message):
      Plan(workdir=pathlib.Path(), **plan)

  def test_flags_are_refused_by_name(self):
    with launches.launch('', words=['--workers=0'], workers=1) as (
      process,
      _,
    ):
      _, errors = process.communicate(timeout=30)
    self.assertEqual(process.returncode, 1)
    self.assertEqual(errors, 'Refused: workers: expected at least 1, got 0.\n')

  def test_a_run_accepts_the_folder(self):
    folder = launches.new_folder()
    (folder / 'launch.jsonl').write_text('{}\n')
    run = files.RunFiles(str(folder))
    run.claim(
      manifests.manifest(
        small.config().to_dict(), {}, measures={}, prefetched_iterations=2
      )
    )
    run.release()


if __name__ == '__main__':
  absltest.main()
