"""A recipe is one experiment as data: frozen, plain types, everything that a run depends on."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OptionValue = bool | int | float | str


def number(default: float, **rule: float) -> Any:
    """A field for a number in a range: `least` and `most` are its ends, `above` and `below` lie just outside of it."""
    return field(default=default, metadata=rule)


def choice(*choices: str) -> Any:
    """A field for one of a few words; the first is the default."""
    return field(default=choices[0], metadata={"choices": choices})


def options_for(encoding: str, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """The options that an encoding gets: those with its name before them, "circulant.block_size", and those without a
    name, which win. So a recipe can hold options for several encodings, and every row of a comparison takes its own."""
    own = {name.removeprefix(f"{encoding}."): v for name, v in options.items() if name.startswith(f"{encoding}.")}
    return own | {name: value for name, value in options.items() if "." not in name}


@dataclass(frozen=True)
class Model:
    """The vision transformer.
    dim: channels of a token. layers: number of blocks. heads: attention heads. patch_size: pixels per side of a patch.
    stem: "patch", linear, or "conv", convolutions. encoding: a name of `stringpe.names()`, "absolute", "sincos",
    "liere" or "none". encoding_options: options of a named encoding (`options_for`). share_layers: one encoding for
    all layers. depth: "none" for RGB; how RGB-D is used: "channel", "lift", "normals", "lift+channel" or
    "lift+normals". pool: "mean", "cls" or "map", attention pooling. registers: learned tokens at the origin. units:
    the units of the patches' coordinates, "index", "normalised" or "centred". mlp_ratio: hidden channels of an MLP, as
    a multiple of `dim`. dropout: share of channels that training leaves out. drop_path: share of residual branches
    that training leaves out. attention: "softmax", "linear" or "relu". qk_norm: the norm of queries and keys, "rms",
    "rms_gain" or "layer"; empty for none. start: the folder of a run that a new model starts from, of retrieval or
    detection its towers, of policies all of it; {encoding}, {seed} and {depth} in it stand for the recipe's own, so
    that every row of a comparison has its own start; "recipe:NAME" is a run of that recipe, which is trained first,
    once, and kept in data.cache. init: how new weights start, "truncated_normal", "width_scaled", "depth_scaled",
    "uniform" or "xavier", as in `stringpe.models.initialise`. patch_gain: how large the patch embedding starts.
    freeze: "qk" keeps the query and key projections of the task relations as they start; "backbone" keeps all of a ViT
    that the task objects takes from `start`, "backbone+basis" also the basis of the encoding that is put into it, at a
    random value. lora: the rank of low-rank updates of the frozen query and key projections, 0 for none. box_centre:
    of detection in 3D, what centres are predicted relative to: "absolute", as in the paper, or "point", the point
    where a patch lies in space, for which models see depth and know the camera."""

    dim: int = number(192, least=1)
    layers: int = number(12, least=1)
    heads: int = number(3, least=1)
    patch_size: int = number(16, least=1)
    stem: str = "patch"
    encoding: str = "cayley"
    encoding_options: Mapping[str, OptionValue] = field(default_factory=dict)
    share_layers: bool = False
    depth: str = "none"
    pool: str = "mean"
    registers: int = number(0, least=0)
    units: str = "index"
    mlp_ratio: float = number(4.0, above=0)
    dropout: float = number(0.0, least=0, below=1)
    drop_path: float = number(0.0, least=0, below=1)
    attention: str = "softmax"
    qk_norm: str = ""
    start: str = ""
    init: str = "truncated_normal"
    patch_gain: float = 3**-0.5
    freeze: str = ""
    lora: int = number(0, least=0)
    box_centre: str = "absolute"

    @property
    def options(self) -> dict[str, OptionValue]:
        """The options of this model's encoding."""
        return options_for(self.encoding, self.encoding_options)


