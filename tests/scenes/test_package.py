import pkgutil

from stringpe import scenes


def test_no_exported_name_shadows_a_module():
    modules = {module.name for module in pkgutil.iter_modules(scenes.__path__)}
    assert len(modules) > 10
    assert not modules & set(scenes.__all__)
