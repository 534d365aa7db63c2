"""One small ALOHA policy for six tasks, four cameras at 128 px, from scratch, on one GPU.

    for task in BowlOnRack GlassOnRack PlateOnRack HandOverBanana HandOverPen MugOnPlate; do
        stringpe data demos $task --episodes 400 --out data/$task; done
    stringpe compare aloha_multi --encodings absolute rope_mixed cayley --seeds 3 --out runs/multi
    stringpe eval runs/multi/runs/*/seed* --trials 50 --out runs/multi/trials \\
        --env BowlOnRack GlassOnRack PlateOnRack HandOverBanana HandOverPen MugOnPlate

The text of a task tells the policy which task is meant. The policy is that of `aloha_small`, trained six times as long
on six tasks. How many steps it needs is not known.
Data: the six folders data/TASK that the first command writes.
Time and expected number: not known, because the recipe has not been run.
"""

from dataclasses import replace

from .aloha_small import RECIPE as ALOHA

TASKS = ("BowlOnRack", "GlassOnRack", "PlateOnRack", "HandOverBanana", "HandOverPen", "MugOnPlate")

RECIPE = replace(
    ALOHA,
    name="aloha_multi",
    data=replace(ALOHA.data, train=",".join(f"data/{task}" for task in TASKS)),
    loop=replace(ALOHA.loop, steps=25_200, eval_every=4_200, save_every=1_200),
)
