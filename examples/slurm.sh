#!/bin/bash
#SBATCH --job-name=apexrl --nodes=4 --ntasks-per-node=1 --cpus-per-task=16 --time=04:00:00
#SBATCH --requeue --open-mode=append --signal=B:TERM@180
# One learner, and actors on every other node, through a Redis server on the first node: docs/how-to/unattended.md.
#   sbatch examples/slurm.sh cartpole --env-steps 0        # a preset or a file, and flags of apexrl learner
# Slurm requeues the job after a lost node or a preemption. The job requeues itself when its time is over.
set -u
run=${RUN:-$SLURM_JOB_NAME-$SLURM_JOB_ID} # a requeued job has the same id
shared=${SHARED:-/shared/runs}             # a folder that all nodes share
others=$((SLURM_JOB_NUM_NODES - 1))

umask 077
mkdir -p "$shared"
if [ -z "${APEXRL_REDIS_URL:-}" ]; then # no server of your own: one for this job, with a password of its own
  password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  port=$((20000 + SLURM_JOB_ID % 20000))
  redis-server - > "$shared/$run-redis.log" 2>&1 <<< "
    requirepass $password
    port $port
    bind * -::*
    maxmemory-policy noeviction
    save ''" &
  redis=$!
  trap 'kill $redis' EXIT
  APEXRL_REDIS_URL=redis://:$password@${SLURMD_NODENAME:-$(hostname)}:$port
fi
export APEXRL_REDIS_URL # in the environment: srun hands it on, and no list of processes shows it

if [ "$others" -gt 0 ]; then # one actor host on each node but the first, with as many actors as it has processors
  srun --nodes="$others" --ntasks="$others" --relative=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    apexrl actor --run "$run" --actors "$SLURM_CPUS_PER_TASK" --out "${TMPDIR:-/tmp}/apexrl-$SLURM_JOB_ID" &
fi
apexrl learner "$@" --run "$run" --out "$shared" --resume-or-start &
learner=$!
trap 'kill -TERM $learner' TERM # three minutes before the limit: the final checkpoint
wait "$learner"                 # until it ends, or TERM comes
wait "$learner"
code=$? # its own exit code, in any case
case $code in 75 | 130) scontrol requeue "$SLURM_JOB_ID" ;; esac
exit "$code"
