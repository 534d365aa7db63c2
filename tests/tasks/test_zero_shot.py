import pytest
import torch

from captioned_files import picture
from stringpe.data.labelled import image_set
from stringpe.data.queries import PHOTO_TEMPLATES
from stringpe.models.contrastive import Contrastive
from stringpe.models.text import TextTower
from stringpe.models.tokenizer import Tokenizer
from stringpe.models.vit import vit
from stringpe.tasks.zero_shot import zero_shot


@pytest.fixture
def folder(tmp_path):
    for name, shades in (("dark", (10, 20)), ("light", (200, 210, 220))):
        (tmp_path / name).mkdir()
        for shade in shades:
            (tmp_path / name / f"{shade}.png").write_bytes(picture(shade))
    (tmp_path / "light" / "zz.png").write_bytes(b"no image")
    return tmp_path


def test_the_nearest_name_wins(folder, monkeypatch):
    tokenizer = Tokenizer.train(["a photo of a dark light thing"], vocab=300)
    model = Contrastive(
        vit("vit_test_patch16"), TextTower(vocab=len(tokenizer), dim=16, layers=1, num_heads=2, width=2)
    )

    def image(pixels, depth=None):  # red is high: (1, 0), else (0, 1)
        bright = pixels[:, 0].mean((1, 2)) > 0
        return torch.stack([bright.float(), 1 - bright.float()], -1)

    def text(tokens):
        light = torch.tensor(["light" in t for t in tokenizer.decode(tokens)]).float()
        return torch.stack([light, 1 - light], -1)

    monkeypatch.setattr(model, "embed_image", image)
    monkeypatch.setattr(model, "embed_text", text)
    images = image_set("folder", str(folder))
    found = zero_shot(model, tokenizer, images, ["dark", "light"], size=16, batch=2)
    assert found == {"top1": 1.0, "top5": 1.0, "count": 5, "corrupt": 1}
    wrong = zero_shot(model, tokenizer, images, ["light", "dark"], size=16)
    assert wrong["top1"] == 0
    with pytest.raises(ValueError, match="is of class 1, but there are 1 names"):
        zero_shot(model, tokenizer, images, ["dark"], size=16)
    assert len(PHOTO_TEMPLATES) == 7
