/* args.c - the versions of the public structs
 * SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <string.h>

#include "status.h"

enum { FUTURE = 4096 }; /* bytes by which a struct may outgrow version 1: above, the size is garbage */

quire_status args_struct_size(const char *type, size_t got, size_t version_1, size_t known)
{
    /* A size between two versions ends inside a field or in padding, as does one that breaks alignment. */
    if (got < version_1 || (got > version_1 && got < known) || got % _Alignof(int64_t) != 0 || got > version_1 + FUTURE)
        return quire_fail(QUIRE_ERROR_VALUE, "struct_size: expected sizeof(%s), here %zu, got %zu", type, known, got);
    return QUIRE_OK;
}

quire_status args_read(const quire_decode_args *from, quire_decode_args *to)
{
    enum { VERSION_1 = offsetof(quire_decode_args, metadata_stable) + sizeof(uint32_t) };
    quire_status status;
    size_t size;

    if (from == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "args: expected a quire_decode_args, got NULL");
    size = from->struct_size;
    status = args_struct_size("quire_decode_args", size, VERSION_1, sizeof *to);
    if (status != QUIRE_OK)
        return status;
    for (size_t i = sizeof *to; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return quire_fail(QUIRE_ERROR_UNSUPPORTED,
                              "struct_size: got %zu with byte %zu set, but quire %s knows %zu bytes",
                              size, i, quire_version(), sizeof *to);
    memset(to, 0, sizeof *to);
    memcpy(to, from, size < sizeof *to ? size : sizeof *to);
    return QUIRE_OK;
}

void args_fill(void *callers, const void *result, size_t known)
{
    size_t size = *(const size_t *)callers, head = sizeof size;

    if (size > known)
        size = known;
    memcpy((char *)callers + head, (const char *)result + head, size - head);
}

void quire_decode_args_init(quire_decode_args *args)
{
    if (args != NULL)
        *args = (quire_decode_args)QUIRE_DECODE_ARGS_INIT;
}
