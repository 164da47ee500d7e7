/* amx_emulated.h - the tile instructions in C, for lib/cpu/amx.h
 *
 * tdpbf16ps as the processor does it: for each float of C the even and the odd elements of the products are summed
 * apart, one fused operation after the other, then together, then with C; subnormal numbers are zero everywhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/round.h"

struct emulated_tile {
    unsigned char row[16][64];
};
static _Thread_local struct emulated_tile tiles[8];
static _Thread_local struct tile_shapes tile_shapes; /* palette 0: not configured */

static inline float flushed(float x)
{
    return (float_bits(x) & 0x7f800000) == 0 ? float_of_bits(float_bits(x) & 0x80000000) : x;
}

/* What the processor answers with a fault. */
static inline void check_tile(int tile)
{
    if (tile_shapes.palette != 1 || tile_shapes.rows[tile] < 1 || tile_shapes.rows[tile] > 16 ||
        tile_shapes.row_bytes[tile] < 1 || tile_shapes.row_bytes[tile] > 64)
        abort();
}

static inline void emulated_zero(int tile)
{
    check_tile(tile);
    memset(&tiles[tile], 0, sizeof tiles[tile]);
}

static inline void emulated_load(int tile, const void *from, size_t stride)
{
    emulated_zero(tile);
    for (int r = 0; r < tile_shapes.rows[tile]; r++)
        memcpy(tiles[tile].row[r], (const char *)from + (size_t)r * stride, tile_shapes.row_bytes[tile]);
}

static inline void emulated_store(int tile, void *to, size_t stride)
{
    check_tile(tile);
    for (int r = 0; r < tile_shapes.rows[tile]; r++)
        memcpy((char *)to + (size_t)r * stride, tiles[tile].row[r], tile_shapes.row_bytes[tile]);
}

static inline float element_of_pair(const unsigned char *row, int element)
{
    uint16_t u;

    memcpy(&u, row + 2 * element, sizeof u);
    return flushed(float_of_bits((uint32_t)u << 16));
}

static inline void emulated_dot(int c, int a, int b)
{
    int rows = tile_shapes.rows[c], columns = tile_shapes.row_bytes[c] / 4, pairs = tile_shapes.row_bytes[a] / 4;

    check_tile(a);
    check_tile(b);
    check_tile(c);
    if (tile_shapes.rows[a] != rows || tile_shapes.row_bytes[b] != 4 * columns || tile_shapes.rows[b] != pairs)
        abort();
    for (int m = 0; m < rows; m++) {
        float even[16] = {0}, odd[16] = {0}, sums[16];

        for (int k = 0; k < pairs; k++) {
            float x = element_of_pair(tiles[a].row[m], 2 * k), y = element_of_pair(tiles[a].row[m], 2 * k + 1);

            for (int n = 0; n < columns; n++) {
                even[n] = flushed(fmaf(x, element_of_pair(tiles[b].row[k], 2 * n), even[n]));
                odd[n] = flushed(fmaf(y, element_of_pair(tiles[b].row[k], 2 * n + 1), odd[n]));
            }
        }
        memcpy(sums, tiles[c].row[m], sizeof sums);
        for (int n = 0; n < columns; n++)
            sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
        memcpy(tiles[c].row[m], sums, (size_t)columns * sizeof *sums);
    }
}

#define TILE_LOAD(tile, from, stride) emulated_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulated_store(tile, to, stride)
#define TILE_ZERO(tile) emulated_zero(tile)
#define TILE_DOT(c, a, b) emulated_dot(c, a, b)

static inline void tiles_begin(const struct tile_shapes *shapes)
{
    tile_shapes = *shapes;
    memset(tiles, 0, sizeof tiles);
}

static inline void tiles_end(void)
{
    memset(&tile_shapes, 0, sizeof tile_shapes);
}

static inline _Bool tiles_are_available(void)
{
    return 1;
}