@dataclass(frozen=True)
class Text:
    """The text tower of tasks with language.
    dim, layers, heads, encoding_options, mlp_ratio, dropout, drop_path: as in `model`. encoding: as in `model`, over
    the place in the text. pool: "map", "last" or "mean". width: channels of the embeddings that texts share with
    images. tokenizer: a tokenizer.json; without one, a BPE of `vocab` tokens is trained on the training captions.
    vocab: number of tokens. context: the longest text in tokens."""

    dim: int = number(192, least=1)
    layers: int = number(4, least=1)
    heads: int = number(3, least=1)
    encoding: str = "absolute"
    encoding_options: Mapping[str, OptionValue] = field(default_factory=dict)
    pool: str = "map"
    width: int = number(192, least=1)
    tokenizer: str = ""
    vocab: int = number(8000, least=1)
    context: int = number(64, least=1)
    mlp_ratio: float = number(4.0, above=0)
    dropout: float = number(0.0, least=0, below=1)
    drop_path: float = number(0.0, least=0, below=1)

    @property
    def options(self) -> dict[str, OptionValue]:
        """The options of this tower's encoding."""
        return options_for(self.encoding, self.encoding_options)


@dataclass(frozen=True)
class Data:
    """Where images come from.

    source: "synthetic", "scenes", "one_object", "shards", "folder", "huggingface", "stream", "coco", "omni3d", for the
    task policy "demos", for the task relations "points", or for the task shapes "clouds".
    train, val: what the source reads. Shards and streams, a path with {000..127} or a glob; a folder, a directory with
    one directory per class; huggingface, "name:split"; demos, a data set's folder or pack, several with commas; clouds,
    an .npz with both splits. Scenes need neither, since `train_size` and `val_size` frames are rendered.
    image_size: pixels per side that the model sees. num_classes: number of classes.
    train_size, val_size: how many samples to use, from the first on; 0 for all. A stream of more than 2,000 is not cut
    off; there train_size says how many samples an epoch has.
    cache: folder for rendered frames and packs of demonstrations (by default the user's cache), and for the decoded
    images of shards, which many runs side by side then only read (by default not kept).
    in_memory: decode everything once, keep it on the device as uint8 and augment there; else `workers` processes read
    what a step needs. Both give the same batches. workers: processes that read data; 0 reads in the one that trains.
    queries: places per frame that the task objects asks about, and objects per image that a step of detection in 3D
    asks for. depth_step: metres per step of a stored depth.png, 0.001 for millimetres, unless the file or the sample's
    JSON file has a "depth_step". seed: the seed of made-up data, not of the run.
    train_boxes, val_boxes: for detection, COCO, LVIS or Omni3D files; by default the .json beside the pictures.
    Detection in 2D trains on several data sets if train (and train_boxes) names them with " + " between. mix: the
    shares of several data sets in the training, "0.8 0.2", in place of those of their sizes. without: an LVIS file
    whose rare names its training leaves out, for a zero-shot APr.
    negatives: for detection, how many classes that are not in an image are asked for besides those that are.
    cameras: for the task objects, where the cameras of scenes stand, "any", or "near" what they look at; then the rooms
    of the validation set are also seen from far away, for the metric `far`.
    groups: tokens per point cloud. group_size: points per token of a point cloud. pose: "stored", or
    "principal" to turn every cloud, of training and of test, into the frame of its own principal axes."""

    source: str = "synthetic"
    train: str = ""
    val: str = ""
    image_size: int = number(64, least=1)
    num_classes: int = number(10, least=1)
    train_size: int = number(0, least=0)
    val_size: int = number(0, least=0)
    cache: str = ""
    in_memory: bool = True
    workers: int = number(0, least=0)
    queries: int = number(8, least=1)
    depth_step: float = number(0.001, above=0)
    seed: int = 0
    train_boxes: str = ""
    val_boxes: str = ""
    mix: str = ""
    without: str = ""
    negatives: int = number(50, least=0)
    cameras: str = choice("any", "near")
    groups: int = number(64, least=1)
    group_size: int = number(32, least=1)
    pose: str = choice("stored", "principal")


