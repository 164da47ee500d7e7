/* amx.h - the tile instructions that kernel_amx.c uses
 *
 * With QUIRE_AMX_EMULATED they are plain C, for tests on processors without AMX.  Tiles are named by
 * constants from 0 to 7.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_AMX_H
#define QUIRE_CPU_AMX_H

#include <stddef.h>
#include <stdint.h>

/* What ldtilecfg loads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

#ifdef QUIRE_AMX_EMULATED
#include "amx_emulated.h"
#else

#include <sys/syscall.h>
#include <unistd.h>
#include <cpuid.h>

/* All of them clobber memory, or leave it alone: a compiler knows nothing of tiles.  TILE_DOT: c += a b, for each
 * float of c the sum over pairs of bf16 in a row of a and in a column of b. */
#define TILE_LOAD(tile, from, stride)                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(tile, to, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"((size_t)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

static inline void tiles_begin(const struct tile_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
}

static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease" : :);
}

/* Whether the processor has it, and the system lets this process use it. */
static inline _Bool tiles_are_available(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, BF16_TILES = 1 << 22, TILES = 1 << 24 };
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16_TILES | TILES)) != (BF16_TILES | TILES))
        return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#endif
#endif
