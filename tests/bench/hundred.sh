# Seconds from the first to the last of a hundred jobs that run `apptainer exec` of the image.
directory=$HOME/bench/hundred
rm -rf "$directory"; mkdir -p "$directory"; cd "$directory"
began=$EPOCHREALTIME
for i in $(seq 100); do
  printf '#!/bin/bash\napptainer exec -B %s %s touch %s\n' "$directory" "$HOME/bench/busybox.sif" "$directory/$i" |
    sbatch --parsable --output=/dev/null >/dev/null
done
until [ "$(ls | wc -l)" = 100 ]; do sleep 0.1; done
awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", b - a }'
