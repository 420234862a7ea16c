"""Tensors that go to a device and come back are the same."""

from __future__ import annotations

import pytest
import torch

from dspark_convert.runtime.fast import transfer
from dspark_convert.runtime.fast.transfer import Download, upload_large

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (257, 33)])
def test_large_tensors_go_up_part_by_part(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STAGE_BYTES", 1000)
    x = torch.randint(-100, 100, shape).to(dtype)
    uploaded = upload_large(x, torch.device(device))
    assert uploaded.device.type == device
    assert uploaded.dtype == dtype
    assert torch.equal(uploaded.cpu(), x)


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_goes_up_as_what_it_shows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STAGE_BYTES", 64)
    x = torch.arange(300).view(30, 10)[::2, 3:]
    assert torch.equal(upload_large(x, torch.device(device)).cpu(), x)


@pytest.mark.parametrize("device", DEVICES)
def test_downloads_are_the_tensors_as_they_were(device: str) -> None:
    x = torch.arange(12.0, device=device).view(3, 4)
    download = Download({"x": x, "transposed": x.T, "nothing": None})
    x += 1
    host = download.wait()
    expected = torch.arange(12.0).view(3, 4)
    assert host["nothing"] is None
    assert torch.equal(host["x"], expected)
    assert torch.equal(host["transposed"], expected.T)
