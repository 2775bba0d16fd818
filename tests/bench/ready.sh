# Seconds from the submission of hpk.sbatch to the node's Ready, asked for by a warm kubectl.
began=$EPOCHREALTIME
sbatch --parsable hpk.sbatch >/dev/null
until [ "$(kubectl get node hpk --request-timeout=2s -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; do
  sleep 0.1
done
awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", b - a }'
