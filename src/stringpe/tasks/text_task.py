"""What tasks with language share: a text tower that can start from another run and learn at a rate of its own."""

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..io.checkpoint import TOKENIZER
from ..recipes.schema import Recipe
from .base import Task, check_named_options
from .build import backbone, build_text_tower, with_one_layer
from .warm_start import read_owl_config, start_towers


class TextTask(Task):
    """A task whose model has an image tower, its part named `image`, and a text tower, its part named `text`."""

    reads: ClassVar[tuple[str, ...]] = ("text.*", "model.start", "optim.text_lr_scale")

    @classmethod
    def check_model(cls, recipe: Recipe) -> None:
        check_named_options(recipe.text.encoding_options, "text.encoding_options")
        if read_owl_config(recipe) is not None:
            raise ValueError(
                f"model.start={recipe.model.start} holds an OWL-ViT or OWLv2 of transformers, from which only the task "
                f"detection2d can start"
            )
        backbone(with_one_layer(recipe).model, image_size=recipe.data.image_size)
        build_text_tower(with_one_layer(recipe), vocab=2, padding=0)

    @classmethod
    def changes_to_reopen(cls, recipe: Recipe, folder: Path) -> list[str]:
        tokenizer = folder / TOKENIZER
        return [*super().changes_to_reopen(recipe, folder), *([f"text.tokenizer={tokenizer}"] * tokenizer.exists())]

    def start(self, model: nn.Module, folder: Path) -> None:
        start_towers(model, self.recipe, folder)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The groups of every task, with the text tower's parameters in groups of their own, at `optim.text_lr_scale`
        of the rate."""
        groups, scale = super().parameter_groups(model), self.recipe.optim.text_lr_scale
        tower = getattr(model, "text", None)
        if scale == 1 or not isinstance(tower, nn.Module):
            return groups
        in_tower = {id(p) for p in tower.parameters()}
        split = []
        for group in groups:
            text = [p for p in group["params"] if id(p) in in_tower]
            rest = [p for p in group["params"] if id(p) not in in_tower]
            split += [group | {"params": rest}] if rest else []
            scaled = {"name": f"text {group['name']}", "params": text, "lr": group["lr"] * scale}
            split += [group | scaled] if text else []
        return split
