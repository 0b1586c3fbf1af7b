#!/bin/sh
# Your own scheme, loss and data in every command, by name: a run, its
# continuation, real processes, a sweep, a comparison and tuning.
#
#   sh examples/own.sh OUT [EPOCHS] [TUNE_S]
#
# Takes about two minutes on two cores; tuning takes most of it.
set -eu
out=$1 epochs=${2:-4} tune_s=${3:-5}
parts='--config=configs/default.py
  --config.model.name=examples.own_loss --config.model.own.delta=0.3
  --config.data.name=examples.own_data --config.time_to_measure.mse=(0.2,)
  --config.optimizer.learning_rate=0.1'
scheme='--config.sync.name=examples.own_scheme --config.sync.own.k=2'

python main.py $parts $scheme --config.epochs=1 --workdir="$out/run"
# The same command with more epochs resumes the run.
python main.py $parts $scheme --config.epochs="$epochs" --workdir="$out/run"
python -m tools.replay "$out/run" --own=examples.own_scheme

python -m tools.launch --workers=2 --workdir="$out/real" -- \
  $parts $scheme --config.epochs="$epochs"

python sweep.py $parts --out="$out/sweep" --jobs=1 --config.epochs="$epochs" \
  --grid='sync.name=bsp,examples.own_scheme; seed=0,1'

python -m tools.compare $parts --seeds=1 --config.epochs="$epochs" \
  --schemes=asp,examples.own_scheme --out="$out/compare"

python -m tools.tune $parts $scheme --workers=2 --run_s="$tune_s" \
  --out="$out/tuned.py" --workdir="$out/tune"
