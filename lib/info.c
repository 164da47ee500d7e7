/* info.c - what this build and this machine offer
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <string.h>

#include "args.h"
#include "backend.h"
#include "status.h"
#include "tensor.h"

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

#define VERSION_TEXT TEXT(QUIRE_VERSION_MAJOR) "." TEXT(QUIRE_VERSION_MINOR) "." TEXT(QUIRE_VERSION_PATCH)

#if defined __clang__
#define COMPILER __VERSION__ /* begins with its name */
#elif defined __GNUC__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#ifdef _OPENMP
#define OPENMP "yes"
#else
#define OPENMP "no"
#endif

#ifdef HAVE_CUDA
#define CUDA "yes"
#else
#define CUDA "no"
#endif

#ifndef CUDA_ARCH_LIST
#define CUDA_ARCH_LIST ""
#endif

const char *quire_version(void)
{
    return VERSION_TEXT;
}

const char *quire_build_config(void)
{
    return "compiler=" COMPILER "\n"
           "openmp=" OPENMP "\n"
           "cuda=" CUDA "\n"
           "cuda_arch=" CUDA_ARCH_LIST "\n";
}

static quire_status check_device_type(int32_t device_type)
{
    if (device_type != QUIRE_DEVICE_CPU && device_type != QUIRE_DEVICE_CUDA)
        return quire_fail(QUIRE_ERROR_TYPE, "device_type: expected %d (cpu) or %d (cuda), got %d", QUIRE_DEVICE_CPU,
                          QUIRE_DEVICE_CUDA, (int)device_type);
    return QUIRE_OK;
}

quire_status quire_device_count(int32_t device_type, int32_t *count)
{
    quire_status status = check_device_type(device_type);

    if (status != QUIRE_OK)
        return status;
    if (count == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "count: expected where to store the number, got NULL");
#ifdef HAVE_CUDA
    if (device_type == QUIRE_DEVICE_CUDA)
        return cuda_count(count);
#endif
    *count = device_type == QUIRE_DEVICE_CPU;
    return QUIRE_OK;
}

quire_status quire_device_describe(int32_t device_type, int32_t device_id, quire_device_info *info)
{
    enum { VERSION_1 = offsetof(quire_device_info, problem) + sizeof info->problem };
    quire_device_info found;
    quire_status status = check_device_type(device_type);

    if (status != QUIRE_OK)
        return status;
    if (info == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "info: expected a quire_device_info, got NULL");
    status = args_struct_size("quire_device_info", info->struct_size, VERSION_1, sizeof *info);
    if (status != QUIRE_OK)
        return status;
    memset(&found, 0, sizeof found);
    if (device_type == QUIRE_DEVICE_CPU && device_id == 0)
        status = cpu_describe(&found);
#ifdef HAVE_CUDA
    else if (device_type == QUIRE_DEVICE_CUDA && device_id >= 0)
        status = cuda_describe(device_id, &found);
#endif
    else
        status = quire_fail(QUIRE_ERROR_DEVICE, "device_id: there is no device %s",
                            device_text((DLDevice){device_type, device_id}).s);
    if (status == QUIRE_OK)
        args_fill(info, &found, sizeof found);
    return status;
}
