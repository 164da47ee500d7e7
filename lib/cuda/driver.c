/* driver.c - the CUDA driver, opened at run time
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "status.h"

/* libcuda.so would be the development link, which a machine with a driver need not have. */
#define DRIVER_FILE "libcuda.so.1"

enum need { optional, required };

static const struct {
    const char *name;
    enum need need;
    size_t offset; /* in struct driver */
} functions[] = {
#define DRIVER_ROW(need, name, parameters) { #name, need, offsetof(struct driver, name) },
    DRIVER_FUNCTIONS(DRIVER_ROW)
#undef DRIVER_ROW
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct driver loaded;
static bool absent;
static char problem[256]; /* why there is no driver; "" if there is one */

static void describe(const struct driver *driver, CUresult result, const char *doing, char *to, size_t size)
{
    const char *name = NULL, *text = NULL;

    /* A driver older than the error code knows no name for it, and leaves NULL. */
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &text);
    if (name)
        snprintf(to, size, "%s: %s (%s)", doing, name, text ? text : "no text");
    else
        snprintf(to, size, "%s: CUDA error %d", doing, (int)result);
}

static void load(void)
{
    /* Never closed: the driver keeps threads and handlers of its own. */
    void *file = dlopen(DRIVER_FILE, RTLD_NOW | RTLD_LOCAL);

    if (!file) {
        const char *why = dlerror();

        absent = true;
        snprintf(problem, sizeof problem, "no CUDA driver: %s", why ? why : DRIVER_FILE);
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(file, functions[i].name);

        if (!symbol && functions[i].need == required) {
            snprintf(problem, sizeof problem, "the CUDA driver (%s) lacks %s: expected one for CUDA 12.0 or later",
                     DRIVER_FILE, functions[i].name);
            return;
        }
        /* ISO C has no cast from object to function pointer; POSIX says they are alike. */
        memcpy((char *)&loaded + functions[i].offset, &symbol, sizeof symbol);
    }
    const CUresult result = loaded.cuInit(0);
    if (result != CUDA_SUCCESS) {
        absent = result == CUDA_ERROR_NO_DEVICE;
        describe(&loaded, result, "cuInit", problem, sizeof problem);
    }
}

const struct driver *driver_open(const char **why, bool *is_absent)
{
    pthread_once(&once, load);
    *why = problem;
    *is_absent = absent;
    return *problem ? NULL : &loaded;
}

quire_status driver_fail(const struct driver *driver, CUresult result, const char *doing)
{
    char text[256];
    const bool no_code = result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;

    describe(driver, result, doing, text, sizeof text);
    return quire_fail(no_code ? QUIRE_ERROR_UNSUPPORTED : QUIRE_ERROR_DEVICE, "%s", text);
}
