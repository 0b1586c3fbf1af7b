"""Tests for claims.catalog, and of what claims/entries/ says."""

from absl.testing import absltest, parameterized

from claims import catalog, judging, page, running
from claims.published import Claim, Entry, Measure

_PAPERS = 'ElasticBSP', 'DSSP', 'R2SP', 'LB-BSP', 'forest', 'GradientFlow'
_RULE = {'measure': Measure('x', {}), 'confirmed': (0.0, 1.0)}


def _entry(*claims, **fields):
  own = {'family': 'R2SP', 'title': '', 'theirs': '', 'ours': '', 'differs': ''}
  return Entry(**{**own, 'measured': 'zipline', **fields}, claims=claims)


def _claim(**fields):
  return Claim(**{'text': 'a', 'source': 'b', 'mark': 'found', **fields})


class TablesTest(absltest.TestCase):
  def test_every_paper_has_entries_with_claims_that_are_judged(self):
    found = catalog.find_all()
    for paper in _PAPERS:
      own = [entry for entry in found.values() if entry.family == paper]
      self.assertTrue(any(c.measure for e in own for c in e.claims), paper)

  def test_claims_measure_fields_in_which_runs_differ(self):
    for name, entry in catalog.find_all().items():
      for scale in entry.grids:
        fields = running.varied_fields(running.entry_points(entry, scale, [0]))
        for claim in entry.claims:
          parts = (claim.measure or Measure('', {}))[1:4]
          asked = {key for part in parts for key in part or ()}
          self.assertContainsSubset(asked, fields, f'{name}: {claim.text}')

  def test_every_entry_describes_both_experiments(self):
    for name, entry in catalog.find_all().items():
      self.assertTrue(entry.theirs and entry.ours, name)
      self.assertTrue(all(c.source for c in entry.claims), name)


class RefusalTest(parameterized.TestCase):
  def test_an_unknown_name_is_refused_with_those_that_there_are(self):
    with self.assertRaisesRegex(ValueError, "elastic_cost.*got 'elastic'"):
      catalog.find('elastic')

  @parameterized.named_parameters(
    ('family', _entry(family='x'), "one of .* got 'x'"),
    ('mark', _entry(_claim(mark='sure', **_RULE)), "got 'sure'"),
    ('twice', _entry(_claim(**_RULE), _claim(**_RULE)), 'claims that differ'),
    ('nothing', _entry(_claim()), 'a measure, or why there is none'),
    ('both', _entry(_claim(**_RULE, unavailable='x')), 'or why there is none'),
    ('no_rule', _entry(_claim(measure=Measure('x', {}))), 'a range at least'),
    (
      'reversed',
      _entry(_claim(measure=Measure('x', {}), shape=(2.0, 1.0))),
      'from low to high',
    ),
    (
      'outside',
      _entry(_claim(**_RULE, shape=(0.5, 2.0))),
      'confirms within that of the shape',
    ),
    ('no_runs', _entry(_claim(**_RULE), measured=''), 'runs for its claims'),
  )
  def test_nonsense_is_refused(self, entry, message):
    with self.assertRaisesRegex(ValueError, message):
      catalog.check('name', entry)

  def test_claims_without_data_have_a_reason(self):
    entry = _entry(_claim(**_RULE), measured='')._replace(absent='Needs data.')
    catalog.check('name', entry)
    rows = page.judge_claims(entry, None, entry.absent)
    found = [(each.verdict, each.reason) for each in rows.values()]
    self.assertEqual(found, [(judging.UNAVAILABLE, 'Needs data.')])


if __name__ == '__main__':
  absltest.main()
