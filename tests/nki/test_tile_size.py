"""Tile limits by chip, as documentation and public kernels state them."""

import pytest

from opentrn import nki
from opentrn.nki import language as nl


@pytest.mark.parametrize("target", ["trn1", "inf2", "trn2", "trn3"])
def test_limits_that_kernels_tile_by(target):
    with nki.use_target(target):
        assert nl.tile_size.pmax == 128
        assert nl.tile_size.gemm_stationary_fmax == 128
        assert nl.tile_size.gemm_moving_fmax == 512
        assert nl.tile_size.psum_fmax == nl.tile_size.psum_bank_fmax == 512
        assert nl.tile_size.psum_num_banks == 8
