"""The option `--device`: checked before anything costly is done."""

import os

from restd.errors import ConfigError


def available_devices() -> list[str]:
    """Devices that models can run on here, the preferred one first."""
    import torch

    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        devices.append("mps")
    return [*devices, "cpu"]


def use_device(name: str | None) -> str | None:
    """Return the name of a device that is available; another is an error that lists those that are.

    Encoders choose a device themselves. So `cpu` hides CUDA devices from this process and those it starts, and `cuda:1`
    becomes the current device.

    >>> use_device(None) is None
    True
    """
    if name is None:
        return None
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return name
    devices = available_devices()
    if name not in devices and not (name == "cuda" and "cuda:0" in devices):
        raise ConfigError(f"--device {name} is not available here. Available: {', '.join(devices)}.")
    if name.startswith("cuda:"):
        import torch

        torch.cuda.set_device(name)  # the one that is meant by "cuda"
    return name
