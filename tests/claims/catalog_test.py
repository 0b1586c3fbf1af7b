"""Tests for claims.catalog and the entries of claims/entries/."""

from absl.testing import absltest, parameterized

from claims import catalog, findings, judging, page, running
from claims.entries import _local_steps
from claims.published import Claim, Entry, Measure
from configs import local_steps

_PAPERS = (
  *('ElasticBSP', 'DSSP', 'R2SP', 'LB-BSP', 'forest', 'GradientFlow'),
  'local steps',
)
_RULE = {'measure': Measure('x', {}), 'confirmed': (0.0, 1.0)}


def _entry(*claims, **fields):
  texts = dict.fromkeys(
    ('title', 'published_setup', 'our_setup', 'differences'), ''
  )
  defaults = {'family': 'R2SP', **texts, 'measurement': 'zipline'}
  return Entry(**{**defaults, **fields}, claims=claims)


def _claim(**fields):
  return Claim(**{'text': 'a', 'source': 'b', 'mark': 'found', **fields})


class TablesTest(absltest.TestCase):
  def test_every_paper_has_entries_with_claims_that_are_judged(self):
    all_entries = catalog.find_all().values()
    for paper in _PAPERS:
      entries = [entry for entry in all_entries if entry.family == paper]
      self.assertTrue(any(c.measure for e in entries for c in e.claims), paper)

  def test_claims_measure_fields_in_which_runs_differ(self):
    for name, entry in catalog.find_all().items():
      for scale in entry.grids:
        fields = running.varied_fields(running.entry_points(entry, scale, [0]))
        for claim in entry.claims:
          parts = (claim.measure or Measure('', {}))[1:4]
          selected = {key for part in parts for key in part or ()}
          self.assertContainsSubset(selected, fields, f'{name}: {claim.text}')

  def test_methods_of_local_steps_are_selected_without_their_rates(self):
    selected = [_local_steps.of(name) for name in local_steps.METHODS]
    for fields in selected:
      self.assertEqual(selected.count(fields), 1, fields)

  def test_findings_are_those_of_claims(self):
    for finding in findings.FINDINGS:
      texts = [claim.text for claim in catalog.find(finding.entry).claims]
      self.assertIn(finding.claim, texts)

  def test_every_entry_describes_both_experiments(self):
    for name, entry in catalog.find_all().items():
      self.assertTrue(entry.published_setup and entry.our_setup, name)
      self.assertTrue(all(c.source for c in entry.claims), name)


class RefusalTest(parameterized.TestCase):
  def test_an_unknown_name_is_rejected_with_all_names(self):
    with self.assertRaisesRegex(ValueError, "elastic_cost.*got 'elastic'"):
      catalog.find('elastic')

  @parameterized.named_parameters(
    ('family', _entry(family='x'), "one of .* got 'x'"),
    ('evidence', _entry(evidence='sure'), "'timed', .* got 'sure'"),
    ('mark', _entry(_claim(mark='sure', **_RULE)), "got 'sure'"),
    ('twice', _entry(_claim(**_RULE), _claim(**_RULE)), 'claims that differ'),
    ('nothing', _entry(_claim()), 'a measure, or a reason'),
    (
      'both',
      _entry(_claim(**_RULE, unavailable='x')),
      'or a reason why there is none',
    ),
    ('no_rule', _entry(_claim(measure=Measure('x', {}))), 'a range at least'),
    (
      'reversed',
      _entry(_claim(measure=Measure('x', {}), shape=(2.0, 1.0))),
      'from low to high',
    ),
    (
      'outside',
      _entry(_claim(**_RULE, shape=(0.5, 2.0))),
      'confirming range within',
    ),
    ('no_runs', _entry(_claim(**_RULE), measurement=''), 'runs for its claims'),
  )
  def test_invalid_entries_are_rejected(self, entry, message):
    with self.assertRaisesRegex(ValueError, message):
      catalog.check('name', entry)

  def test_claims_without_data_have_a_reason(self):
    entry = _entry(_claim(**_RULE), measurement='')._replace(
      missing_reason='Needs data.'
    )
    catalog.check('name', entry)
    (rows,) = page.judge_entries([(entry, None)])
    found = [(each.verdict, each.reason) for each in rows.values()]
    self.assertEqual(found, [(judging.UNAVAILABLE, 'Needs data.')])


if __name__ == '__main__':
  absltest.main()
