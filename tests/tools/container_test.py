"""Checks of tools/jobset.yaml, rayjob.yaml and Dockerfiles without a cluster.

A typo in a field's name is ignored or refused by Kubernetes only once a user
applies the file.  The Job of the JobSet is validated against the schemas of
Kubernetes that kubernetes-validate has.  No package has those of JobSet: the
fields below are those of JobSet v1alpha2 that the file may use, with their
types, and the test of its rules has those that its webhook applies to them.
Pods of the RayJob are validated likewise; the other fields are those of
KubeRay's v1 that the file may use.
"""

import copy
import pathlib
import re
import subprocess

import yaml
from absl.testing import absltest

from tests.docs import pages
from tests.support import requires

_ROOT = pathlib.Path(__file__).parents[2]
_METADATA = {'name': str}
_KUBERNETES = '1.31'  # The first with podFailurePolicy as a stable field.
_ACTIONS = ('FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts')
_REASONS = (
  *('BackoffLimitExceeded', 'DeadlineExceeded', 'FailedIndexes'),
  *('MaxFailedIndexesExceeded', 'PodFailurePolicy'),
)
_JOBSET = {
  'apiVersion': str,
  'kind': str,
  'metadata': _METADATA,
  'spec': {
    'network': {
      'enableDNSHostnames': bool,
      'subdomain': str,
      'publishNotReadyAddresses': bool,
    },
    'failurePolicy': {
      'maxRestarts': int,
      'rules': [{'name': str, 'action': str, 'onJobFailureReasons': [str]}],
    },
    'replicatedJobs': [
      {'name': str, 'replicas': int, 'template': {'spec': dict}}
    ],
  },
}


def _errors(value, schema, path='jobset'):
  """Returns the fields that are unknown or of another type."""
  if isinstance(schema, list):
    if not isinstance(value, list):
      return [f'{path}: expected a list']
    items = enumerate(value)
    return [e for k, v in items for e in _errors(v, schema[0], f'{path}[{k}]')]
  if isinstance(schema, dict):
    if not isinstance(value, dict):
      return [f'{path}: expected an object']
    found = []
    for name, item in value.items():
      known = schema.get(name, schema.get(str))
      where = f'{path}.{name}'
      found += _errors(item, known, where) if known else [f'{where}: unknown']
    return found
  return [] if isinstance(value, schema) else [f'{path}: got {value!r}']


def _user_of_image(name):
  """Returns user and group of the processes of an image, as numbers."""
  text = (_ROOT / 'tools' / name).read_text()
  *_, last = re.findall(r'^USER (\d+):(\d+)$', text, re.M)
  return tuple(map(int, last))


def _unreachable(pod, group):
  """Returns the volumes of a pod that a group cannot read or write."""
  found = []
  has_group = pod.get('securityContext', {}).get('fsGroup') == group
  for volume in pod['volumes']:
    mode = volume.get('secret', {}).get('defaultMode', 0o440)
    if not has_group or not mode & 0o040:
      found.append(volume['name'])
  return found


class JobSetTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.jobset = yaml.safe_load((_ROOT / 'tools/jobset.yaml').read_text())

  def test_every_field_is_known_and_of_its_type(self):
    self.assertEqual(_errors(self.jobset, _JOBSET), [])
    self.jobset['spec']['netwrok'] = {}
    self.assertEqual(
      _errors(self.jobset, _JOBSET), ['jobset.spec.netwrok: unknown']
    )

  def test_the_job_matches_the_schema_of_kubernetes(self):
    requires.module('kubernetes_validate')
    import kubernetes_validate as validate

    def check(job):
      job = {'apiVersion': 'batch/v1', 'kind': 'Job'} | job
      validate.validate(job, _KUBERNETES, strict=True)

    (replicated,) = self.jobset['spec']['replicatedJobs']
    job = replicated['template']
    check(job)
    for path, value in (
      (('spec', 'backofLimit'), 3),
      (('spec', 'completions'), '4'),
      (('spec', 'template', 'spec', 'containers', 0, 'readinesProbe'), {}),
      (('spec', 'template', 'spec', 'volumes', 0, 'secret'), 'syncopate'),
    ):
      wrong = copy.deepcopy(job)
      place = wrong
      for key in path[:-1]:
        place = place[key]
      place[path[-1]] = value
      with self.assertRaises(validate.ValidationError):
        check(wrong)

  def test_the_user_of_the_image_can_read_the_token_and_write_runs(self):
    (replicated,) = self.jobset['spec']['replicatedJobs']
    pod = replicated['template']['spec']['template']['spec']
    _, group = _user_of_image('Dockerfile')
    self.assertLen(pod['volumes'], 2)
    self.assertEqual(_unreachable(pod, group), [])
    # Files of secrets are root's.
    (secret,) = (v['secret'] for v in pod['volumes'] if 'secret' in v)
    self.assertEqual(secret['defaultMode'] & 0o007, 0)
    secret['defaultMode'] = 0o400
    self.assertEqual(_unreachable(pod, group), ['secret'])
    del pod['securityContext']
    self.assertEqual(_unreachable(pod, group), ['runs', 'secret'])

  def test_rules_of_the_webhook_of_jobset_hold(self):
    spec = self.jobset['spec']
    (replicated,) = spec['replicatedJobs']
    job = replicated['template']['spec']
    label = r'\A[a-z]([-a-z0-9]*[a-z0-9])?\Z'
    last = job['completions'] - 1
    name = f'{self.jobset["metadata"]["name"]}-{replicated["name"]}-0'
    for each in (spec['network']['subdomain'], f'{name}-{last}-abcde'):
      self.assertRegex(each, label)
      self.assertLessEqual(len(each), 63)
    self.assertLess(job['parallelism'] * replicated['replicas'], 2**31)
    rules = spec['failurePolicy']['rules']
    self.assertLen({rule['name'] for rule in rules}, len(rules))
    for rule in rules:
      self.assertRegex(
        rule['name'], r'\A[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?\Z'
      )
      self.assertLessEqual(len(rule['name']), 128)
      self.assertIn(rule['action'], _ACTIONS)
      self.assertContainsSubset({*rule['onJobFailureReasons']}, {*_REASONS})

  def test_values_are_among_those_of_the_interfaces(self):
    self.assertEqual(self.jobset['apiVersion'], 'jobset.x-k8s.io/v1alpha2')
    self.assertEqual(self.jobset['kind'], 'JobSet')
    (replicated,) = self.jobset['spec']['replicatedJobs']
    job = replicated['template']['spec']
    for rule in job['podFailurePolicy']['rules']:
      self.assertIn(rule['action'], ('FailJob', 'Ignore', 'Count'))
      # A rule has one kind of condition.
      self.assertEqual(('onExitCodes' in rule) + ('onPodConditions' in rule), 1)
    pod = job['template']['spec']
    self.assertEqual(pod['restartPolicy'], 'Never')  # For podFailurePolicy.
    (container,) = pod['containers']
    ports = [port['containerPort'] for port in container['ports']]
    flag = f'--config.outputs.metrics_port={ports[0]}'
    self.assertIn(flag, container['command'])
    probe = container['readinessProbe']['exec']['command'][-1]
    self.assertIn(f':{ports[0]}/healthz', probe)
    compile(probe, 'probe', 'exec')
    for names in (job, replicated, container):
      if 'name' in names:
        self.assertRegex(names['name'], r'\A[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z')


_GROUP = {'rayStartParams': {str: str}, 'template': {'spec': dict}}
_RAYJOB = {
  'apiVersion': str,
  'kind': str,
  'metadata': _METADATA,
  'spec': {
    'entrypoint': str,
    'shutdownAfterJobFinishes': bool,
    'ttlSecondsAfterFinished': int,
    'backoffLimit': int,
    'rayClusterSpec': {
      'rayVersion': str,
      'headGroupSpec': _GROUP,
      'workerGroupSpecs': [
        {
          'groupName': str,
          'replicas': int,
          'minReplicas': int,
          'maxReplicas': int,
          **_GROUP,
        }
      ],
    },
  },
}


class RayJobTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.job = yaml.safe_load((_ROOT / 'tools/rayjob.yaml').read_text())
    cluster = self.job['spec']['rayClusterSpec']
    self.head, (self.workers,) = (
      cluster['headGroupSpec'],
      cluster['workerGroupSpecs'],
    )

  def test_every_field_is_known_and_of_its_type(self):
    self.assertEqual(_errors(self.job, _RAYJOB, 'rayjob'), [])
    names = self.job['apiVersion'], self.job['kind']
    self.assertEqual(names, ('ray.io/v1', 'RayJob'))
    self.workers['replica'] = 4
    self.assertLen(_errors(self.job, _RAYJOB, 'rayjob'), 1)

  def test_pods_match_the_schema_of_kubernetes(self):
    requires.module('kubernetes_validate')
    import kubernetes_validate as validate

    for group in (self.head, self.workers):
      pod = {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'ray'}}
      pod |= group['template']
      validate.validate(pod, _KUBERNETES, strict=True)
      (container,) = pod['spec']['containers']
      container['workDir'] = '/'
      with self.assertRaises(validate.ValidationError):
        validate.validate(pod, _KUBERNETES, strict=True)

  def test_the_user_of_the_image_can_write_runs(self):
    _, group = _user_of_image('Dockerfile.ray')
    for each in (self.head, self.workers):
      self.assertEqual(_unreachable(each['template']['spec'], group), [])

  def test_the_cluster_has_room_for_the_processes_of_the_entrypoint(self):
    words = self.job['spec']['entrypoint'].split()
    own = words[words.index('tools.launch') + 1 : words.index('--')]
    flags = dict(word.removeprefix('--').split('=') for word in own)
    known = pages.flags_of(_ROOT / 'tools/launch.py')
    self.assertLessEqual(set(flags), known)
    (container,) = self.workers['template']['spec']['containers']
    limits = container['resources']['limits']
    numbers = {self.workers[f'{each}eplicas'] for each in ('r', 'minR', 'maxR')}
    self.assertEqual(numbers, {int(flags['workers'])})
    self.assertGreaterEqual(int(limits['cpu']), int(flags['cpus_per_process']))
    self.assertEqual(limits['nvidia.com/gpu'], 1)
    (mount,) = container['volumeMounts']
    self.assertTrue(flags['workdir'].startswith(f'{mount["mountPath"]}/'))
    (head,) = self.head['template']['spec']['containers']
    self.assertEqual(head['volumeMounts'], [mount])
    environ = {each['name']: each['value'] for each in head['env']}
    stop_s = float(environ['RAY_JOB_STOP_WAIT_TIME_S'])
    self.assertGreater(stop_s, float(flags['grace_s']))

  def test_cluster_and_image_have_the_pinned_version_of_ray(self):
    pinned = (_ROOT / 'requirements-ray.txt').read_text()
    version = self.job['spec']['rayClusterSpec']['rayVersion']
    self.assertIn(f'ray[default]=={version}\n', pinned)
    text = (_ROOT / 'tools/Dockerfile.ray').read_text()
    self.assertIn('-r requirements-ray.lock', text)
    users = re.findall(r'^USER (\S+)', text, re.M)
    self.assertEqual(users[-1], '1000:1000')


class DockerfileTest(absltest.TestCase):
  def test_hadolint_finds_nothing(self):
    hadolint = requires.program('hadolint')
    done = subprocess.run(
      [hadolint, *map(str, (_ROOT / 'tools').glob('Dockerfile*'))],
      capture_output=True,
      text=True,
    )
    self.assertEqual((done.returncode, done.stdout), (0, ''), done.stderr)

  def test_the_image_is_pinned_and_runs_without_root(self):
    text = (_ROOT / 'tools/Dockerfile').read_text()
    (base,) = re.findall(r'^FROM (\S+)', text, re.M)
    self.assertRegex(base, r':\d+\.\d+\.\d+-')
    users = re.findall(r'^USER (\S+)', text, re.M)
    self.assertNotIn(users[-1].split(':')[0], ('', '0', 'root'))
    for name in re.findall(r'requirements\S*\.lock', text):
      self.assertTrue((_ROOT / name).exists(), name)
    for line in re.findall(r'pip install.*', text):
      self.assertIn('--no-cache-dir --require-hashes', line)


if __name__ == '__main__':
  absltest.main()
