import subprocess
import sys

import pytest

import sage_snn


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_stays_light():
    loaded = modules_after("from sage_snn import *")
    assert {"torch", "spikingjelly"} <= loaded
    assert not loaded & {"torchvision", "timm", "lightning", "matplotlib", "plotly", "pandas", "sklearn", "ray"}


def test_the_command_line_answers_before_torch_is_loaded():
    assert "torch" not in modules_after("import sage_snn.cli")


@pytest.mark.parametrize("name", sage_snn.__all__)
def test_every_public_name_exists(name):
    assert hasattr(sage_snn, name)
    assert name in dir(sage_snn)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SAGEE'"):
        _ = sage_snn.SAGEE


def test_the_names_that_others_rely_on_are_public():
    from sage_snn.models import load_official_state_dict, official_state_dict, spikformer
    from sage_snn.signals import entropy_dispersion, gini_dispersion, head_entropy, head_gini

    assert {"SAGE", "Fixed", "Learnable", "Block", "Statistics", "DeadZoneTanh", "check"} <= set(sage_snn.__all__)
    functions = (spikformer, load_official_state_dict, official_state_dict, head_entropy, head_gini)
    assert all(callable(f) for f in (*functions, entropy_dispersion, gini_dispersion, sage_snn.check))
