"""Products lhsT[K, M]ᵀ · rhs[K, N], from one load per multiply to loads of whole blocks.

The loop nests are those the NKI matrix multiplication tutorial and AWS's profile-querying notes
describe in words and small listings; sizes are multiples of the tiles.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
FREE = 512


@nki.jit
def tiled(lhsT, rhs, kept=0):
    """Load both tiles for every multiply (tutorial v2).

    `kept`: how many left tiles stay in SBUF while they are used again, as the compiler does.
    """
    (K, M), (_, N) = lhsT.shape, rhs.shape
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    passes = max(1, kept // (K // P))
    for m in range(0, M, P):
        for n in range(0, N, FREE):
            if n // FREE % passes == 0:
                lefts = [None] * (K // P)
            acc = nl.ndarray((P, FREE), nl.float32, buffer=nl.psum)
            for k in range(0, K, P):
                left = lefts[k // P] = lefts[k // P] or load(lhsT[k : k + P, m : m + P])
                right = load(rhs[k : k + P, n : n + FREE])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            store(out, acc, m, n)
    return out


@nki.jit
def hoisted(lhsT, rhs):
    """Load a row of left tiles once for each m, a column of right tiles for each n (v3)."""
    return blocks(lhsT, rhs, 1, 1)


@nki.jit
def blocked(lhsT, rhs, m_tiles=2, n_tiles=2):
    """Share the loads of `m_tiles` times `n_tiles` results; one DMA for each tile (v4)."""
    return blocks(lhsT, rhs, m_tiles, n_tiles)


@nki.jit
def row_blocked(lhsT, rhs, m_tiles=8, n_tiles=2):
    """As `blocked`, with one DMA for the whole width of a block."""
    return blocks(lhsT, rhs, m_tiles, n_tiles, rows=True)


def blocks(lhsT, rhs, m_tiles, n_tiles, rows=False):
    """The loop nest that `hoisted`, `blocked` and `row_blocked` share."""
    (K, M), (_, N) = lhsT.shape, rhs.shape
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    for m in range(0, M, m_tiles * P):
        lefts = load_block(lhsT, m, m_tiles, P, rows)
        for n in range(0, N, n_tiles * FREE):
            rights = load_block(rhs, n, n_tiles, FREE, rows)
            for i in range(m_tiles):
                for j in range(n_tiles):
                    acc = nl.ndarray((P, FREE), nl.float32, buffer=nl.psum)
                    for k in range(K // P):
                        nisa.nc_matmul(dst=acc, stationary=lefts[k][i], moving=rights[k][j])
                    store(out, acc, m + i * P, n + j * FREE)
    return out


def load_block(source, start, tiles, width, rows):
    """Tiles [k][i] of `source` from column `start` on, loaded one by one or a row at a time."""
    block = []
    for k in range(0, source.shape[0], P):
        if rows:
            row = load(source[k : k + P, start : start + tiles * width])
            block.append([row[:, i * width : (i + 1) * width] for i in range(tiles)])
            continue
        columns = [start + i * width for i in range(tiles)]
        block.append([load(source[k : k + P, c : c + width]) for c in columns])
    return block


@nki.jit
def fully_blocked(lhsT, rhs, m_tiles=16, n_tiles=2, k_tiles=8):
    """Block all three dimensions; sums over K blocks collect in SBUF (v5)."""
    (K, M), (_, N) = lhsT.shape, rhs.shape
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    width = n_tiles * FREE
    for n in range(0, N, width):
        sums = []
        for _ in range(0, M, P):
            total = nl.ndarray((P, width), dtype=out.dtype, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            sums.append(total)
        for k in range(0, K, k_tiles * P):
            rights = [load(rhs[r : r + P, n : n + width]) for r in steps(k, k_tiles)]
            for m in range(0, M, m_tiles * P):
                lefts = [load(lhsT[r : r + P, m : m + m_tiles * P]) for r in steps(k, k_tiles)]
                add_block(sums, lefts, rights, m // P, m_tiles, n_tiles)
        for index, total in enumerate(sums):
            nisa.dma_copy(dst=out[index * P : (index + 1) * P, n : n + width], src=total)
    return out


def steps(start, count):
    """`count` row offsets from `start` on."""
    return [start + i * P for i in range(count)]


def add_block(sums, lefts, rights, first, m_tiles, n_tiles):
    """Multiply one block and add it to the sums of rows `first` and on."""
    for j in range(n_tiles):
        columns = slice(j * FREE, (j + 1) * FREE)
        for i in range(m_tiles):
            acc = nl.ndarray((P, FREE), nl.float32, buffer=nl.psum)
            for left, right in zip(lefts, rights, strict=True):
                nisa.nc_matmul(
                    dst=acc, stationary=left[:, i * P : (i + 1) * P], moving=right[:, columns]
                )
            total = sums[first + i][:, columns]
            nisa.tensor_tensor(dst=total, data1=total, data2=acc, op=nl.add)


@nki.jit
def transposing(lhs, rhs):
    """lhs[M, K] · rhs[K, N]: transpose the left tile for every multiply, load it once for each m.

    The page counts a transpose for every multiply; it loads as `tiled` with few tiles.
    """
    (M, K), (_, N) = lhs.shape, rhs.shape
    out = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for m in range(0, M, P):
        tiles = [None] * (K // P)
        for n in range(0, N, FREE):
            acc = nl.ndarray((P, FREE), nl.float32, buffer=nl.psum)
            for k in range(0, K, P):
                tile = tiles[k // P] = tiles[k // P] or load(lhs[m : m + P, k : k + P])
                turned = nl.ndarray((P, P), lhs.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=tile)
                left = nl.ndarray((P, P), lhs.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=left, src=turned)
                right = load(rhs[k : k + P, n : n + FREE])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            store(out, acc, m, n)
    return out


@nki.jit
def repeated(lhsT, rhs, shapes, count=512):
    """`count` multiplies of the same operands for each (K, M, N) of `shapes`."""
    left, right = load(lhsT), load(rhs)
    out = nl.ndarray((P, FREE), nl.float32, buffer=nl.shared_hbm)
    for K, M, N in shapes:
        acc = nl.ndarray((M, N), nl.float32, buffer=nl.psum)
        for _ in range(count):
            nisa.nc_matmul(dst=acc, stationary=left[0:K, 0:M], moving=right[0:K, 0:N])
        result = nl.ndarray((M, N), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=acc)
        nisa.dma_copy(dst=out[0:M, 0:N], src=result)
    return out


def load(source):
    """A new SBUF tile with the contents of an HBM slice."""
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def store(out, acc, m, n):
    """Write a PSUM tile to rows `m` and columns `n` of `out`, through SBUF."""
    result = nl.ndarray(acc.shape, dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out[m : m + acc.shape[0], n : n + acc.shape[1]], src=result)
