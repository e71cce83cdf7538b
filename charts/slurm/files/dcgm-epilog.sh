#!/bin/bash
# Takes the job out of the files that DCGM's exporter reads.
dir=JOB_MAPPING_DIR
for gpu in ${SLURM_JOB_GPUS//,/ }; do
  [ -f "$dir/$gpu" ] || continue
  if left=$(grep -vxF "$SLURM_JOB_ID" "$dir/$gpu"); then
    printf '%s\n' "$left" >"$dir/.$gpu.new" && mv -f "$dir/.$gpu.new" "$dir/$gpu"
  else
    rm -f "$dir/$gpu"
  fi
done
exit 0
