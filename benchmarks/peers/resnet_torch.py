"""ResNet50 in PyTorch: torchvision's builds want the PyTorch that they were built for, with the same GPU libraries."""

import torch
from torch import nn

__all__ = ["resnet50"]


class Block(nn.Module):
    """Three convolutions and a way around them (He et al., 2015), with the stride in the second of them.

    Args:
        channels: Int. Of what comes in.
        width: Int. Of what is between; four times as many come out.
        stride: Int. Defaults to 1.
    """

    def __init__(self, channels: int, width: int, stride: int = 1):
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1),
        )
        is_same = channels == 4 * width and stride == 1
        self.around = nn.Identity() if is_same else nn.Sequential(*_convolution(channels, 4 * width, 1, stride))
        self.end = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.inner(x) + self.around(x))


def resnet50(classes: int) -> nn.Sequential:
    """Return ResNet50 for images of three channels: 23,508,032 weights and 2,049 for each class."""
    stem = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks, channels = [], 64
    for stage, count in enumerate([3, 4, 6, 3]):
        for place in range(count):
            blocks.append(Block(channels, 64 << stage, 2 if stage and not place else 1))
            channels = 256 << stage
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolution(channels: int, filters: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(filters)]
