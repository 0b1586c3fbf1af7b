"""Checks of tools/jobset.yaml and tools/Dockerfile without a cluster.

A typo in a field's name is ignored or refused by Kubernetes only once a user
applies the file.  The fields below are those of the JobSet v1alpha2, batch/v1
and core/v1 interfaces that the file may use, with their types.
"""

import pathlib
import re

import yaml
from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parents[2]
_METADATA = {'name': str}
_MOUNT = {'name': str, 'mountPath': str, 'readOnly': bool}
_PROBE = {
  'exec': {'command': [str]},
  'periodSeconds': int,
  'timeoutSeconds': int,
}
_CONTAINER = {
  'name': str,
  'image': str,
  'workingDir': str,
  'command': [str],
  'env': [{'name': str, 'value': str}],
  'ports': [{'name': str, 'containerPort': int}],
  'readinessProbe': _PROBE,
  'resources': {'requests': {str: (str, int)}, 'limits': {str: (str, int)}},
  'volumeMounts': [_MOUNT],
}
_POD = {
  'restartPolicy': str,
  'terminationGracePeriodSeconds': int,
  'containers': [_CONTAINER],
  'volumes': [
    {
      'name': str,
      'persistentVolumeClaim': {'claimName': str},
      'secret': {'secretName': str, 'defaultMode': int},
    }
  ],
}
_JOB = {
  'completionMode': str,
  'completions': int,
  'parallelism': int,
  'backoffLimit': int,
  'podFailurePolicy': {
    'rules': [
      {
        'action': str,
        'onPodConditions': [{'type': str}],
        'onExitCodes': {
          'containerName': str,
          'operator': str,
          'values': [int],
        },
      }
    ]
  },
  'template': {'spec': _POD},
}
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
      {'name': str, 'replicas': int, 'template': {'spec': _JOB}}
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


class DockerfileTest(absltest.TestCase):
  def test_the_image_is_pinned_and_runs_without_root(self):
    text = (_ROOT / 'tools/Dockerfile').read_text()
    (base,) = re.findall(r'^FROM (\S+)', text, re.M)
    self.assertRegex(base, r':\d+\.\d+\.\d+-')
    users = re.findall(r'^USER (\S+)', text, re.M)
    self.assertNotIn(users[-1].split(':')[0], ('', '0', 'root'))
    for name in re.findall(r'requirements\S*\.txt', text):
      self.assertTrue((_ROOT / name).exists(), name)
    for line in re.findall(r'pip install.*', text):
      self.assertIn('--no-cache-dir', line)


if __name__ == '__main__':
  absltest.main()
