#!/usr/bin/env bash
# The experiments that are still to run, as commands, for one GPU that is lent for ten minutes at a time.
#
#     benchmarks/queue.sh list                      # the steps, in order
#     benchmarks/queue.sh show E4                   # the commands of a step, without running them
#     DATA=data OUT=runs benchmarks/queue.sh E4     # run a step; run it again to go on where it stopped
#
# DATA holds tiny-imagenet-100-{train,val}.tar.gz, voc2007-{train,val}.tar with .json, modelnet10.npz, and packs of
# demonstrations (mug, pen, heights .safetensors: see the steps demos and demos-heights, which need a simulator and no
# GPU). OUT gets one folder per experiment. CACHE keeps rendered frames and decoded images. Every command resumes:
# finished runs are only read, and a run that was stopped goes on from its checkpoint. LIMIT ends a step after so many
# seconds (580 by default; 0 for no limit). JOBS overrides how many runs stand side by side; a run of Tiny-ImageNet-100
# or of boxes in 3D takes 6 to 12 GB.
set -euo pipefail

DATA=${DATA:-data} OUT=${OUT:-runs} CACHE=${CACHE:-$OUT/cache} LIMIT=${LIMIT:-580}
SHOW=0
TINY="data.train=$DATA/tiny-imagenet-100-train.tar.gz data.val=$DATA/tiny-imagenet-100-val.tar.gz data.cache=$CACHE"
ROWS="absolute sincos rope rope:base=100 rope:base=100,learnable=true rope_mixed circulant cayley"
MORE="cayley:frequencies=axial,share_basis=true harope simplex liere"
FOUR="absolute rope:base=100,learnable=true rope_mixed cayley"
SIX="BowlOnRack GlassOnRack PlateOnRack HandOverBanana HandOverPen MugOnPlate"
ENDED=$(( $(date +%s) + LIMIT ))

STEPS="L E9 E2 E4 E3 E6 E6-long V-towers V demos E7-mug E7-pen E7-eval demos-multi E7-multi E7-multi-eval demos-heights E8 E8-eval"

run_() {  # run a command, or show it; stop when the time is over
    if [ "$SHOW" = 1 ]; then
        echo "$*"
    elif [ "$LIMIT" = 0 ]; then
        "$@"
    else
        timeout --signal=TERM --kill-after=20 $(( ENDED - $(date +%s) )) "$@"
    fi
}

stringpe_() { run_ stringpe "$@"; }

compare() {  # recipe, folder, jobs, words of its own
    local recipe=$1 folder=$2 jobs=${JOBS:-$3}
    shift 3
    stringpe_ compare "$recipe" --out "$OUT/$folder" --jobs "$jobs" --no-costs "$@"
}

