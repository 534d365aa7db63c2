"""A recipe is one experiment as data: frozen, plain types, everything that a run depends on."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OptionValue = bool | int | float | str


@dataclass(frozen=True)
class Model:
    """The vision transformer. `encoding`: a name of `stringpe.names()`, "absolute", "sincos", "liere" or "none";
    `encoding_options` go to a named one. `stem` and `depth` as in `stringpe.ViT`; depth "none" sees RGB, the others
    RGB-D. `start`: the folder of a run whose towers a new model of retrieval or detection starts from; {encoding},
    {seed} and {depth} in it stand for the recipe's own, so that every row of a comparison starts from its like."""

    dim: int = 192
    layers: int = 12
    heads: int = 3
    patch_size: int = 16
    stem: str = "patch"
    encoding: str = "cayley"
    encoding_options: Mapping[str, OptionValue] = field(default_factory=dict)
    share_layers: bool = False
    depth: str = "none"
    pool: str = "mean"
    registers: int = 0
    units: str = "index"
    mlp_ratio: float = 4.0
    dropout: float = 0.0
    drop_path: float = 0.0
    attention: str = "softmax"
    qk_norm: str = ""
    start: str = ""


@dataclass(frozen=True)
class Text:
    """The text tower of tasks with language. `encoding`: as in `Model`, over the place in the text. `pool`: "map",
    "last" or "mean". `width`: of the embeddings that texts share with images. `tokenizer`: a tokenizer.json; without
    one, a BPE of `vocab` tokens is trained on the training captions. `context`: the longest text in tokens."""

    dim: int = 192
    layers: int = 4
    heads: int = 3
    encoding: str = "absolute"
    encoding_options: Mapping[str, OptionValue] = field(default_factory=dict)
    pool: str = "map"
    width: int = 192
    tokenizer: str = ""
    vocab: int = 8000
    context: int = 64
    mlp_ratio: float = 4.0
    dropout: float = 0.0
    drop_path: float = 0.0


@dataclass(frozen=True)
class Data:
    """Where images come from. `source`: "synthetic", "scenes", "shards", "folder", "huggingface", "stream", "coco",
    "omni3d" or, for the task policy, "demos".

    train, val: what the source reads. Shards and streams: a path with {000..127} or a glob; a folder: a directory with
    one directory a class; huggingface: "name:split"; demos: a data set's folder or pack, several with commas. Scenes
    need neither: `train_size` and `val_size` frames are made.
    cache: folder where frames that were made are kept (by default the user's), packs of demonstrations, and images of
    shards once decoded, which many runs side by side then only read (by default nowhere).
    in_memory: decode everything once, keep it on the device as uint8 and augment there. queries: places asked about in
    a frame of the task objects, and objects of an image that a step of detection in 3D asks for. depth_step: metres a
    step of a stored depth.png, 0.001 for millimetres, unless a sample's json says "depth_step" itself. seed: of what is
    made up, not of the run.
    train_boxes, val_boxes: of detection, COCO, LVIS or Omni3D files; by default the .json beside the pictures.
    negatives: of detection, how many classes that are not in an image it is asked about beside those that are.
    results: of detection, a file that an evaluation writes its boxes to, in COCO's or Omni3D's results format.
    """

    source: str = "synthetic"
    train: str = ""
    val: str = ""
    image_size: int = 64
    num_classes: int = 10
    train_size: int = 0
    val_size: int = 0
    cache: str = ""
    in_memory: bool = True
    workers: int = 0
    queries: int = 8
    depth_step: float = 0.001
    seed: int = 0
    train_boxes: str = ""
    val_boxes: str = ""
    negatives: int = 50
    results: str = ""


@dataclass(frozen=True)
class Augment:
    """What training images go through. crop: smallest share of the image that an inception crop keeps, 1 for none.
    randaugment: operations an image, each at `magnitude` of 30. mixup: α of Beta(α, α), 0 for none. mosaic: of
    detection, the shares of 1 × 1, 2 × 2, … grids of pictures, "0.4 0.3 0.3"; empty for single pictures. shift: pixels
    by which a policy's cameras are moved at most."""

    crop: float = 1.0
    flip: bool = False
    colour: float = 0.0
    randaugment: int = 0
    magnitude: float = 15.0
    mixup: float = 0.0
    mosaic: str = ""
    shift: int = 0


