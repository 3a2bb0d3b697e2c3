#!/bin/sh
# Start a stage that several processes share (encoder, embeddings, negatives, classifier) on this machine as one of several. Run it on each of them:
#   MACHINES=2 PER_MACHINE=8 FIRST=10.0.0.1:29500 deploy/torchrun.sh encoder --dataset NAME --recipe ngame
# MACHINES: how many, or least:most. PER_MACHINE: processes on each, one per GPU. FIRST: address and port of one of them.
# NAME: any word that the machines of one training share. See docs/many-machines.md.
set -eu
exec torchrun --nnodes "${MACHINES:-1}" --nproc-per-node "${PER_MACHINE:-1}" --max-restarts "${RESTARTS:-0}" \
  --rdzv-backend c10d --rdzv-endpoint "${FIRST:-localhost:29500}" --rdzv-id "${NAME:-xc}" \
  --no-python xc run "$@"