run_step() {
    case $1 in
    # Speed: no other process on the card. Tiles of heads that end inside of 32 bytes have not been timed.
    L) run_ python tests/kernels/tune.py --best-dims 16 24 40 48 56 72 80 88 104 112 120 136
        run_ python tests/kernels/tune.py --dims
        stringpe_ bench train --ways "ViT-B/16 at 224 px" --out "$OUT/bench"
        stringpe_ bench vit --modes compiled --ways absolute "ours, rope_mixed" "ours, cayley" "ours, circulant" --out "$OUT/bench"
        stringpe_ bench pairs --out "$OUT/bench" ;;
    E2) compare scenes_frozen frozen 8 data.cache=$CACHE ;;
    E3) for kind in relu linear; do
            compare tiny_imagenet100 $kind 6 $TINY loop.eval_every=0 model.attention=$kind --seeds 5 --encodings $ROWS
        done ;;
    # At 96 and 128 px as well. Scaled by 4, normalised coordinates are those of the index at 64 px, and stay so.
    E4) compare tiny_imagenet100 tiny 6 $TINY loop.eval_every=0 --seeds 8 --encodings $ROWS $MORE \
        {rope_mixed,cayley}:model.units=normalised,scale=4 ;;
    # Centres relative to points, and absolute ones as in the paper, with and without depth.
    E6) compare scenes_detection3d boxes 5 data.cache=$CACHE ;;
    E6-long) stringpe_ train scenes_detection3d data.cache=$CACHE model.encoding=cayley model.dim=320 model.heads=5 loop.steps=24000 \
        loop.save_every=1000 --out "$OUT/boxes-long" ;;
    # Towers for VOC2007, then detection from them at two rates of the encodings.
    V-towers) for rate in 0.1 1; do
            compare tiny_imagenet100 voc-towers-$rate 6 $TINY loop.eval_every=0 optim.encoding_lr_scale=$rate --seeds 3 \
                --encodings absolute rope rope_mixed circulant cayley
        done ;;
    V) for rate in 0.1 1; do
            compare voc2007 voc-$rate 15 data.train=$DATA/voc2007-train.tar data.val=$DATA/voc2007-val.tar \
                optim.encoding_lr_scale=$rate loop.steps=12000 "model.start=$OUT/voc-towers-$rate/runs/{encoding}/seed{seed}" \
                loss.positives=3 loop.eval_nms=0.6 --seeds 3 --encodings absolute rope rope_mixed circulant cayley
        done ;;
    # Robots. Demonstrations and trials need a simulator, training does not.
    demos) for pair in MugOnPlate:mug HandOverPen:pen; do
            stringpe_ data demos "${pair%:*}" --episodes 800 --out "$DATA/${pair#*:}"
            stringpe_ data pack "$DATA/${pair#*:}" "$DATA/${pair#*:}.safetensors" --stride 5
        done ;;
    E7-mug) compare aloha_small mug 10 data.train=$DATA/mug.safetensors --seeds 5 --encodings $FOUR ;;
    E7-pen) compare aloha_small pen 10 data.train=$DATA/pen.safetensors --seeds 5 --encodings $FOUR ;;
    E7-eval) for pair in MugOnPlate:mug HandOverPen:pen; do
            stringpe_ eval "$OUT/${pair#*:}"/runs/*/seed* --env "${pair%:*}" --trials 50 --out "$OUT/${pair#*:}/trials"
        done ;;
    demos-multi) for task in $SIX; do
            stringpe_ data demos "$task" --episodes 400 --out "$DATA/$task"
            stringpe_ data pack "$DATA/$task" "$DATA/$task.safetensors" --stride 5
        done ;;
    E7-multi) compare aloha_multi multi 9 "data.train=$(printf "$DATA/%s.safetensors," $SIX | sed 's/,$//')" --seeds 3 \
        --encodings absolute rope_mixed cayley ;;
    E7-multi-eval) stringpe_ eval "$OUT"/multi/runs/*/seed* --env $SIX --trials 50 --out "$OUT/multi/trials" ;;
    demos-heights) stringpe_ data demos KukaPick table_height=-0.03..0.03 pedestal_height=-0.03..0.03 depth_noise=true \
            --cameras front --episodes 1200 --depth --out "$DATA/heights"
        stringpe_ data pack "$DATA/heights" "$DATA/heights.safetensors" --stride 5 --depth-step 4 ;;
    E8) compare kuka_small heights 12 data.train=$DATA/heights.safetensors --seeds 3 --baseline circulant:model.depth=none \
        --encodings circulant:model.depth=none circulant:model.depth=normals circulant circulant:model.depth=lift+normals ;;
    E8-eval) stringpe_ eval "$OUT"/heights/runs/*/seed* depth_noise=true --env KukaPick --shifts --trials 50 \
        --out "$OUT/heights/trials" ;;
    E9) compare modelnet10 modelnet10 12 data.train=$DATA/modelnet10.npz data.cache=$CACHE ;;
    *) echo "there is no step named $1: the steps are $STEPS" >&2; return 2 ;;
    esac
}

case ${1:-list} in
list) tr ' ' '\n' <<<"$STEPS" ;;
show) SHOW=1; shift; for step in ${*:-$STEPS}; do echo "# $step"; run_step "$step"; done ;;
*) for step in "$@"; do run_step "$step"; done ;;
esac
