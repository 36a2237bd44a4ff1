"""The classes of transformers: all models, and what the auto classes make of which model_type."""

import functools
import pathlib
import pkgutil
import re

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _BaseAutoModelClass


def modeling_modules():
    import transformers.models as models

    found = []
    for package in pkgutil.iter_modules(models.__path__):
        folder = pathlib.Path(models.__path__[0]) / package.name
        found += [f"transformers.models.{package.name}.{f.stem}" for f in sorted(folder.glob("modeling_*.py"))]
    return sorted(found)


def in_auto_mappings():
    names = set()
    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for value in mapping.values():
                names.update(value if isinstance(value, (tuple, list)) else [value])
    return names


def classes_in(module_name):
    module = __import__(module_name, fromlist=["x"])
    for name in sorted(set(getattr(module, "__all__", []))):
        cls = getattr(module, name, None)
        if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel):
            continue
        if not re.search("PreTrained|Pretrained", name) or name in in_auto_mappings():
            yield cls


def config_class_of(cls):
    found = cls.config_class
    return found if isinstance(found, type) and found is not PreTrainedConfig else None


@functools.cache
def auto_classes():
    """{name: auto class}."""
    found = {name: cls for name, cls in vars(modeling_auto).items() if isinstance(cls, type)}
    return {name: cls for name, cls in found.items() if issubclass(cls, _BaseAutoModelClass)}


def classes_by_type(auto):
    """{model_type: the class that an auto class makes of such a configuration}."""
    names = auto_classes()[auto]._model_mapping._model_mapping
    return {kind: name if isinstance(name, str) else name[0] for kind, name in sorted(names.items())}
