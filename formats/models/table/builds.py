"""Models on the meta device, which have shapes and no memory, and what is noted while they are built."""

import contextlib
import copy

import torch
import transformers
from classes import auto_classes
from configurations import repaired
from torch import nn
from transformers import PreTrainedConfig

MADE = []  # (auto class, configuration, model) of each part that the latest build has put in


def record_parts():
    """Makes the auto classes note what they build, for the rest of the process."""

    def noting(plain):
        def from_config(cls, config, **options):
            model = plain(cls, config, **options)
            MADE.append((cls.__name__, config, model))
            return model

        from_config.notes = True
        return classmethod(from_config)

    for cls in auto_classes().values():
        if not hasattr(cls.from_config, "notes"):
            cls.from_config = noting(cls.from_config.__func__)


def build(cls, config):
    """A model of a copy of the configuration, because some models change theirs."""
    MADE.clear()
    with torch.device("meta"), transformers.initialization.no_init_weights():
        return cls(copy.deepcopy(config))


def first_build(cls, config):
    """(configuration that works, model). Raises what the default configuration raises if none does."""
    try:
        return config, build(cls, config)
    except Exception as error:
        failure = error
    for other in repaired(cls, config):
        try:
            return other, build(cls, other)
        except Exception:
            continue
    raise failure


@contextlib.contextmanager
def reads_recorded(reads):
    """Collects (configuration class, attribute) for every attribute read from a configuration."""
    plain = PreTrainedConfig.__getattribute__

    def recording(self, name):
        reads.add((type(self), name))
        return plain(self, name)

    PreTrainedConfig.__getattribute__ = recording
    try:
        yield
    finally:
        PreTrainedConfig.__getattribute__ = plain


def without_timm():
    """Stands in for libraries that are not installed: the vision towers of timm, whose tensors have names of timm's
    own, and the attention kernel of natten, which has no weights."""
    from transformers.models.dinat import modeling_dinat
    from transformers.models.timm_wrapper import modeling_timm_wrapper as wrapper

    modeling_dinat.requires_backends = lambda *_: None

    def init(self, config):
        wrapper.TimmWrapperPreTrainedModel.__init__(self, config)
        self.timm_model = nn.Identity()
        self.timm_model.feature_info = None
        self.post_init()

    for cls in (wrapper.TimmWrapperModel, wrapper.TimmWrapperForImageClassification):
        cls.__init__ = init
