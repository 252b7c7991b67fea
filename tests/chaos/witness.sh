#!/bin/sh
# A job that is seen from outside: $1 directory, $2 key of its chain, $3 seconds, $4 how many units its resource has.
# Whoever runs beside another of the same chain, or beside too many of the same resource, leaves a line in `overlaps`.
exec 9>"$1/locks/chain-$2"
flock -n 9 || echo "chain $2 job $NEXTSLOT_JOB_ID" >>"$1/overlaps"
unit=0
until exec 8>"$1/locks/unit-$unit" && flock -n 8; do
    unit=$((unit + 1))
    [ "$unit" -lt "$4" ] || { echo "units $2 job $NEXTSLOT_JOB_ID" >>"$1/overlaps"; break; }
done
echo "began $NEXTSLOT_JOB_ID $2" >>"$1/lines"
sleep "$3"
echo "ended $NEXTSLOT_JOB_ID $2" >>"$1/lines"
