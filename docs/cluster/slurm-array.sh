#!/bin/sh
# A sweep as a Slurm array: one task per shard.
#
#   sbatch docs/cluster/slurm-array.sh scenarios/cores.toml /shared/me/cores
#
# The directory must be on a file system that every node reaches. A task that is killed, preempted or
# out of time loses the points that it was running; submit the same line again and it goes on.
#SBATCH --job-name=wave-sweep
#SBATCH --array=0-15
#SBATCH --cpus-per-task=8
#SBATCH --mem=8G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --output=wave-sweep-%A-%a.log
set -eu

if [ $# -ne 2 ]; then
    echo "usage: sbatch $0 SCENARIO.toml DIR" >&2
    exit 2
fi
: "${SLURM_ARRAY_TASK_ID:?is not set: start this with sbatch}"

# An array of which only some tasks are submitted again (--array=3,7) has another count and least
# index: the shards stay those of the whole array only if WAVE_SHARDS says how many there were.
shards=${WAVE_SHARDS:-$SLURM_ARRAY_TASK_COUNT}

exec "${WAVE:-wave}" sweep "$1" --out "$2" \
    --shard "$SLURM_ARRAY_TASK_ID/$shards" --jobs "${SLURM_CPUS_PER_TASK:-1}" --quiet
