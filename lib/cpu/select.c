/* select.c - which kernel this process runs, and on how many threads
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "backend.h"
#include "cpu/select.h"
#include "status.h"

/* Best first. */
static const struct kernel *const kernels[] = {
#ifdef HAVE_AMX
    &kernel_amx,
#endif
#ifdef __x86_64__
    &kernel_avx512bf16, &kernel_avx512, &kernel_avx2,
#endif
#if defined __aarch64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    &kernel_neon,
#endif
    &kernel_portable,
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* Threads that OMP_NUM_THREADS gets at most, on a machine of fewer processors: GNU's OpenMP starts a team on the
 * caller's stack, of which 100000 threads need more than there is. */
enum { MOST_THREADS = 1024 };

static struct {
    pthread_once_t once;
    const struct kernel *kernel; /* NULL if QUIRE_CPU asks for what there is not */
    char problem[256];           /* and why */
    struct reading reading;
    int max_threads;
} process = {.once = PTHREAD_ONCE_INIT};

static void decide_kernel(void)
{
    const char *wanted = getenv("QUIRE_CPU");
    char offered[128] = "";

    for (int i = 0; i < KERNELS; i++) {
        if (!kernels[i]->available())
            continue;
        if (wanted == NULL || *wanted == '\0' || strcmp(wanted, kernels[i]->name) == 0) {
            process.kernel = kernels[i];
            return;
        }
        snprintf(offered + strlen(offered), sizeof offered - strlen(offered), "%s%s", *offered ? ", " : "",
                 kernels[i]->name);
    }
    snprintf(process.problem, sizeof process.problem,
             "QUIRE_CPU: expected one of %s, which this CPU runs, got \"%.64s\"", offered, wanted);
}

/* AMD's family 19h is Zen 3 and 4, of which 4 alone has AVX-512. */
static bool is_zen4(void)
{
#ifdef __x86_64__
    unsigned a, b, c, d;

    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && __get_cpuid(1, &a, &b, &c, &d) &&
           (a >> 8 & 0xf) + (a >> 20 & 0xff) == 0x19; /* family and extended family */
#else
    return false;
#endif
}

static void decide(void)
{
    process.max_threads = 1;
#ifdef _OPENMP
    const int wanted = omp_get_max_threads() < MOST_THREADS ? omp_get_max_threads() : MOST_THREADS;
    process.max_threads = omp_get_num_procs();
    if (process.max_threads < wanted)
        process.max_threads = wanted;
#endif
    decide_kernel();
    process.reading.heads_together = is_zen4() || (process.kernel != NULL && process.kernel->tiled);
    process.reading.into_l2 = is_zen4();
}

quire_status select_kernel(const struct kernel **kernel)
{
    pthread_once(&process.once, decide);
    *kernel = process.kernel;
    return process.kernel != NULL ? QUIRE_OK : quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s", process.problem);
}

const struct reading *select_reading(void)
{
    pthread_once(&process.once, decide);
    return &process.reading;
}

int select_max_threads(void)
{
    pthread_once(&process.once, decide);
    return process.max_threads;
}

int select_threads(void)
{
    int threads = 1;

#ifdef _OPENMP
    /* within somebody's parallel region OpenMP would give one thread; then ask for no more */
    threads = omp_get_active_level() < omp_get_max_active_levels() ? omp_get_max_threads() : 1;
#endif
    return threads < select_max_threads() ? threads : select_max_threads();
}

/* ---- description ---------------------------------------------------------------------------------- */

static void describe_name(char *name, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(name, size, "CPU");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            value += 1 + strspn(value + 1, " \t");
            snprintf(name, size, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    }
    if (f != NULL)
        fclose(f);
}

quire_status cpu_describe(quire_device_info *info)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cache = 0;

#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0)
        cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    info->memory_bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    info->cache_bytes = cache > 0 ? cache : 0;
    info->compute_units = select_threads();
    info->capability = 0;
    describe_name(info->name, sizeof info->name);
    snprintf(info->kernels, sizeof info->kernels, "%s", process.kernel != NULL ? process.kernel->name : "");
    snprintf(info->problem, sizeof info->problem, "%s", process.problem);
    return QUIRE_OK;
}
