#!/bin/bash
# Tells NVIDIA's DCGM exporter which job has which GPU: a file per GPU with the numbers of its jobs, so that metrics
# carry the label hpc_job. It never fails, since a prolog that does drains its node.
dir=JOB_MAPPING_DIR
mkdir -p "$dir" || exit 0
for gpu in ${SLURM_JOB_GPUS//,/ }; do
  echo "$SLURM_JOB_ID" >>"$dir/$gpu"
done
exit 0