@dataclass(frozen=True)
class Augment:
    """What training images go through.
    crop: smallest share of the image that an inception crop keeps, 1 for none. flip: mirror half of the images.
    colour: brightness, contrast and saturation change by factors between 1 − colour and 1 + colour. randaugment:
    operations of RandAugment per image. magnitude: the strength of RandAugment's operations, from 0 to 30. mixup: the
    α of Beta(α, α), from which shares of mixed images are drawn, 0 for none. mosaic: for detection, the shares of 1 ×
    1, 2 × 2, … grids of pictures, "0.4 0.3 0.3"; empty for single pictures. shift: by how many pixels images are moved
    at most, over their border into the reflection in classification, each camera by itself with its border repeated
    for policies. turn: the random rotations of point clouds, "none", "upright" (about the third axis), "any" or "half"
    (half turns about the axes). stretch: by how much the three axes of a point cloud are stretched or shrunk at most,
    0.15 for factors of 0.85 to 1.15."""

    crop: float = number(1.0, above=0, most=1)
    flip: bool = False
    colour: float = number(0.0, least=0)
    randaugment: int = number(0, least=0)
    magnitude: float = number(15.0, least=0, most=30)
    mixup: float = number(0.0, least=0)
    mosaic: str = ""
    shift: int = number(0, least=0)
    turn: str = choice("none", "upright", "any", "half")
    stretch: float = number(0.0, least=0, below=1)


@dataclass(frozen=True)
class Loss:
    """What is minimised.
    kind: "softmax" or "sigmoid" cross-entropy; of retrieval, "siglip" or "clip". label_smoothing: share of a label
    spread over all classes. head_bias: start of the classifier's bias (−6.9 with sigmoid). pair_bias: of retrieval,
    the start of b, a number (−10 as SigLIP) or "auto" = −log(batch − 1). chunk: of retrieval, images whose logits are
    computed at a time, 0 for all. within: of retrieval, the weight of a loss that compares only images that belong
    together, as views of a room do. factor: of detection, the start of the factor of class logits. positives: of
    detection in 2D, predictions per object that training counts as right, 1 in the paper; with more, set
    loop.eval_nms."""

    kind: str = "softmax"
    label_smoothing: float = number(0.0, least=0, below=1)
    head_bias: float = 0.0
    pair_bias: str = "-10"
    chunk: int = number(0, least=0)
    within: float = number(0.0, least=0)
    factor: float = number(1.0, above=0)
    positives: int = number(1, least=1, most=16)


@dataclass(frozen=True)
class Policy:
    """A robot policy around the vision transformer.
    kind: "diffusion" or "energy". cameras: names with commas, all by default. encoder: where the image encoder starts,
    "" at random, a stringpe checkpoint, or "siglip:FOLDER" or "paligemma:FOLDER" of transformers, with {encoding},
    {seed} and {depth} as in `model.start`. freeze: keep the image encoder as it starts. chunk: actions predicted at
    once. execute: how many of the predicted actions are carried out before the next observation. blind: share of the
    training examples whose robot state is hidden. dim, heads, encoder_layers, decoder_layers: channels, attention
    heads and layers of the policy's own transformer. train_steps: of diffusion, steps of noise in training.
    sample_steps: of diffusion, steps of denoising when it acts. repeats: of diffusion, noised chunks per observation.
    prediction: of diffusion, the noise, "epsilon", or the clean chunk, "sample". modes: of energy, the number of
    Gaussians in its proposal. negatives: of energy, how many chunks the demonstrated one is ranked above. candidates:
    of energy, how many chunks are drawn when it acts. langevin_steps: of energy, steps by which candidates are
    improved when it acts. langevin_rate: of energy, the size of these steps. stride: steps between the pictures of a
    data set that are used. first: share of a batch that comes from the first frames of episodes, on which everything
    else depends and of which an episode has only one. held_out: share of the episodes that validate, where data.val is
    not given. simulate: robot tasks with commas, "" for none, in each of which every evaluation also tries the policy.
    trials: trials per robot task in each of these evaluations. frame: "camera", or "world" for calibrated cameras
    whose patches meet in the robot's frame, by depth (`robots.policies.observer`)."""

    kind: str = choice("diffusion", "energy")
    cameras: str = ""
    encoder: str = ""
    freeze: bool = False
    chunk: int = number(50, least=1)
    execute: int = number(25, least=1)
    blind: float = number(0.0, least=0, most=1)
    dim: int = number(256, least=1)
    heads: int = number(4, least=1)
    encoder_layers: int = number(2, least=0)
    decoder_layers: int = number(4, least=1)
    train_steps: int = number(100, least=1)
    sample_steps: int = number(10, least=1)
    repeats: int = number(1, least=1)
    prediction: str = "epsilon"
    modes: int = number(4, least=1)
    negatives: int = number(16, least=1)
    candidates: int = number(8, least=1)
    langevin_steps: int = number(12, least=0)
    langevin_rate: float = number(0.1, above=0)
    stride: int = number(1, least=1)
    first: float = number(0.0, least=0, most=1)
    held_out: float = 0.1
    simulate: str = ""
    trials: int = number(20, least=1)
    frame: str = choice("camera", "world")


