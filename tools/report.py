"""Draws figures of runs from their files, including running and failed runs.

  python -m tools.report RUN|SWEEP ... --out=DIR [--format=png|svg|pdf]
  python -m tools.report RUN|SWEEP ... --html [--out=DIR]

Draws accuracy* against time, iterations and examples, and the same of each
other measure of the task, such as perplexity*; staleness, waiting, breakdown,
gaps, bandwidth, and speed-up of runs with several numbers of workers;
timeline-* of each run, batches-* of runs whose batches change; and links-* and
forest-* of allreduce runs.  Runs that differ in their seed are a group, with
its mean and range.  Figures have the width of a paper's column, or of its page
where a cluster is large.

With --html writes one page instead, report.html: a table of the runs, the
figures, and of the first run of each group its own figures and diagnosis.  It
needs no network and has no script.
"""

import sys

from absl import app, flags

from analysis import report
from analysis.figures import look
from configs import paths


def main(argv: list[str]) -> None:
  """Draws the runs of the command line; draws none if one is rejected."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  values = flags.FLAGS
  if not (values.html or values.out):
    raise app.UsageError('--out: expected a folder for the figures, got none.')
  try:
    content = report.read(argv[1:])
    if values.html:
      path = report.write_page(content, values.out or '.')
      print(f'Page: {path}')
      return
    report.write_pictures(content.groups, values.out, kind=values.format)
    print(f'Figures: {values.out}')
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


if __name__ == '__main__':
  paths.define_path('out', 'Folder for the figures or the page.')
  flags.DEFINE_enum('format', 'png', look.FORMATS, 'Format of the figures.')
  flags.DEFINE_bool('html', False, 'Write one page instead of figures.')
  app.run(main)
