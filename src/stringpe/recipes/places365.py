"""Places365 as in the paper: the recipe of ImageNet2012, on 365 kinds of places.

    accelerate launch --num_processes 8 -m stringpe train places365 data.train=/data/places365/train \\
        data.val=/data/places365/val model.encoding=cayley --out runs/places-cayley

Data: in any layout of `imagenet2012`; 1,803,460 training images (data.train_size for a stream).
Expected, from the paper: ViT 56.79, RoPE 56.97, RoPE-Mixed 56.69, Circulant 56.77, Cayley 57.16 % top-1.
Time and number of this recipe: not known, because it has not been run in full.
"""

from dataclasses import replace

from .imagenet2012 import RECIPE as IMAGENET

RECIPE = replace(IMAGENET, name="places365", data=replace(IMAGENET.data, num_classes=365))