@dataclass(frozen=True)
class Optim:
    """AdamW with a linear warm-up.
    lr: the learning rate after the warm-up. beta1, beta2: decays of AdamW's averages. eps: AdamW's ε. weight_decay:
    AdamW's weight decay. clip: largest norm of the gradient, 0 for any. warmup_steps: length of the warm-up. schedule:
    how the rate goes on after the warm-up, "cosine" to zero, or "constant". encoding_lr_scale: factor of the rate for
    the encoding's own parameters. text_lr_scale: factor of the rate for the parameters of the text tower. ema: decay
    of the average of the weights, 0 for none. ema_power: if not 0, the decay grows as 1 − (1 + step)^−power."""

    lr: float = number(1e-3, least=0)
    beta1: float = number(0.9, least=0, below=1)
    beta2: float = number(0.999, least=0, below=1)
    eps: float = number(1e-8, above=0)
    weight_decay: float = number(0.0, least=0)
    clip: float = number(1.0, least=0)
    warmup_steps: int = number(0, least=0)
    schedule: str = choice("cosine", "constant")
    encoding_lr_scale: float = number(1.0, least=0)
    text_lr_scale: float = number(1.0, least=0)
    ema: float = number(0.0, least=0, below=1)
    ema_power: float = number(0.0, least=0)


@dataclass(frozen=True)
class Loop:
    """How long and how.
    batch_size: examples per step, over all processes and parts. epochs: length of the training in epochs. steps:
    length of the training in steps; if it is not 0, epochs does not count. accumulate: parts that a step is computed
    in. precision: "no" or "bf16". compile: use torch.compile. log_every: steps between lines of the log. eval_every:
    steps between evaluations, 0 for the end only. save_every: steps between checkpoints. eval_batch: samples at a time
    in evaluation. keep: how many checkpoints are not removed. eval_points: points per box for the Monte-Carlo IoU that
    detection in 3D measures beside the exact one, 100,000 in the paper; 0 to leave it out. eval_nms: in detection in
    2D, of two boxes of one class whose IoU is larger, only the better counts; 1 keeps all, as in the paper. eval_sizes:
    in classification, other sides of images at which the model is tested as well, "96 128", in pixels. tracker:
    where curves go besides metrics.jsonl, "tensorboard", "wandb", "mlflow", "aim" or another of Accelerate's. seeds:
    how many models, with the seeds seed, seed + 1, …, are trained together in one step, for the task relations."""

    batch_size: int = number(64, least=1)
    epochs: int = number(1, least=1)
    steps: int = number(0, least=0)
    accumulate: int = number(1, least=1)
    precision: str = choice("no", "bf16")
    compile: bool = False
    log_every: int = number(10, least=1)
    eval_every: int = number(0, least=0)
    eval_batch: int = number(256, least=1)
    eval_points: int = number(0, least=0)
    eval_nms: float = number(1.0, above=0, most=1)
    eval_sizes: str = ""
    save_every: int = number(1000, least=1)
    keep: int = number(2, least=1)
    tracker: str = ""
    seeds: int = number(1, least=1)


@dataclass(frozen=True)
class Recipe:
    """One run.
    name: the recipe's name in reports. task: the name of a class of `stringpe.tasks`. seed: fixes initialisation, data
    order and augmentation."""

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