@dataclass(frozen=True)
class Loss:
    """kind: "softmax" or "sigmoid" cross-entropy. head_bias: start of the classifier's bias (−6.9 with sigmoid).
    Retrieval: kind "siglip" or "clip"; pair_bias: start of b, a number (−10 as SigLIP) or "auto" = −log(batch − 1);
    chunk: images whose logits exist at a time, 0 for all; within: weight of a loss that compares only images that
    belong together, as views of a room do. Detection: factor: start of the class logits' factor."""

    kind: str = "softmax"
    label_smoothing: float = 0.0
    head_bias: float = 0.0
    pair_bias: str = "-10"
    chunk: int = 0
    within: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True)
class Policy:
    """A robot policy around the vision transformer. kind: "diffusion" or "energy". cameras: names with commas, all by
    default. encoder: where the image encoder starts: "" at random, a stringpe checkpoint, or "siglip:FOLDER" of
    transformers, with {encoding}, {seed} and {depth} as in `Model.start`; freeze keeps it. chunk, execute, blind, dim,
    heads, encoder_layers, decoder_layers: see `robots.policies.base`. train_steps, sample_steps, repeats, prediction:
    of `robots.DiffusionPolicy`; modes, negatives, candidates, langevin_steps, langevin_rate: of `robots.EnergyPolicy`.
    stride: steps between the pictures of a data set that are used. first: share of a batch that comes from the first
    frames of episodes, on which all else depends and of which an episode has but one. held_out: share of the episodes
    that validate, where data.val is not given. simulate: a robot task, "" for none, in which every evaluation also
    tries the policy `trials` times."""

    kind: str = "diffusion"
    cameras: str = ""
    encoder: str = ""
    freeze: bool = False
    chunk: int = 50
    execute: int = 25
    blind: float = 0.0
    dim: int = 256
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 4
    train_steps: int = 100
    sample_steps: int = 10
    repeats: int = 1
    prediction: str = "epsilon"
    modes: int = 4
    negatives: int = 16
    candidates: int = 8
    langevin_steps: int = 12
    langevin_rate: float = 0.1
    stride: int = 1
    first: float = 0.0
    held_out: float = 0.1
    simulate: str = ""
    trials: int = 20


@dataclass(frozen=True)
class Optim:
    """AdamW, linear warm-up and cosine to zero. encoding_lr_scale: of the encoding's own parameters; text_lr_scale: of
    a model's text tower. ema: decay of the average of the weights, 0 for none; ema_power: how it gets there."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup_steps: int = 0
    encoding_lr_scale: float = 1.0
    text_lr_scale: float = 1.0
    ema: float = 0.0
    ema_power: float = 0.0


@dataclass(frozen=True)
class Loop:
    """How long and how. batch_size is over all processes and accumulation; `steps` wins over `epochs` if not 0.
    precision: "no" or "bf16". Numbers of steps: log_every, eval_every (0 for the end only), save_every. keep:
    checkpoints that are not removed."""

    batch_size: int = 64
    epochs: int = 1
    steps: int = 0
    accumulate: int = 1
    precision: str = "no"
    compile: bool = False
    log_every: int = 10
    eval_every: int = 0
    eval_batch: int = 256
    save_every: int = 1000
    keep: int = 2
    tensorboard: bool = True


@dataclass(frozen=True)
class Recipe:
    """One run. `task` names a class of `stringpe.tasks`; `seed` fixes initialisation, data order and augmentation."""

    name: str = "unnamed"
    task: str = "classification"
    seed: int = 0
    model: Model = Model()
    text: Text = Text()
    data: Data = Data()
    augment: Augment = Augment()
    loss: Loss = Loss()
    policy: Policy = Policy()
    optim: Optim = Optim()
    loop: Loop = Loop()

    def total_steps(self, examples: int) -> int:
        """Optimisation steps of the run, for a training set of that many examples."""
        return self.loop.steps or max(1, self.loop.epochs * examples // self.loop.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain types, for JSON."""
        return dataclasses.asdict(self)
